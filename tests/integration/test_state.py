"""Claims' store is away, comes back empty, hangs, is full; limits on what is under way."""

from __future__ import annotations

import asyncio
import itertools
from time import monotonic

import pytest

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
from tests.support.config import route
from tests.support.http_client import Answer
from tests.support.requests import is_ready, metric
from tests.support.stack import Server, Stack
from tests.support.waiting import eventually

OPEN = route("/open")
#: What `without_state` says.
WITHOUT = ("refuse", "relay")
PROMPT = 2.5  # seconds until a store that hangs is given up
WORKER = {"concurrency": 10}


@pytest.fixture(scope="module")
def state(start, stack: Stack) -> Server:
    """A Redis of their own for claims: it is killed and frozen."""
    return start(stack.redis)


@pytest.fixture(scope="module")
def gateways(servers: Servers, state: Server) -> dict[str, Server]:
    """One for each thing to do without claims; each test uses both at once."""

    def config(without: str) -> str:
        return f'state_url = "{state.url}"\nwithout_state = "{without}"\n{KEYED}{OPEN}'

    return servers.each({name: ("redis", config(name)) for name in WITHOUT})


async def use(gateways: dict[str, Server], state: Server) -> None:
    """Deliver until claims are taken again."""
    for name, gateway in gateways.items():
        for n in itertools.count():
            key = f"use-{name}-{n}-{monotonic()}"
            if (await deliver(gateway, key)).status == 200 and claim(state, key):
                break


async def copies(gateways: dict[str, Server], number: int, key: str, until: str = "") -> None:
    """Deliver so many of the key with each gateway's name, at once, and look at the answers."""

    async def of(name: str, gateway: Server) -> None:
        own = f"{key}-{name}"
        answers = await gather(*(deliver(gateway, own, until=until) for _ in range(number)))
        assert {(a.status, a.body) for a in answers} == {(200, own.encode())}

    await gather(*(of(*each) for each in gateways.items()))


def test_claims_live_where_they_were_told_to(servers, gateways, state):
    run(copies(gateways, 20, "lives"))

    for without in gateways:
        name = f"lives-{without}"
        assert len(servers.executions(name)) == 1
        assert state_of(state, name) == "done"
        assert claim(servers.results, name) is None
    run(eventually(lambda: channels(state) + channels(servers.results) == []))


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_without_claims_deliveries_are_refused_or_relayed(servers, gateways, state, fault):
    refusing, relaying = gateways["refuse"], gateways["relay"]

    async def some(name: str) -> tuple[list[Answer], Answer, float]:
        gateway, began = gateways[name], monotonic()
        away = await gather(*(deliver(gateway, f"{fault}-{name}-{n}") for n in range(25)))
        open_route = await send(gateway, "/open", f"open-{fault}-{name}")
        return away, open_route, monotonic() - began

    if fault == "killed":
        state.kill()
    else:
        state.freeze()
    try:
        refused, relayed = run(gather(*map(some, gateways)))
        for gateway in gateways.values():
            run(eventually(lambda g=gateway: metric(g, "gateway_in_flight") == 0))
        run(eventually(lambda: not is_ready(refusing, "/keyed")))
        # Who can do without is as ready as ever.
        assert is_ready(relaying, "/keyed")
    finally:
        if fault == "killed":
            state.restart()
        else:
            state.thaw()
    run(use(gateways, state))
    run(copies(gateways, 1, f"{fault}-again"))
    for name, gateway in gateways.items():
        key = f"{fault}-{name}-0"
        joined = run(gather(*(deliver(gateway, key, seconds=0.2) for _ in range(10))))
        assert {(a.status, a.body) for a in joined} == {(200, key.encode())}

    for _, open_route, seconds in (refused, relayed):
        assert seconds < PROMPT
        assert open_route.status == 200
    assert {a.type for a in refused[0]} == {"state-unavailable"}
    assert {a.headers["retry-after"] for a in refused[0]} == {"1"}
    assert [a.body.decode() for a in relayed[0]] == [f"{fault}-relay-{n}" for n in range(25)]
    assert [one.id for one in servers.executions(f"{fault}-refuse-")] == [f"{fault}-refuse-0"]
    for name in gateways:
        assert len(servers.executions(f"{fault}-again-{name}")) == 1
    # What was relayed without a claim is run again when it comes again.
    done = [one.id for one in servers.executions(f"{fault}-relay-")]
    assert len(set(done)) == 25
    assert done.count(f"{fault}-relay-0") <= 2
    run(eventually(lambda: channels(state) + channels(servers.results) == []))


def test_refused_deliveries_leave_room_for_others(servers, state):
    room = "max_body = 40000\nmax_in_flight_bytes = 250000\n"
    config = f'state_url = "{state.url}"\n{room}' + KEYED + OPEN
    gateways = servers.each({name: (name, config) for name in ("redis", "pika")}).values()
    large = "x" * 30_000

    async def away(gateway: Server) -> list[Answer]:
        some = []
        for turn in range(3):
            keys = [f"Idempotency-Key: {turn}-{n}" for n in range(3)]
            some += await gather(*(send(gateway, "/keyed", large, key) for key in keys))
        return [*some, *await gather(*(send(gateway, "/open", large) for _ in range(2)))]

    run(gather(*(deliver(gateway, "before", path="/open") for gateway in gateways)))
    with state.frozen():
        answers = run(gather(*map(away, gateways)))

    for of_one in answers:
        assert [a.type for a in of_one[:9]] == ["state-unavailable"] * 9
        assert [a.status for a in of_one[9:]] == [200, 200]


def test_a_full_store_is_an_error_that_can_be_seen(servers, gateways, state):
    run(use(gateways, state))
    with state.client as client:
        client.config_set("maxmemory", "1mb")
        try:
            refused, relayed = (run(deliver(gateways[name], f"full-{name}")) for name in WITHOUT)
        finally:
            client.config_set("maxmemory", 0)

    assert refused.type == "state-unavailable"
    assert relayed.body == b"full-relay"
    run(copies(gateways, 1, "full-after"))


#: Two limits that five bodies of 10,000 bytes reach, with their messages.
LIMITS = ("max_in_flight = 5", "max_in_flight_bytes = 115000\nmax_body = 40000")


def test_what_is_one_too_many_is_refused_at_once(servers):
    configs = {limit: ("redis", f"{limit}\n{KEYED}{OPEN}") for limit in LIMITS}
    gateways = servers.each(configs).values()

    async def fill(gateway: Server, key: str) -> tuple[list[Answer], list[Answer]]:
        # Ten thousand bytes each, and as many of a message, which is kept where it has a key.
        path = f"/keyed?until={key}"
        keyed = path, f"{9:010000}", f"Idempotency-Key: {key}"
        others = ((path, f"{n:010000}", f"Idempotency-Key: {key}-{n}") for n in range(4))
        some = [send(gateway, *each) for each in (*others, keyed)]
        waiting = [asyncio.create_task(one) for one in some]
        await eventually(lambda: metric(gateway, "gateway_in_flight") == 5)
        refused = await gather(send(gateway, "/open", "0123456789" * 1_000), send(gateway, *keyed))
        servers.release(key)
        return refused, await asyncio.gather(*waiting)

    keys = [f"limit-{n}" for n in range(len(gateways))]
    for gateway, (refused, answers) in zip(
        gateways, run(gather(*map(fill, gateways, keys))), strict=True
    ):
        after = run(send(gateway, "/open", "0123456789"))
        assert {a.type for a in refused} == {"full"}
        assert {a.headers["retry-after"] for a in refused} == {"1"}
        assert {a.status for a in [*answers, after]} == {200}
        gateway.stop()
