"""What is known of further tasks while Redis does not answer."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from gateway.config.settings import Config
from gateway.errors import StateUnavailable, StoreError, Unanswered
from gateway.relay.further_tasks import TakenTasks


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
