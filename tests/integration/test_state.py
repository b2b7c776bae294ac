"""Claims' store is away, comes back empty, hangs, is full; limits on what is under way."""

from __future__ import annotations

import asyncio
import itertools
from time import monotonic

import pytest
import redis

from gateway.stack.loopback import answers_ok
from tests.integration.deliveries import (
    KEYED,
    Servers,
    channels,
    claim,
    deliver,
    gather,
    run,
    send,
    state_of,
)
from tests.support.requests import metric
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import eventually

OPEN = """
[[routes]]
path = "/open"
task = "faults.run"
"""
PROMPT = 2.5  # seconds until a store that hangs is given up


@pytest.fixture(scope="module")
def servers(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Servers:
    servers = Servers(stack, rabbitmq, redis_server)
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def state(start, stack: Stack) -> Server:
    """A Redis of their own for claims: it is killed and frozen."""
    state = start(stack.redis)
    yield state
    state.stop()


@pytest.fixture(scope="module", params=["refuse", "relay"])
def gateway(request: pytest.FixtureRequest, servers: Servers, state: Server) -> Server:
    config = f'state_url = "{state.url}"\nwithout_state = "{request.param}"\n' + KEYED + OPEN
    gateway = servers.gateway("redis", config)
    gateway.without = request.param
    yield gateway
    gateway.stop()


def is_ready(gateway: Server) -> bool:
    return answers_ok(int(gateway.admin_url.rpartition(":")[2]), "/readyz")


async def use(gateway: Server, state: Server) -> None:
    """Deliver until claims are taken again."""
    for n in itertools.count():
        key = f"use-{gateway.without}-{n}-{monotonic()}"
        if (await deliver(gateway, key)).status == 200 and claim(state, key):
            return


def test_claims_live_where_they_were_told_to(servers, gateway, state):
    name = f"lives-{gateway.without}"
    answers = run(gather(*(deliver(gateway, name, seconds=0.3) for _ in range(20))))

    assert {(a.status, a.body) for a in answers} == {(200, name.encode())}
    assert len(servers.executions(name)) == 1
    assert state_of(state, name) == "done"
    assert claim(servers.results, name) is None
    run(eventually(lambda: channels(state) + channels(servers.results) == []))


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_without_claims_deliveries_are_refused_or_relayed(servers, gateway, state, fault):
    name = f"{fault}-{gateway.without}"
    if fault == "killed":
        state.kill()
    else:
        state.freeze()
    try:
        began = monotonic()
        away = run(gather(*(deliver(gateway, f"{name}-{n}") for n in range(50))))
        open_route = run(send(gateway, "/open", f"open-{name}"))
        seconds = monotonic() - began
        run(eventually(lambda: metric(gateway, "gateway_in_flight") == 0))
        # Who can do without is as ready as ever.
        run(eventually(lambda: is_ready(gateway) is (gateway.without == "relay")))
    finally:
        if fault == "killed":
            state.restart()
        else:
            state.thaw()
    run(use(gateway, state))
    again = run(deliver(gateway, f"{name}-again"))
    joined = run(gather(*(deliver(gateway, f"{name}-0", seconds=0.2) for _ in range(10))))

    assert seconds < PROMPT
    assert open_route.status == 200
    if gateway.without == "refuse":
        assert {a.type for a in away} == {"state-unavailable"}
        assert {a.headers["retry-after"] for a in away} == {"1"}
    else:
        assert [a.body.decode() for a in away] == [f"{name}-{n}" for n in range(50)]
    assert (again.status, again.body) == (200, f"{name}-again".encode())
    assert {(a.status, a.body) for a in joined} == {(200, f"{name}-0".encode())}
    done = servers.executions(f"{name}-")
    if gateway.without == "refuse":
        assert sorted(one.id for one in done) == [f"{name}-0", f"{name}-again"]
    else:
        # What was relayed without a claim is run again when it comes again.
        assert len({one.id for one in done}) == 51
        assert sum(one.id == f"{name}-0" for one in done) <= 2
    run(eventually(lambda: channels(state) + channels(servers.results) == []))


def test_claims_that_were_lost_are_written_again(servers, gateway, state):
    name = f"lost-{gateway.without}"

    async def lose() -> list:
        await use(gateway, state)
        first = asyncio.create_task(deliver(gateway, name, seconds=1.5))
        await eventually(lambda: state_of(state, name) == "confirmed")
        await asyncio.to_thread(state.kill)
        await asyncio.to_thread(state.restart)
        answer = await first
        await eventually(lambda: state_of(state, name) == "done")
        return [answer, await deliver(gateway, name)]

    answers = run(lose())

    assert {(a.status, a.body) for a in answers} == {(200, name.encode())}
    assert len(servers.executions(name)) == 1


def test_a_full_store_is_an_error_that_can_be_seen(servers, gateway, state):
    run(use(gateway, state))
    name = f"full-{gateway.without}"
    with redis.Redis.from_url(state.url) as client:
        client.config_set("maxmemory", "1mb")
        try:
            full = run(deliver(gateway, name))
        finally:
            client.config_set("maxmemory", 0)
    after = run(deliver(gateway, f"{name}-after"))

    if gateway.without == "refuse":
        assert full.type == "state-unavailable"
    else:
        assert full.body == name.encode()
    assert after.status == 200


@pytest.mark.parametrize("strategy", ["redis", "pika"])
def test_those_that_wait_are_answered_though_their_subscription_is_cut(servers, strategy):
    gateway = servers.gateway(strategy, KEYED)
    name = f"cut-{strategy}"

    async def cut() -> list:
        some = [asyncio.create_task(deliver(gateway, name, seconds=1.5)) for _ in range(21)]
        await eventually(lambda: len(channels(servers.results)) == 2)
        with redis.Redis.from_url(servers.results.url) as client:
            while not all(one.done() for one in some):
                client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                await asyncio.sleep(0.3)
        return await asyncio.gather(*some)

    answers = run(cut())

    assert {(a.status, a.body) for a in answers} == {(200, name.encode())}
    assert len(servers.executions(name)) == 1
    run(eventually(lambda: channels(servers.results) == []))
    assert metric(gateway, "gateway_in_flight") == 0
    gateway.stop()


#: Bodies of 10,000 bytes, with their messages, and not one more.
FIVE_BODIES = "max_in_flight_bytes = 115000\nmax_body = 40000"


@pytest.mark.parametrize("limit", ["max_in_flight = 5", FIVE_BODIES])
def test_what_is_one_too_many_is_refused_at_once(servers, limit):
    gateway = servers.gateway("redis", f"{limit}\n{KEYED}{OPEN}")
    name = limit.split()[0]

    async def fill() -> tuple[list, list]:
        # Ten thousand bytes each, those that join included.
        some = [send(gateway, "/open?seconds=0.8", f"{n:010000}") for n in range(4)]
        some.append(send(gateway, "/keyed?seconds=0.8", f"{9:010000}", f"Idempotency-Key: {name}"))
        waiting = [asyncio.create_task(one) for one in some]
        await eventually(lambda: metric(gateway, "gateway_in_flight") == 5)
        refused = await gather(
            send(gateway, "/open", "0123456789" * 1_000),
            send(gateway, "/keyed", f"{9:010000}", f"Idempotency-Key: {name}"),
        )
        return refused, await asyncio.gather(*waiting)

    refused, answers = run(fill())
    after = run(send(gateway, "/open", "0123456789"))

    assert {a.type for a in refused} == {"full"}
    assert {a.headers["retry-after"] for a in refused} == {"1"}
    assert {a.status for a in [*answers, after]} == {200}
    gateway.stop()
