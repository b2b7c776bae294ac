"""What becomes of a delivery's further tasks where the broker takes none, or Redis is silent."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from gateway.celery_message import Message, TaskIds
from gateway.config.settings import Config
from gateway.errors import BrokerBlocked, StateUnavailable, StoreError, Unanswered
from gateway.pending_task import PendingTask
from gateway.relay.further_tasks import FurtherTasks, TakenTasks


class Blocked:
    """A strategy that takes the first message and refuses the others at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def publish(self, message: Message, deadline: float) -> PendingTask:
        self.asked.append(message.task_id)
        if len(self.asked) > 1:
            raise BrokerBlocked
        pending = PendingTask(message, deadline)
        pending.confirm()
        return pending


async def test_one_that_is_refused_at_once_refuses_the_delivery():
    strategy = Blocked()
    further = FurtherTasks("gateway:", strategy, TaskIds(), None)
    messages = [Message(name, "task", "queue", b"[]", {}) for name in ("a", "b", "c")]

    with pytest.raises(BrokerBlocked):
        await further.publish(messages, "", monotonic() + 60)

    assert strategy.asked == ["a", "b", "c"]  # each is tried, as the next try has to know


# While Redis does not answer ----------------------------------------------------------------------


class Redis:
    """Gives each command `reply`; None: it is frozen."""

    def __init__(self, reply: object):
        self.reply = reply
        self.sent: list[asyncio.Future[object]] = []

    def run(self, *command: object) -> asyncio.Future[object]:
        future = asyncio.get_running_loop().create_future()
        self.sent.append(future)
        if isinstance(self.reply, Exception):
            future.set_exception(self.reply)
        elif self.reply is not None:
            future.set_result(self.reply)
        return future


def known(redis: Redis, without_state: str, seconds: float = 60.0) -> set[str]:
    taken = TakenTasks(Config(without_state=without_state), redis)
    return asyncio.run(taken.of("identity", monotonic() + seconds))


@pytest.mark.parametrize("without", ["refuse", "relay"])
def test_the_tasks_that_the_broker_has_are_known(without):
    assert known(Redis([b"a", b"b"]), without) == {"a", "b"}


@pytest.mark.parametrize("error", [StoreError("NOPERM"), Unanswered("gone")])
def test_without_redis_none_is_known_or_the_delivery_is_refused(error):
    assert known(Redis(error), "relay") == set()
    with pytest.raises(StateUnavailable):
        known(Redis(error), "refuse")


def test_a_redis_that_hangs_is_given_up_before_the_deadline():
    redis = Redis(None)
    assert known(redis, "relay", 1) == set()
    assert redis.sent[0].cancelled()  # it is not sent any more
