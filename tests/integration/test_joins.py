"""Those that wait for a task that somebody else runs, on a real Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from gateway.answer import Answer
from gateway.celery_message import RESULT_KEY, Message, TaskIds
from gateway.claims.claim import CONFIRMED, PUBLISHING, Claim, read
from gateway.claims.result_waiter import ResultWaiter
from gateway.claims.store import Claims
from gateway.config.settings import Config
from gateway.outcome import FAILURE, SUCCESS
from gateway.pending_task import PendingTask
from gateway.stores.results import Results
from tests.integration.deliveries import channels
from tests.support.parts import started
from tests.support.stack import Server
from tests.support.waiting import eventually

TASK = TaskIds().new()
RESULT = json.dumps({"status": "SUCCESS", "result": "done"})


class Waiting:
    """One that has joined the task of another, who owns the claim."""

    def __init__(self, claims: Claims, joins: ResultWaiter, owned: Claim, joined: Claim):
        self.claims, self.owned = claims, owned
        message = Message(joined.task_id, "task", "queue", b"", {})
        self.pending = PendingTask(message, 0.0)
        self.waiting = asyncio.create_task(joins.wait(joined, self.pending))


def own(server: Server) -> list[bytes]:
    """Return the channels of the task here: other tests use this Redis as well."""
    return [channel for channel in channels(server) if channel.endswith(TASK.encode())]


@pytest.fixture
def joined(redis_server: Server) -> Callable[[], AbstractAsyncContextManager[Waiting]]:
    config = Config(result_backend=redis_server.url)
    redis_server.client.flushdb()

    @asynccontextmanager
    async def joined() -> AsyncIterator[Waiting]:
        claims = Claims(config)
        results = Results(config)
        joins = ResultWaiter(config, claims, results)
        async with started(claims, results, joins):
            await eventually(lambda: not joins.error)
            owned = await claims.take("x", b"digest", TASK)
            waiting = Waiting(
                claims, joins, owned, await claims.take("x", b"digest", TaskIds().new())
            )
            await eventually(lambda: len(own(redis_server)) == 2)
            async with asyncio.timeout(30):
                yield waiting
            await eventually(lambda: own(redis_server) == [])

    return joined


@pytest.mark.parametrize("silent", [False, True])
async def test_a_result_is_heard_or_found(joined, redis_server, silent):
    async with joined() as one:
        with redis_server.client as client:
            (client.set if silent else client.publish)(f"{RESULT_KEY}{TASK}", RESULT)
        assert await one.waiting
        assert (one.pending.outcome.state, one.pending.outcome.value) == (SUCCESS, "done")


async def test_a_failure_is_heard_of_though_it_was_not_stored(joined):
    async with joined() as one:
        one.claims.fail(one.owned, "ValueError")
        assert await one.waiting
        assert (one.pending.outcome.state, one.pending.outcome.error) == (FAILURE, "ValueError")


async def test_a_confirm_is_heard_of_and_waiting_goes_on(joined):
    async with joined() as one:
        one.claims.confirm(one.owned)
        await eventually(lambda: one.pending.confirmed)
        assert not one.waiting.done()
        one.pending.abandon()
        assert await one.waiting


@pytest.mark.parametrize("not_taken", [True, False])
async def test_a_claim_that_was_released_has_to_be_taken_again(joined, not_taken):
    async with joined() as one:
        one.claims.release(one.owned, not_taken)
        assert not await one.waiting
        assert one.pending.ended and one.pending.outcome is None


async def test_a_confirmed_claim_that_redis_lost_is_not_run_under_another_id(joined, redis_server):
    async with joined() as one:
        one.claims.confirm(one.owned)
        await eventually(lambda: one.pending.confirmed)
        redis_server.client.flushall()
        assert not await one.waiting
        again = await one.claims.take("x", b"digest", TaskIds().new(), again=True)
        assert (again.state, again.task_id) == (CONFIRMED, TASK)


async def test_a_claim_with_an_answer_has_to_be_taken_again(joined):
    async with joined() as one:
        one.claims.finish(one.owned, Answer(200, "", b"done"))
        assert not await one.waiting


async def test_a_lease_that_lapses_in_silence_is_noticed(joined, redis_server):
    async with joined() as one:
        assert not await one.waiting
        assert read(redis_server.client.get(one.owned.key)).state == PUBLISHING
