"""When a dynamic queue is declared, and what becomes of the messages that wait for that."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import SimpleNamespace

import pytest

from gateway.amqp.dynamic_queues import DynamicQueues
from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.errors import (
    BrokerBlocked,
    BrokerUnavailable,
    QueueLimit,
    RequestError,
    Unroutable,
)
from gateway.metric_table import QUEUES
from gateway.metrics import Metrics
from gateway.outcome import SUCCESS, Outcome
from gateway.pending_task import PendingTask
from tests.support.requests import counted

PATH = "/{s}"
OWN = {"queue": "s-{param:s}", "queue_pattern": "s-[a-z]", "queue_limit": 2, "queue_expires": 40}
CONFIG = Config(routes=[{"path": PATH, **OWN}])
(ROUTE,) = CONFIG.routes


class Queues(DynamicQueues):
    """Declares nothing, but counts; `error` is raised instead."""

    def __init__(self, metrics: Metrics):
        self.metrics = metrics
        self.publisher = SimpleNamespace(blocked="", connection=object())
        super().__init__(CONFIG, self.metrics, self.publisher)
        self.declared: list[str] = []
        self.error: Exception | None = None
        self.sent: list[PendingTask] = []

    async def _renew(self, queue):
        await asyncio.sleep(0)
        self.declared.append(queue.name)
        if self.error is not None:
            raise self.error
        queue.declared, queue.consumers = monotonic(), 1

    def deliver(self, task: str, queue: str = "s-a") -> PendingTask:
        def send(message: Message, deadline: float) -> PendingTask:
            self.sent.append(PendingTask(message, deadline))
            return self.sent[-1]

        return self.send(ROUTE, Message(task, "task", queue, b"", {}), 100.0, send)

    def ids(self) -> list[str]:
        return [pending.message.task_id for pending in self.sent]

    def number(self) -> float:
        return counted(self.metrics, QUEUES, http_route=PATH)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def queues(metrics):
    return Queues(metrics)


async def test_first_messages_wait_in_order_and_later_ones_do_not(queues):
    for task in "123":
        queues.deliver(task)
    assert queues.ids() == []
    await settled()
    assert queues.ids() == ["1", "2", "3"]
    queues.deliver("4")
    assert queues.ids() == ["1", "2", "3", "4"]
    assert queues.declared == ["s-a"]
    assert queues.number() == 1


async def test_confirm_result_and_error_are_passed_on(queues):
    ended, failed, given_up = (queues.deliver(task) for task in "123")
    await settled()
    queues.sent[0].confirm()
    assert (ended.confirmed, ended.ended) == (True, False)
    queues.sent[0].settle(Outcome(SUCCESS, 7))
    assert ended.outcome == Outcome(SUCCESS, 7)
    queues.sent[1].fail(BrokerUnavailable())
    assert isinstance(failed.error, BrokerUnavailable)
    given_up.abandon()
    assert queues.sent[2].ended


async def test_who_has_gone_meanwhile_is_not_published(queues):
    queues.deliver("1").abandon()
    await settled()
    assert queues.ids() == []


async def test_a_returned_message_is_published_again_once(queues):
    pending = queues.deliver("1")
    await settled()
    queues.sent[0].fail(Unroutable())
    await settled()
    assert queues.declared == ["s-a", "s-a"]
    assert queues.ids() == ["1", "1"]
    assert not pending.ended
    queues.sent[1].fail(Unroutable())
    await settled()
    assert isinstance(pending.error, Unroutable)
    assert queues.ids() == ["1", "1"]


@pytest.mark.parametrize(
    ("error", "told"),
    [(BrokerUnavailable(), BrokerUnavailable), (ZeroDivisionError(), RequestError)],
)
async def test_a_failed_declaration_is_the_error_of_all_that_wait(queues, error, told):
    queues.error = error
    some = [queues.deliver(task) for task in "12"]
    await settled()
    assert {type(each.error) for each in some} == {told}
    assert queues.number() == 0
    queues.error = None
    queues.deliver("3")
    await settled()
    assert queues.ids() == ["3"]


async def test_one_queue_more_than_the_limit_is_refused(queues):
    for name in ("s-a", "s-b"):
        queues.deliver("1", name)
    with pytest.raises(QueueLimit, match="There are 2 queues"):
        queues.deliver("1", "s-c")
    queues.deliver("2", "s-b")


async def test_what_is_known_is_refused_at_once(queues):
    queues.publisher.blocked = "alarm"
    with pytest.raises(BrokerBlocked):
        queues.deliver("1")
    queues.publisher.blocked, queues.publisher.connection = "", None
    with pytest.raises(BrokerUnavailable):
        queues.deliver("1")


async def test_a_queue_that_was_quiet_is_declared_again(queues):
    queues.deliver("1")
    await settled()
    (queue,) = queues._known
    queue.used -= 11  # a quarter of its expiry
    queues.deliver("2")
    assert queues.ids() == ["1"]
    await settled()
    assert queues.ids() == ["1", "2"]
    assert queues.declared == ["s-a", "s-a"]
