"""Claims on a real Redis: what any two processes do to one at the same moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest
import redis

from gateway.answer import Answer
from gateway.claim import (
    CONFIRMED,
    DONE,
    FAILED,
    LAPSED,
    MINE,
    PUBLISHING,
    RELEASED,
    Claim,
)
from gateway.claims import Claims
from gateway.config import Config
from gateway.errors import KeyConflict, StateUnavailable
from gateway.stack import Server
from tests.integration.deliveries import until

SUCCESS = Answer(200, "text/plain", b"\x00done\xff", {"X-Slack-No-Retry": "1"})
Work = Callable[[Claims, Claims], Awaitable[Any]]


@pytest.fixture
def two(redis_server: Server) -> Callable[[Work], Any]:
    """Run something with the claims of two processes, on an empty Redis."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushdb()
    return lambda work, **settings: asyncio.run(with_claims(redis_server.url, work, settings))


async def with_claims(url: str, work: Work, settings: dict[str, Any]) -> Any:
    config = Config(result_backend=url, **settings)
    some = Claims(config), Claims(config)
    for claims in some:
        await claims.start()
    try:
        return await work(*some)
    finally:
        for claims in some:
            await claims.stop()


def lapse(server: Server, claim: Claim) -> None:
    """Have the claim's lease, or the time that its result is kept, end now."""
    with redis.Redis.from_url(server.url) as client:
        client.hset(claim.key, "until", 1)


def test_one_of_many_gets_it_and_the_others_its_task(two):
    async def work(a: Claims, b: Claims) -> list[Claim]:
        taken = [c.take("x", "digest", f"task-{n}") for n, c in enumerate([a, b] * 500)]
        return await asyncio.gather(*taken)

    claims = two(work)

    (mine,) = (claim for claim in claims if claim.state == MINE)
    assert {claim.state for claim in claims} == {MINE, PUBLISHING}
    assert {claim.task_id for claim in claims} == {mine.owner}
    assert sorted(claim.tries for claim in claims) == list(range(1, 1001))


def test_one_of_many_takes_over_a_lapsed_lease(two, redis_server):
    async def work(a: Claims, b: Claims) -> list[Claim]:
        first = await a.take("x", "digest", "first")
        lapse(redis_server, first)
        return await asyncio.gather(
            *(c.take("x", "digest", f"{n}") for n, c in enumerate([a, b] * 50))
        )

    claims = two(work)

    assert Counter(c.state for c in claims) == {LAPSED: 1, PUBLISHING: 99}
    assert {claim.task_id for claim in claims} == {"first"}


def test_only_whoever_publishes_can_say_that_it_came_to_nothing(two, redis_server):
    async def work(a: Claims, b: Claims) -> None:
        stale = await a.take("x", "digest", "a")
        lapse(redis_server, stale)
        owner = await b.take("x", "digest", "b")
        a.release(stale, certain=True)
        a.release(stale, certain=False)
        assert await a.state(stale) == (PUBLISHING, "")
        assert (await a.take("x", "digest", "c")).state == PUBLISHING
        b.release(owner, certain=True)
        assert await b.state(owner) == (RELEASED, "")

    two(work)


def test_a_late_confirm_outlives_the_takeover_s_failure(two, redis_server):
    async def work(a: Claims, b: Claims) -> None:
        stale = await a.take("x", "digest", "a")
        lapse(redis_server, stale)
        owner = await b.take("x", "digest", "b")
        a.confirm(stale)
        assert await a.state(stale) == (CONFIRMED, "")
        b.release(owner, certain=True)
        assert (await b.take("x", "digest", "c")).task_id == "a"
        # And in the other order: what the broker has taken is not run under another id.
        owner = await a.take("y", "digest", "a")
        lapse(redis_server, owner)
        takeover = await b.take("y", "digest", "b")
        b.release(takeover, certain=True)
        assert await b.state(takeover) == (RELEASED, "")
        a.confirm(owner)
        assert await a.state(owner) == (CONFIRMED, "")
        joined = await b.take("y", "digest", "c")
        assert (joined.state, joined.task_id) == (CONFIRMED, "a")

    two(work)


def test_what_the_broker_may_have_taken_is_published_under_the_same_id(two):
    async def work(a: Claims, b: Claims) -> tuple[Claim, Claim]:
        first = await a.take("x", "digest", "a")
        a.release(first, certain=False)
        assert await a.state(first) == (RELEASED, "")
        again = await a.take("x", "digest", "b")
        a.release(again, certain=True)
        await a.state(again)
        return again, await b.take("x", "digest", "c")

    again, anew = two(work)

    assert (again.state, again.task_id, again.owner) == (LAPSED, "a", "b")
    assert (anew.state, anew.task_id) == (MINE, "c")


def test_a_release_keeps_count_while_the_sender_tries(two):
    async def work(a: Claims, b: Claims) -> tuple[Claim, Claim, Claim]:
        first = await a.take("x", "digest", "1", span=0.4)
        await asyncio.sleep(0.2)
        a.release(first, certain=True)
        await a.state(first)
        second = await b.take("x", "other", "2", span=0.4)
        b.fail(second, "ValueError")
        await b.state(second)
        await asyncio.sleep(0.3)
        return first, second, await b.take("x", "other", "3", span=0.4)

    first, second, much_later = two(work)

    assert (first.state, second.state, much_later.state) == (MINE, MINE, MINE)
    assert (first.tries, second.tries, much_later.tries) == (1, 2, 1)
    assert 0.2 <= second.age < 0.4
    assert much_later.age == 0


def test_another_look_is_no_other_try(two):
    async def work(a: Claims, b: Claims) -> list[int]:
        await a.take("x", "digest", "1")
        await a.take("x", "digest", "2", again=True)
        looked = await a.take("x", "digest", "3", again=True)
        alone = await b.take("y", "digest", "4", again=True)
        return [looked.tries, (await a.take("x", "digest", "5")).tries, alone.tries]

    assert two(work) == [1, 2, 1]


def test_the_first_answer_stays(two):
    async def work(a: Claims, b: Claims) -> tuple[Claim, Claim]:
        owner = await a.take("x", "digest", "a")
        joined = await b.take("x", "digest", "b")
        a.confirm(owner)
        b.finish(joined, SUCCESS)
        await b.state(joined)
        a.finish(owner, Answer(200, "", b"another"))
        a.fail(owner, "ValueError")
        a.release(owner, certain=True)
        a.confirm(owner)
        assert await a.state(owner) == (DONE, "")
        return owner, await a.take("x", "digest", "c")

    owner, later = two(work)

    assert (later.state, later.answer, later.task_id) == (DONE, SUCCESS, "a")
    assert owner.answer is None


def test_a_failure_is_heard_of_by_those_who_wait_and_not_brought_back(two):
    async def work(a: Claims, b: Claims) -> tuple[Claim, tuple[str, str]]:
        owner = await a.take("x", "digest", "a")
        joined = await b.take("x", "digest", "b")
        a.fail(owner, "Fehler\ud800: too: many")
        assert await b.state(joined) == (FAILED, "Fehler?: too: many")
        a.confirm(owner)  # late
        a.finish(owner, SUCCESS)
        assert await b.state(joined) == (FAILED, "Fehler?: too: many")
        anew = await b.take("x", "digest", "c")
        a.fail(owner, "ValueError")
        return anew, await b.state(anew)

    anew, state = two(work)

    assert (anew.state, anew.task_id) == (MINE, "c")
    assert state == (PUBLISHING, "")


def test_another_body_is_refused_without_a_trace(two, redis_server):
    async def work(a: Claims, b: Claims) -> Claim:
        first = await a.take("x", "one", "a", strict=True)
        lapse(redis_server, first)
        with pytest.raises(KeyConflict):
            await b.take("x", "two", "b", strict=True)
        return await b.take("x", "one", "c", strict=True)

    claim = two(work)

    # Neither counted nor given the lease.
    assert (claim.state, claim.tries, claim.task_id) == (LAPSED, 2, "a")


def test_an_expired_result_is_run_for_again_only_where_it_is_needed(two, redis_server):
    async def work(a: Claims, b: Claims) -> tuple[Claim, Claim]:
        first = await a.take("x", "digest", "a")
        a.confirm(first)
        await a.state(first)
        lapse(redis_server, first)
        return (
            await b.take("x", "digest", "b", rerun=False),
            await b.take("x", "digest", "c", rerun=True),
        )

    accepted, again = two(work)

    assert (accepted.state, accepted.lease < 0) == (CONFIRMED, True)
    # The same id: the message may still lie in its queue.
    assert (again.state, again.task_id) == (LAPSED, "a")


def test_a_claim_that_redis_has_lost_is_restored(two, redis_server):
    async def work(a: Claims, b: Claims) -> tuple[Claim, Claim]:
        first, second = await a.take("x", "1", "a"), await a.take("y", "2", "b")
        with redis.Redis.from_url(redis_server.url) as client:
            client.flushall()
        a.confirm(first)
        a.finish(second, SUCCESS)
        await a.state(second)
        return await b.take("x", "1", "c"), await b.take("y", "2", "d", strict=True)

    confirmed, done = two(work)

    assert (confirmed.state, confirmed.task_id, confirmed.digest) == (CONFIRMED, "a", "1")
    assert (done.state, done.answer) == (DONE, SUCCESS)


def test_a_lease_is_renewed_while_its_message_waits(two):
    async def work(a: Claims, b: Claims) -> list[str]:
        held = await a.take("x", "digest", "a")
        left = await a.take("y", "digest", "b")
        a.hold(held, monotonic() + 2.0)
        await asyncio.sleep(held.lease + 0.1)
        states = [(await b.take(name, "digest", "c")).state for name in "xy"]
        await asyncio.sleep(held.lease + 1)
        assert left.lease == pytest.approx(1.1)
        return [*states, (await b.take("x", "digest", "d")).state]

    # The second one's time is over.
    assert two(work, confirm_timeout=0.1) == [PUBLISHING, LAPSED, LAPSED]


def test_what_is_written_is_tried_again_until_redis_is_back(start, stack):
    server = start(stack.redis)

    async def work(a: Claims, b: Claims) -> tuple[float, Claim]:
        claim = await a.take("x", "digest", "a")
        server.kill()
        a.confirm(claim)
        began = monotonic()
        with pytest.raises(StateUnavailable):
            await b.take("x", "digest", "b")
        with pytest.raises(StateUnavailable):
            await b.state(claim)
        seconds = monotonic() - began
        await asyncio.to_thread(server.restart)
        await until(lambda: keys(server))
        return seconds, await b.take("x", "digest", "c")

    seconds, claim = asyncio.run(with_claims(server.url, work, {}))

    assert seconds < 4
    assert (claim.state, claim.task_id) == (CONFIRMED, "a")
    server.stop()


def keys(server: Server) -> list[bytes]:
    with redis.Redis.from_url(server.url) as client:
        return client.keys("*")
