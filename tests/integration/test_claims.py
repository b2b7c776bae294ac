"""Claims on real servers of each kind: what any two processes do to one at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from math import inf
from time import monotonic
from typing import Any
from uuid import UUID

import pytest

from gateway.answer import TEXT, Answer, of_outcome
from gateway.celery_message import TaskIds
from gateway.claims.claim import (
    CONFIRMED,
    DONE,
    FAILED,
    LAPSED,
    MINE,
    PUBLISHING,
    RELEASED,
    Claim,
    Record,
    claim_key,
    read,
)
from gateway.claims.store import Claims
from gateway.config.settings import Config
from gateway.errors import KeyConflict, StateUnavailable, Unanswered
from gateway.outcome import FAILURE, Outcome
from gateway.relay.further_tasks import TakenTasks
from gateway.stores.pipeline import Arg
from tests.support.parts import started
from tests.support.redis_kinds import KINDS, redis_of
from tests.support.stack import Server
from tests.support.waiting import eventually

Two = AbstractAsyncContextManager[tuple[Claims, Claims]]
SUCCESS = Answer(200, "text/plain", b"\x00done\xff", {"X-Slack-No-Retry": "1"})


@pytest.fixture(scope="module", params=KINDS)
def redis_server(request, stack, certificates) -> Server:
    return redis_of(request.param, stack, certificates)


@pytest.fixture
def two(redis_server: Server, patient: None) -> Callable[..., Two]:
    """The claims of two processes, on an empty Redis.

    No lease ends by itself before the test does, unless `confirm_timeout` is a test's own.
    """
    redis_server.client.flushdb()
    return partial(both, redis_server.state, confirm_timeout=60)


@asynccontextmanager
async def both(url: str, **settings: Any) -> AsyncIterator[tuple[Claims, Claims]]:
    config = Config(state_url=url, **settings)
    async with claims_of(config) as a, claims_of(config) as b:
        yield a, b


@asynccontextmanager
async def claims_of(config: Config) -> AsyncIterator[Claims]:
    """The claims of one process, whose store has answered for long."""
    async with started(Claims(config)) as claims:
        await eventually(lambda: not claims.redis.error)
        claims.redis.well_since = lambda _key: 0.0  # though it connects to a node again
        yield claims


def lapse(server: Server, claim: Claim, until: int = 1) -> None:
    """Have the claim's lease, or the time that its result is kept, end at `until` (ms)."""
    with server.client as client:
        before = read(client.get(claim.key)).until.to_bytes(6)
        value = client.get(claim.key).replace(before, until.to_bytes(6))
        client.set(claim.key, value, keepttl=True)


def shift(server: Server, claim: Claim, seconds: float) -> None:
    """Have the first try of the claim been `seconds` later."""
    with server.client as client:
        first = read(client.get(claim.key)).first
        shifted = (first + int(seconds * 1000)).to_bytes(6)
        value = client.get(claim.key).replace(first.to_bytes(6), shifted)
        client.set(claim.key, value, keepttl=True)


def read_claim(server: Server, claim: Claim) -> Record:
    return read(server.client.get(claim.key))


def task(name: str) -> str:
    """Return the task id that a test calls `name`."""
    return str(UUID(bytes=name.encode().rjust(16, b"-")))


async def test_one_of_many_gets_it_and_the_others_its_task(two):
    async with two() as (a, b):
        taken = [c.take("x", b"digest", task(f"task-{n}")) for n, c in enumerate([a, b] * 500)]
        claims = await asyncio.gather(*taken)

    (mine,) = (claim for claim in claims if claim.state == MINE)
    assert {claim.state for claim in claims} == {MINE, PUBLISHING}
    assert {claim.task_id for claim in claims} == {mine.owner}
    assert sorted(claim.tries for claim in claims) == [min(n, 256) for n in range(1, 1001)]


async def test_after_an_outage_a_lapsed_lease_is_left_to_its_owner_for_a_while(two, redis_server):
    async with two() as (a, b):
        claim = await a.take("x", b"", task("a"))
        lapse(redis_server, claim)
        b.redis.well_since = lambda _key: monotonic()
        left = await b.take("x", b"", task("b"))
        assert (left.state, left.task_id, left.ours) == (PUBLISHING, task("a"), False)
        assert left.lease > 0
        a.hold(claim, monotonic() + 60)
        await eventually(lambda: read_claim(redis_server, claim).until > 1)


async def test_a_late_confirm_outlives_the_takeover_s_failure(two, redis_server):
    async with two() as (a, b):
        stale = await a.take("x", b"digest", task("a"))
        lapse(redis_server, stale)
        owner = await b.take("x", b"digest", task("b"))
        a.confirm(stale)
        assert await a.state(stale) == (CONFIRMED, None)
        b.release(owner, not_taken=True)
        assert (await b.take("x", b"digest", task("c"))).task_id == task("a")
        # And in the other order: what the broker has taken is not run under another id.
        owner = await a.take("y", b"digest", task("a"))
        lapse(redis_server, owner)
        takeover = await b.take("y", b"digest", task("b"))
        b.release(takeover, not_taken=True)
        assert await b.state(takeover) == (RELEASED, None)
        a.confirm(owner)
        assert await a.state(owner) == (CONFIRMED, None)
        joined = await b.take("y", b"digest", task("c"))
        assert (joined.state, joined.task_id) == (CONFIRMED, task("a"))


async def test_a_lost_reply_to_a_takeover_forgets_no_task_id(start, stack):
    server = start(stack.redis)

    async with both(server.url) as (a, b):
        first = await a.take("x", b"digest", task("a"))
        a.release(first, not_taken=False)
        assert await a.state(first) == (RELEASED, None)
        await b.take("y", b"digest", task("y"))  # it is connected: what it asks for arrives
        server.freeze()
        with pytest.raises(StateUnavailable):
            await b.take("x", b"digest", task("b"))
        server.thaw()
        await eventually(lambda: read_claim(server, first).tries == 2)  # it was taken all the same
        while (claim := await a.take("x", b"digest", task("c"), again=True)).state == PUBLISHING:
            await asyncio.sleep(0.02)  # until its release is written, or its lease lapses

    assert (claim.state, claim.task_id) == (LAPSED, task("a"))


# Redis rounds up what it allocates, by a quarter at the most. Its tables have 8,192 or 4,096 places
# for these numbers, and so for each claim as many as for the millions of a day at the worst.
@pytest.mark.parametrize(
    ("size", "number", "most"), [(2, 5_000, 200), (500, 5_000, 825), (2_048, 2_500, 2_760)]
)
async def test_a_claim_takes_no_more_memory_than_is_said(start, stack, patient, size, number, most):
    server = start(stack.redis)

    async with both(server.url) as (a, _b):
        ids = TaskIds()

        async def claims(numbers: range) -> None:
            taken = await asyncio.gather(*(a.take(f"x-{n}", b"digest", ids.new()) for n in numbers))
            for claim in taken:
                a.finish(claim, Answer(200, TEXT, b"." * size))
            # What is written last is read last.
            assert await a.state(taken[-1]) == (DONE, None)

        await claims(range(100))  # after which Redis has buffers and scripts
        before = memory(server)
        for n in range(100, number + 100, 100):
            await claims(range(n, n + 100))
        used = memory(server) - before

    assert server.client.dbsize() == number + 100
    assert used / number <= most


def memory(server: Server) -> int:
    return server.client.info("memory")["used_memory"]


async def test_a_large_answer_is_not_kept_beside_its_claim(two):
    async with two() as (a, b):
        for name, size in (("x", 2_048), ("y", 2_049)):
            owner = await a.take(name, b"digest", task(name))
            a.finish(owner, Answer(200, TEXT, b"." * size))
            assert await a.state(owner) == (DONE, None)
        small, large = [await b.take(name, b"digest", task("b")) for name in "xy"]

    assert (small.state, len(small.answer.body)) == (DONE, 2_048)
    assert (large.state, large.answer, large.task_id) == (DONE, None, task("y"))


async def test_two_deployments_share_no_claims(redis_server, patient):
    async def take(**settings: Any) -> str:
        async with claims_of(Config(state_url=redis_server.state, **settings)) as claims:
            return (await claims.take("x", b"digest", TaskIds().new())).state

    redis_server.client.flushdb()
    assert await take() == MINE
    assert await take(broker_url="amqp://127.0.0.1/other") == MINE
    assert await take(result_key_prefix="other") == MINE
    assert await take(state_prefix="other") == MINE
    assert await take(broker_url="amqp://127.0.0.2//") == PUBLISHING


async def test_a_release_keeps_count_while_the_sender_tries(two, redis_server):
    async with two() as (a, b):
        first = await a.take("x", b"digest", task("1"), span=60.0)
        a.release(first, not_taken=True)
        await a.state(first)
        shift(redis_server, first, -1.0)
        second = await b.take("x", b"other", task("2"), span=60.0)
        b.fail(second, "ValueError")
        await b.state(second)
        shift(redis_server, first, -60.0)
        much_later = await b.take("x", b"other", task("3"), span=60.0)

    assert (first.state, second.state, much_later.state) == (MINE, MINE, MINE)
    assert (first.tries, second.tries, much_later.tries) == (1, 2, 1)
    assert 1 <= second.age < 60
    assert much_later.age == 0


async def test_a_clock_that_was_set_back_makes_no_delivery_younger_than_new(two, redis_server):
    async with two() as (a, b):
        first = await a.take("x", b"digest", task("a"))
        shift(redis_server, first, 3600.0)
        later = await b.take("x", b"digest", task("b"))

    assert (later.state, later.age) == (PUBLISHING, 0.0)


async def test_a_clock_that_was_set_back_lengthens_no_lease(two, redis_server):
    async with two(confirm_timeout=2.0, timeout=5.0) as (a, b):
        first = await a.take("x", b"digest", task("a"))
        lapse(redis_server, first, read_claim(redis_server, first).until + 3_600_000)
        for _ in range(2):
            claim = await b.take("x", b"digest", task("b"))
            # Of a gateway whose strategy blocks: its confirm, its deadline, a second.
            assert claim.state == PUBLISHING and 7 < claim.lease <= 8


async def test_another_look_is_no_other_try(two):
    async with two() as (a, b):
        await a.take("x", b"digest", task("1"))
        await a.take("x", b"digest", task("2"), again=True)
        looked = await a.take("x", b"digest", task("3"), again=True)
        alone = await b.take("y", b"digest", task("4"), again=True)
        later = await a.take("x", b"digest", task("5"))
        assert [each.tries for each in (looked, later, alone)] == [1, 2, 1]


async def test_a_failure_is_heard_of_by_those_who_wait_and_not_brought_back(two):
    async with two() as (a, b):
        owner = await a.take("x", b"digest", task("a"))
        joined = await b.take("x", b"digest", task("b"))
        a.fail(owner, "Fehler\ud800: too: many")
        await a.state(owner)  # which is read behind what was written
        assert await b.state(joined) == (FAILED, Outcome(FAILURE, error="Fehler?: too: many"))
        a.confirm(owner)  # late
        assert await b.state(joined) == (FAILED, Outcome(FAILURE, error="Fehler?: too: many"))
        anew = await b.take("x", b"digest", task("c"))
        a.fail(owner, "ValueError")
        state = await b.state(anew)

    assert (anew.state, anew.task_id) == (MINE, task("c"))
    assert state == (PUBLISHING, None)


async def test_a_success_of_another_run_of_the_message_counts_more_than_a_failure(two):
    async with two() as (a, b):
        owner = await a.take("x", b"digest", task("a"))
        a.fail(owner, "ValueError")
        a.finish(owner, SUCCESS)
        await a.state(owner)
        later = await b.take("x", b"digest", task("b"))

    assert (later.state, later.task_id, later.answer) == (DONE, task("a"), SUCCESS)


async def test_another_body_is_refused_without_a_trace(two, redis_server):
    async with two() as (a, b):
        first = await a.take("x", b"one", task("a"), strict=True)
        lapse(redis_server, first)
        with pytest.raises(KeyConflict):
            await b.take("x", b"two", task("b"), strict=True)
        claim = await b.take("x", b"one", task("c"), strict=True)

    # Neither counted nor given the lease.
    assert (claim.state, claim.tries, claim.task_id) == (LAPSED, 2, task("a"))


async def test_a_lease_is_renewed_while_its_message_waits(two, redis_server):
    def lapsed(claim: Claim) -> bool:
        return read_claim(redis_server, claim).until == 1

    async with two() as (a, b):
        held, longer, left = [await a.take(name, b"digest", task(name)) for name in "xyz"]
        assert left.lease == pytest.approx(61)
        # Given two whose messages wait, and another,
        a.hold(held, inf)
        a.hold(longer, inf)
        for claim in (held, longer, left):
            lapse(redis_server, claim)
        # the leases of the two are renewed,
        await eventually(lambda: not lapsed(held) and not lapsed(longer))
        assert lapsed(left)
        # and the lease of one whose time is over is not.
        a.hold(held, monotonic())
        lapse(redis_server, held)
        lapse(redis_server, longer)
        await eventually(lambda: not lapsed(longer))
        assert lapsed(held)
        states = [(await b.take(name, b"digest", task("b"))).state for name in "xyz"]
        assert states == [LAPSED, PUBLISHING, LAPSED]


async def test_what_is_written_is_tried_again_until_redis_is_back(start, stack):
    server = start(stack.redis)

    async with both(server.url) as (a, b):
        claim = await a.take("x", b"digest", task("a"))
        server.kill()
        a.confirm(claim)
        began = monotonic()
        with pytest.raises(StateUnavailable):
            await b.take("x", b"digest", task("b"))
        with pytest.raises(StateUnavailable):
            await b.state(claim)
        seconds = monotonic() - began
        await asyncio.to_thread(server.restart)
        await eventually(lambda: keys(server))
        claim = await b.take("x", b"digest", task("c"))

    assert seconds < 4
    assert (claim.state, claim.task_id) == (CONFIRMED, task("a"))


def keys(server: Server) -> list[bytes]:
    return server.client.keys("*")


REFUSALS = [
    Answer(503, TEXT, b"later", {"Retry-After": "5"}), Answer(500, "", b""),
    Answer(429, "application/xml", "<n>ü</n>".encode()),
]  # fmt: skip


@pytest.mark.parametrize("given", REFUSALS)
async def test_those_who_wait_are_told_a_refusal_in_the_task_s_own_words(two, given):
    async with two() as (a, b):
        owner = await a.take("x", b"digest", task("a"))
        a.fail(owner, "", given)
        state, outcome = await a.state(owner)
        assert state == FAILED
        assert of_outcome(outcome) == given


@pytest.mark.parametrize("how", ["reply lost", "cancelled"])
async def test_a_claim_whose_try_does_not_hear_of_it_is_free(two, how):
    async with two() as (a, b):

        def lose(*command: Arg) -> asyncio.Future[Any]:
            """Let Redis execute the command, and its reply be lost."""
            lost = asyncio.get_running_loop().create_future()
            execute(*command).add_done_callback(lambda _: lost.set_exception(Unanswered("lost")))
            return lost

        await a.redis.known()
        look = ("GET", claim_key(Config().prefix, "x", bool(a.redis.clustered)))
        await a.redis.run(*look)  # the server of the claim's slot is connected
        execute = a.redis.run
        taking = asyncio.create_task(a.take("x", b"digest", task("a"), span=60))
        if how == "cancelled":  # when it was sent
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
        else:
            a.redis.run = lose
            await asyncio.sleep(0)
            a.redis.run = execute
            with pytest.raises(StateUnavailable):
                await taking
        await a.redis.run(*look)  # the commands before it are executed
        claim = await b.take("x", b"digest", task("b"), span=60)

    # Redis has counted the first try, and no task of it is waited for.
    assert (claim.state, claim.task_id, claim.tries) == (MINE, task("b"), 2)


async def test_what_is_known_of_further_tasks_expires_with_their_delivery(two, redis_server):
    async with two() as (a, _):
        taken = TakenTasks(Config(idempotency_window=100), a.redis)
        await taken.add("x", [task("first")])
        with redis_server.client as client:
            (key,) = client.keys("*also:*")
            client.pexpire(key, 1_000)
            await taken.add("x", [task("second")])  # of a later try
            assert 90_000 < client.pttl(key) <= 100_000
            assert client.scard(key) == 2
