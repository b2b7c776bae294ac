"""Errors of kombu that nobody expects end no message's wait in silence."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace

import pytest

from gateway.amqp.kombu_publisher import KombuPublisher
from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.pending_task import PendingTask
from tests.support.waiting import eventually


@pytest.fixture
def pending() -> PendingTask:
    return PendingTask(Message("id", "task", "celery", b"[]", {}), monotonic() + 30)


async def test_a_name_that_none_can_be_is_told(metrics, pending, caplog):
    url = "redis://no..name/0"
    publisher = KombuPublisher(Config(broker_url=url, result_backend=url), metrics)
    await publisher.start()
    publisher.publish(pending)
    await eventually(lambda: pending.error is not None)
    await publisher.stop()
    assert pending.error.type == "broker-unavailable"
    assert "label empty" in publisher.error and "cannot connect to the broker" in caplog.text


async def test_what_kombu_does_not_declare_fails_the_message(metrics, pending, caplog):
    def publish(*_: object, **__: object) -> None:
        raise LookupError("of kombu")

    publisher = KombuPublisher(Config(broker_url="redis://h", result_backend="redis://h"), metrics)
    publisher._connect = lambda: None
    await publisher.start()
    connection = SimpleNamespace(connection_errors=(), channel_errors=(), release=lambda: None)
    publisher._producer = SimpleNamespace(connection=connection, publish=publish)
    publisher.publish(pending)
    await eventually(lambda: pending.error is not None)
    await publisher.stop()
    assert "LookupError: of kombu" in caplog.text
