"""Results that come after their requests have stopped waiting, on a real Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
import redis

from gateway.answer import Answer
from gateway.claims.claim import CONFIRMED, DONE, LAPSED, Claim, read
from gateway.claims.store import Claims
from gateway.claims.unattended_tasks import UnattendedTasks
from gateway.config.redaction import Redaction
from gateway.config.route import Reading, Route
from gateway.config.settings import Config
from gateway.delivery import Delivery
from gateway.errors import Unanswered
from gateway.stores.results import Results
from tests.support.parts import started
from tests.support.stack import Server
from tests.support.waiting import eventually

OFTEN = 0.3  # a third of it, in seconds, is the shortest pause between queries
BODY, READING = b"digest", Route(path="/").reading


class Process:
    """What one process of a gateway has to listen for the results of unattended tasks."""

    def __init__(self, url: str, **settings: Any):
        config = Config(result_backend=url, **settings)
        self.claims = Claims(config)
        self.results = Results(config)
        self.subscription = self.results.subscription
        self.unattended = UnattendedTasks(config, self.claims, self.results)

    async def publish(self, name: str) -> Claim:
        """Claim the delivery `name`, whose message the broker has taken."""
        claim = await self.claims.take(name, BODY, str(uuid4()))
        self.claims.confirm(claim)
        return claim

    async def listened_for(self, name: str) -> Claim:
        claim = await self.publish(name)
        self.unattended.listen(claim, READING)
        return claim

    async def answer(self, name: str) -> Answer | None:
        """Return the answer that the next try of the delivery gets."""
        return (await self.claims.take(name, BODY, str(uuid4()))).answer

    async def until_answered(self, name: str) -> Answer:
        async with asyncio.timeout(60):
            while (answer := await self.answer(name)) is None:
                await asyncio.sleep(0.01)
        return answer


@pytest.fixture
def process(redis_server: Server, client: redis.Redis) -> Callable[..., Any]:
    """A process of a gateway, on an empty Redis."""

    @asynccontextmanager
    async def process(**settings: Any) -> AsyncIterator[Process]:
        one = Process(redis_server.url, **settings)
        async with started(one.claims, one.results, one.unattended):
            await eventually(lambda: not one.subscription.error)
            yield one

    return process


def key(claim: Claim) -> str:
    return f"celery-task-meta-{claim.task_id}"


def result(value: str) -> str:
    return json.dumps({"status": "SUCCESS", "result": value})


def heard(client: redis.Redis) -> set[str]:
    return {name.decode() for name in client.pubsub_channels("celery-task-meta-*")}


async def test_a_result_that_is_published_becomes_the_next_trys_answer(process, client):
    async with process() as one:
        claim = await one.listened_for("x")
        await eventually(lambda: key(claim) in heard(client))

        # What is published once more changes nothing.
        with client.pipeline() as both:
            both.publish(key(claim), result("late")).publish(key(claim), result("later")).execute()

        assert (await one.until_answered("x")).body == b"late"
        await eventually(lambda: not heard(client))
        assert (await one.answer("x")).body == b"late"


@pytest.mark.parametrize("cut", [False, True])
async def test_a_result_that_nobody_has_heard_is_found(process, client, cut):
    async with process(**({} if cut else {"result_expires": OFTEN})) as one:
        claim = await one.listened_for("x")
        await eventually(lambda: key(claim) in heard(client))
        client.set(key(claim), result("late"))
        if cut:  # it is found when the connection is back
            client.client_kill_filter(_type="pubsub")
        assert (await one.until_answered("x")).body == b"late"


async def test_a_query_that_fails_is_soon_made_again(process, client):
    async with process(result_expires=3600) as one:
        stored, failures = one.results.stored, [Unanswered("lost")] * 2

        async def failing(task_ids: list[str]) -> AsyncIterator[tuple[str, bytes]]:
            if failures:
                raise failures.pop()
            async for each in stored(task_ids):
                yield each

        one.results.stored = failing
        claim = await one.publish("x")
        client.set(key(claim), result("late"))
        one.unattended.listen(claim, READING)
        assert (await one.until_answered("x")).body == b"late"


async def test_results_which_may_be_large_are_read_a_few_at_once(process, client):
    async with process() as one:
        # Given results of 3 MB, one that is too large to be read, and a key with no result,
        missing, ids = [f"missing-{n}" for n in range(1_000)], [f"large-{n}" for n in range(9)]
        for task_id in ids:
            client.set(one.results.prefix + task_id, task_id * 400_000)
        client.setrange(one.results.prefix + "huge", 400_000_000, "x")
        client.rpush(one.results.prefix + "odd", "x")
        client.config_resetstat()
        # when all are read, then it is in five commands, two of them for what is missing.
        found = [each async for each in one.results.stored([*missing, "odd", "huge", *ids])]
        texts = [(task_id, task_id.encode() * 400_000) for task_id in ids]
        assert found == [("huge", 400_000_001), *texts]
        calls = client.info("commandstats")
        assert sum(calls.get(f"cmdstat_{n}", {}).get("calls", 0) for n in ("eval", "evalsha")) == 7
        assert [each async for each in one.results.stored([])] == []


async def test_a_store_that_refuses_is_asked_again(process, client, caplog):
    async with process(result_expires=OFTEN) as one:
        client.execute_command("ACL SETUSER", "default", "-strlen")
        try:
            claim = await one.listened_for("x")
            client.set(key(claim), result("late"))
            await eventually(lambda: "cannot fetch the results of unattended tasks" in caplog.text)
            assert await one.answer("x") is None
        finally:
            client.execute_command("ACL SETUSER", "default", "+strlen")
        assert (await one.until_answered("x")).body == b"late"


async def test_when_there_are_too_many_the_oldest_is_dropped(process, client):
    async with process(max_in_flight=2) as one:
        claims = [await one.listened_for(name) for name in ("a", "b", "c")]
        await eventually(lambda: heard(client) == {key(claim) for claim in claims[1:]})
        for claim in claims:
            client.publish(key(claim), result("late"))
        for name in ("b", "c"):
            assert (await one.until_answered(name)).body == b"late"
        assert await one.answer("a") is None


async def test_nobody_listens_beyond_the_claims_window(process, client):
    async with process(result_expires=OFTEN, idempotency_window=3_600) as one:
        claim = await one.publish("x")
        claim.age = 3_600 - 0.5  # of the window of one hour
        one.unattended.listen(claim, READING)
        one.unattended.listen(claim, READING)  # as two tries do
        await eventually(lambda: key(claim) in heard(client))
        await eventually(lambda: not heard(client))


async def test_a_process_that_ends_leaves_its_claims_to_others(process, client, caplog):
    async with process(result_expires=OFTEN) as other:
        # Given claims of a process that ends, one of a route of its own, one with secret values,
        async with process(result_expires=OFTEN) as one:
            claim, own, secret = [await one.publish(name) for name in ("x", "own", "secret")]
            one.unattended.listen(claim, READING)
            one.unattended.listen(own, Reading("text/csv", "below 300", runs_once=False))
            redaction = Redaction(["header:key"])
            secret.redacted = redaction.of(Delivery("", "", {}, {}, "", {"key": "1"}, b"", "", 0.0))
            one.unattended.listen(secret, READING)
            await eventually(lambda: key(secret) in heard(client))
            odd = await one.listened_for("odd")  # whose key has something else
            await eventually(lambda: key(odd) in heard(client))
            client.delete(odd.key)
            client.rpush(odd.key, "x")
            name = one.claims._handed_over
            for damaged in ("x", "[]", f'["", {"9" * 400}, "", "", 0, "", "", 0]', "[" * 100_000):
                client.sadd(name, damaged)
        # then another process listens for their results, and reads them as that one would have;
        await eventually(lambda: heard(client) == {key(each) for each in (claim, own, secret)})
        for each in (claim, own, secret):
            client.publish(key(each), result("late"))
        assert (await other.until_answered("x")).body == b"late"
        assert (await other.until_answered("own")).content_type == "text/csv"
        # no answer is kept that may have a secret value.
        async with asyncio.timeout(60):
            while (again := await other.claims.take("secret", BODY, str(uuid4()))).state != DONE:
                await asyncio.sleep(0.01)
        assert again.answer is None and again.task_id == secret.task_id
        await eventually(lambda: client.scard(name) == 1)
        assert odd.task_id.encode() in client.srandmember(name)
        assert caplog.text.count("cannot be read") == 4
        assert "claims of ended processes cannot be taken over: WRONGTYPE" in caplog.text


async def test_claims_that_end_while_nobody_listens_are_not_taken_over(process, client):
    async def take(one: Process, name: str) -> Claim:
        return await one.claims.take(name, BODY, str(uuid4()))

    short = {"result_expires": OFTEN, "routes": [{"path": "/", "deadline": 0.2}]}
    async with process(**short) as one:
        # Given one whose result may have expired, one that is done, one that has failed,
        expired, done, failed = [await one.listened_for(n) for n in ("expired", "done", "failed")]
        one.claims.finish(done, Answer(200, "", b"done"))
        one.claims.fail(failed, "E")
        async with asyncio.timeout(30):
            while client.exists(failed.key) or client.get(done.key)[:1] != b"D":
                await asyncio.sleep(0.01)
    until = read(client.get(expired.key)).until / 1000
    await eventually(lambda: client.time()[0] > until)
    async with process(**short) as one:
        name = one.claims._handed_over
        # then nobody listens for them, and the first runs again.
        await eventually(lambda: not client.exists(name))
        assert not one.unattended.awaited
        assert (await take(one, "expired")).state == LAPSED
        assert (await take(one, "done")).answer.body == b"done"


async def test_all_claims_are_taken_over_for_which_there_is_room(process, client):
    async with process() as one:
        claims = [await one.listened_for(f"n{number}") for number in range(1_200)]
    async with process(max_in_flight=1_100) as other:
        await eventually(lambda: len(other.unattended.awaited) == 1_100)
        assert client.scard(other.claims._handed_over) == 100
        async with process() as third:
            await eventually(lambda: len(third.unattended.awaited) == 100)
        left = {*other.unattended.awaited, *third.unattended.awaited}
        assert left == {claim.task_id for claim in claims}


async def test_a_process_ends_while_it_asks_a_store_that_does_not_answer(
    process, redis_server, caplog
):
    async with process() as one:
        claim = await one.publish("x")
        with redis_server.frozen():
            one.unattended.listen(claim, READING)
            await one.unattended.stop()
        assert "claims could not be handed over to other processes" in caplog.text
        assert not any("UnattendedTasks" in repr(task) for task in asyncio.all_tasks())


async def test_a_claim_lasts_while_its_task_runs_and_is_listened_for(process, client):
    async def until(one: Process, name: str) -> float:
        return (await one.claims.take(name, BODY, str(uuid4()), rerun=False)).lease

    async with process(result_expires=OFTEN, routes=[{"path": "/", "deadline": 0.2}]) as one:
        # Given a task that takes longer than its result would be kept,
        await one.listened_for("x")
        await one.publish("nobody")
        async with asyncio.timeout(30):
            while await until(one, "nobody") >= 0:
                await asyncio.sleep(0.01)
        # the next try does not run it again, unless nobody listens for its result.
        assert (await one.claims.take("x", BODY, str(uuid4()))).state == CONFIRMED
        assert (await one.claims.take("nobody", BODY, str(uuid4()))).state == LAPSED
