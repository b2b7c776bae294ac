"""A Redis Cluster as `state_url`: found by itself, failed over, resharded, with a part away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis

from gateway.claims.claim import CONFIRMED, MINE, Claim, claim_key, failure_key
from gateway.claims.store import Claims
from gateway.config.settings import Config
from gateway.delivery import identity_digest
from gateway.errors import StateUnavailable
from gateway.journal.entry import FAILED, SUCCEEDED
from gateway.journal.scripts import Keys
from gateway.journal.store import FIRST_LOOK, JournalStore
from gateway.late.store import Records, due_key, record_key
from gateway.relay.further_tasks import TakenTasks
from gateway.stores.state_store import SLOTS, StateStore, slot
from tests.contract.test_journal_store import answered, begun, got, later, until_due
from tests.faults.proxy import Proxy
from tests.integration.checking import check, servers_at, write
from tests.integration.deliveries import KEYED
from tests.integration.test_claims import claims_of
from tests.integration.test_new_primary import keyed
from tests.integration.test_sentinels import take_copied
from tests.support.parts import started
from tests.support.redis_kinds import Nodes
from tests.support.requests import metric, readiness
from tests.support.stack import Server, Stack
from tests.support.waiting import eventually, until

OPEN = "\n[[routes]]\npath = '/open'\ntask = 'faults.run'\n"


@pytest.fixture
def nodes(stack: Stack) -> Nodes:
    return Nodes(stack, 3, replica=True)


@asynccontextmanager
async def claims_on(nodes: Nodes, **more: Any) -> AsyncIterator[Claims]:
    async with claims_of(Config(state_url=nodes.url, **more)) as claims:
        of = claims.redis
        async with asyncio.timeout(60):
            await eventually(lambda: len(of.nodes) == 3 and of.available == 1.0)
            yield claims


async def take(claims: Claims, identity: str) -> Claim:
    return await claims.take(identity, b"body", str(uuid4()))


async def take_all(claims: Claims, identities: list[str]) -> list[Claim]:
    return await asyncio.gather(*(take(claims, identity) for identity in identities))


def names(count: int) -> list[str]:
    return [f"delivery-{n}" for n in range(count)]


def slot_of(identity: str) -> int:
    return slot(claim_key(Config().prefix, identity, True))


def of_shard(number: int, count: int) -> list[str]:
    """Return identities whose keys are on one of three masters."""
    found = [each for each in names(500) if slot_of(each) * 3 // SLOTS == number]
    return found[:count]


@pytest.mark.parametrize("key", [b"a", b"{x}b", "{x}c", b"{}d", b"a{b", b"e{x}{y}", "a}{"])
def test_a_keys_slot_is_that_of_the_server(nodes, key):
    assert slot(key) == int(nodes.ask(nodes.masters[0], "CLUSTER", "KEYSLOT", key))


def test_all_keys_of_a_delivery_have_one_slot():
    closing = next(each for each in map(str, range(9_999)) if identity_digest(each)[0] == ord("}"))
    for identity in (closing, "b", "c"):
        claim = claim_key("gateway:/::", identity, True)
        assert slot(claim) == slot(failure_key("gateway:/::", claim, "some-task"))


def test_on_one_server_keys_have_the_names_that_older_gateways_know():
    claim = claim_key("gateway:/::", "a", False)
    assert claim == b"gateway:/::c:" + identity_digest("a")
    assert failure_key("gateway:/::", claim, "some-task") == b"gateway:/::failed:some-task"


async def test_claims_are_spread_over_the_nodes(nodes):
    async with claims_on(nodes) as claims:
        taken = await take_all(claims, names(300))
        assert {claim.state for claim in taken} == {MINE}
        for claim in taken:
            claims.confirm(claim)
        again = await take_all(claims, names(300))
        assert {claim.state for claim in again} == {CONFIRMED}
        further = TakenTasks(Config(state_url=nodes.url), claims.redis)
        await asyncio.gather(*(further.add(name, ["a", "b"]) for name in names(50)))
        assert await further.of("delivery-7", 0.0) == {"a", "b"}
    for node in nodes.masters:
        assert node.client.dbsize() > 80


async def test_a_shard_that_fails_over_is_found(nodes):
    async with claims_on(nodes) as claims:
        before = await take_all(claims, mine := of_shard(0, 20))
        with nodes.masters[0].client as client:
            await eventually(lambda: client.wait(1, 100) == 1)
        nodes.masters[0].kill()
        with pytest.raises(StateUnavailable):
            await take(claims, mine[0])
        # The others go on meanwhile.
        assert {claim.state for claim in await take_all(claims, of_shard(1, 20))} == {MINE}
        again = []
        while len(again) < len(mine):
            try:
                again.append(await take(claims, mine[len(again)]))
            except StateUnavailable:
                await asyncio.sleep(0.1)
        assert [claim.task_id for claim in again] == [claim.task_id for claim in before]
        await eventually(lambda: not claims.redis.partly and claims.redis.available == 1.0)


async def test_nothing_is_taken_twice_while_slots_move(nodes):
    source, target = nodes.masters[0], nodes.masters[1]

    async with claims_on(nodes) as claims:
        first = {name: (await take(claims, name)).task_id for name in of_shard(0, 40)}
        moving = asyncio.create_task(
            asyncio.to_thread(
                lambda: [nodes.move(each, source, target) for each in map(slot_of, first)]
            )
        )
        rounds = 0
        while not moving.done() or rounds < 2:
            rounds += moving.done()
            found = await take_all(claims, list(first))
            assert [claim.task_id for claim in found] == list(first.values())
            claims.confirm(found[0])
        await moving
        for claim in await take_all(claims, list(first)):
            claims.confirm(claim)
        found = await take_all(claims, list(first))
        assert {claim.state for claim in found} == {CONFIRMED}
    assert target.client.dbsize() == 40


async def test_a_slot_that_is_half_moved_is_asked_on_both_sides(nodes):
    source, target = nodes.masters[0], nodes.masters[1]
    here, there = of_shard(0, 2)

    async with claims_on(nodes) as claims:
        before = await take(claims, here)
        for name in (here, there):
            nodes.ask(target, "CLUSTER", "SETSLOT", slot_of(name), "IMPORTING", nodes.id(source))
            nodes.ask(source, "CLUSTER", "SETSLOT", slot_of(name), "MIGRATING", nodes.id(target))
        assert (await take(claims, here)).task_id == before.task_id
        # A new key of such a slot is made by its next node, which has no script yet.
        new = await take(claims, there)
        assert (new.state, (await take(claims, there)).task_id) == (MINE, new.task_id)
        assert target.client.dbsize() == 1


@asynccontextmanager
async def moving(nodes: Nodes, key: str, last: str) -> AsyncIterator[Callable[[], None]]:
    """Begin to move the slot of `key`; when the block ends, all of it has moved.

    Yields what moves all keys but the `last` one when it is called.
    """
    number = slot(key)
    source, target = (nodes.masters[number * 3 // SLOTS - shift] for shift in (0, 1))
    nodes.ask(target, "CLUSTER", "SETSLOT", number, "IMPORTING", nodes.id(source))
    nodes.ask(source, "CLUSTER", "SETSLOT", number, "MIGRATING", nodes.id(target))
    with redis.Redis.from_url(source.url) as client:

        def move() -> None:
            for each in client.execute_command("CLUSTER", "GETKEYSINSLOT", number, 100):
                if each != last.encode():
                    client.migrate("127.0.0.1", urlsplit(target.url).port, each, 0, 5_000)

        yield move
    nodes.move(number, source, target)


@pytest.mark.parametrize("moved", [False, True])
async def test_a_journal_waits_until_its_slot_has_moved(nodes, moved):
    config = Config(state_url=nodes.url, strategy="pika", journal=100, archive_url="sqlite:///a.db")
    keys = Keys(config)
    async with JournalStore.opened(config) as store:
        await store.write([begun("left"), answered("failed", FAILED, 502), answered("open")])
        own = [
            lambda: store.write([begun("new")]), lambda: store.write([later("left", SUCCEEDED)]),
            lambda: store.due(10, 1, 1), lambda: store.trim(10),
            lambda: store.changed(10, 1_000, 0.0), lambda: store.there(["left"]),
            lambda: anext(store.unmarked(10)), lambda: anext(store.entries(False)),
            lambda: store.failing("process", 60.0, 10), store.groups,
        ]  # fmt: skip
        await asyncio.sleep(FIRST_LOOK / 1000)  # one is due
        async with moving(nodes, keys.deliveries, keys.of("left")) as move:
            if moved:
                move()
            said = await asyncio.gather(*(each() for each in own), return_exceptions=True)
        told = {str(each).rpartition(": ")[2].partition(";")[0] for each in said}
        assert told == {"no answer in time"}
        await store.write([begun("new"), later("left", SUCCEEDED)])
        assert (await got(store, "left")).state == SUCCEEDED
        assert len(await store.changed(10, 100_000, 0.0)) == 4
        assert [each for each, _ in await until_due(store)] == ["open"]


async def test_late_answers_wait_until_their_slot_has_moved(nodes):
    config = Config(state_url=nodes.url)
    records = Records(config)
    key, due = record_key(config.prefix, "left"), due_key(config.prefix)
    async with started(records.redis) as store:
        await store.run("HSET", key, "version", 1, "record", "{}")
        await store.run("ZADD", due, 1, "left")
        async with moving(nodes, due, key) as move:
            move()
            with pytest.raises(StateUnavailable):
                await records.due()
        assert await store.run("ZCARD", due) == 1


async def test_a_claim_waits_for_the_replica_of_its_own_node(nodes):
    async with claims_on(nodes, state_replicas=1) as claims:
        assert (await take_copied(claims, of_shard(0, 1)[0], "one")).state == MINE
        with pytest.raises(StateUnavailable):  # the other nodes have no replicas
            await take(claims, of_shard(1, 1)[0])
        assert "0 of 1 replicas" in claims.uncopied


async def test_a_name_that_leads_to_a_plain_redis_again_is_followed(nodes, stack, redis_server):
    proxy = Proxy(nodes.masters[0].port)

    config = Config(state_url=f"redis://127.0.0.1:{proxy.port}/0")
    async with started(StateStore(config, "test")) as store:
        await eventually(lambda: len(store.nodes) == 3)
        proxy.lead(redis_server.port)
        proxy.reset()
        await eventually(lambda: list(store.nodes) == [None] and not store.error)
        assert await store.run("GET", "a") is None
    proxy.close()


# The whole gateway ------------------------------------------------------------------------------
WORKER = {"concurrency": 2}


@pytest.mark.parametrize("strategy", ["pika", "redis"])
def test_a_shard_that_is_away_refuses_its_share_and_is_named(nodes, servers, strategy):
    top = f'state_url = "{nodes.url}"\njournal = 1000\n'
    gateway = servers.gateway(strategy, top + KEYED + OPEN)
    mine = of_gateway(nodes, gateway)
    nodes.masters[1].kill()

    until(lambda: "shards" in readiness(gateway)[1]["children"][0])
    until(lambda: readiness(gateway, "/keyed")[0] == 200)  # its subscription was on that node

    code, told = readiness(gateway, "/keyed")
    assert code == 200 and told["routes"] == {"/keyed": True}
    lost = told["children"][0]["shards"]
    assert nodes.masters[1].url.removeprefix("redis://").removesuffix("/0") in lost
    assert "of 16384 slots" in lost
    found = {n: [keyed(gateway, key) for key in keys] for n, keys in mine.items()}
    assert found == {0: [200] * 3, 1: [503] * 3, 2: [200] * 3}
    until(lambda: 0.6 < metric(gateway, "gateway_state_available_ratio") < 0.7)


def of_gateway(nodes: Nodes, gateway: Server) -> dict[int, list[str]]:
    """Return three keys of each shard, by where their claims have come to."""
    found: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for n in range(200):
        sizes = [size(node) for node in nodes.masters]
        assert keyed(gateway, f"key-{n}") == 200
        grown = [n for n, node in enumerate(nodes.masters) if size(node) > sizes[n]]
        if len(grown) == 1 and len(found[grown[0]]) < 3:
            found[grown[0]].append(f"key-{n}")
        if all(len(keys) == 3 for keys in found.values()):
            break
    return found


def size(node: Server) -> int:
    with node.client as client:
        return sum(1 for key in client.scan_iter("gateway:*:{*}", 1_000) if b"}:" not in key)


def test_the_check_asks_every_node(nodes, servers, tmp_path):
    top = f'state_url = "{nodes.url}"\njournal = 1000\n'
    checked = check(*servers_at(servers.broker.url, servers.results.url), *write(tmp_path, top))
    # None keeps anything on disk, which is said of each.
    for node in nodes.masters:
        assert any(f"node 127.0.0.1:{node.port}" in line.check for line in checked.lines)
