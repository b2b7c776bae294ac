"""A queue whose node is down is left out, and consumed again when it is back."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import amqp
import pytest
from kombu import Queue

from appserver import absent_queues
from appserver.absent_queues import PAUSE, AbsentQueues, leave_out, look

AWAY = "NOT_FOUND - home node 'rabbit@a' of durable queue '{}' in vhost '/' is down or inaccessible"


@pytest.fixture
def consumer(celery):
    app, added = celery(broker="amqp://h//"), []
    app.conf.task_queues = [Queue("celery"), Queue("orders")]
    return SimpleNamespace(app=app, absent=frozenset(), added=added, add_task_queue=added.append)


def test_only_the_queue_that_is_away_is_left_out(consumer):
    leave_out(consumer, "NOT_FOUND - no queue 'orders' in vhost '/'")
    assert set(consumer.app.amqp.queues.consume_from) == {"celery", "orders"}
    leave_out(consumer, AWAY.format("celery"))
    assert set(consumer.app.amqp.queues.consume_from) == {"orders"}
    assert consumer.absent == {"celery"}


def test_it_is_consumed_again_when_the_broker_knows_it(consumer, monkeypatch):
    missing = {"celery"}

    class Channel:
        def queue_declare(self, name: str, passive: bool) -> None:
            if name in missing and passive:
                raise amqp.NotFound(AWAY.format(name))

    connection = SimpleNamespace(channel=lambda: nullcontext(Channel()))
    monkeypatch.setattr(absent_queues, "reply_connection", lambda _app: connection)
    consumer.absent = frozenset({"celery", "orders"})
    look(consumer)
    assert (consumer.absent, consumer.added) == ({"celery"}, ["orders"])
    missing.clear()
    look(consumer)
    assert (consumer.absent, consumer.added) == (set(), ["orders", "celery"])


@pytest.mark.parametrize("absent", [frozenset(), frozenset({"celery"})])
def test_it_is_looked_for_only_where_one_is_absent(absent):
    entries: list[object] = []
    timer = SimpleNamespace(
        call_repeatedly=lambda *call: entries.append(call) or call, cancel=entries.remove
    )
    consumer = SimpleNamespace(absent=absent, timer=timer, steps=[])
    step = AbsentQueues(consumer)
    step.start(consumer)
    assert entries == ([(PAUSE, look, (consumer,))] if absent else [])
    step.stop(consumer)
    step.stop(consumer)
    assert entries == []
