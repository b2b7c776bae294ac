"""Odd results, odd failures, and tries of one delivery that ask for different kinds of answers."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.strategies import STRATEGIES
from tests.integration.deliveries import (
    KEYED,
    URLS,
    channels,
    claim,
    deliver,
    expired,
    gather,
    keyed,
    run,
    send,
    state_of,
)
from tests.support.requests import PUBLISHED, is_ready, metric
from tests.support.waiting import eventually

ODD = keyed("/odd", "retries.odd")
BLOCKED = "broker-blocked"


@pytest.mark.parametrize("strategy", ["pika", "redis"])
def test_a_header_that_is_longer_than_a_header_may_be_is_kept(servers, strategy):
    gateway = servers.gateway(strategy, ODD)
    key = f"Idempotency-Key: long-{strategy}"
    target = "/odd?quotes=40000&seconds=0.5"

    together = run(gather(*(send(gateway, target, "long", key) for _ in range(3))))
    after = run(send(gateway, target, "long", key))

    assert [(a.status, a.body, len(a.headers["link"])) for a in [*together, after]] == [
        (200, b"long", 40_000)
    ] * 4
    assert metric(gateway, "gateway_in_flight") == 0


async def test_who_wants_no_result_is_not_told_that_it_can_be_no_answer(servers):
    gateway = servers.gateway("redis", URLS + ODD + 'answer = "accept"\n')

    first = await send(gateway, "/odd", "x", "Idempotency-Key: unusable")
    with servers.results.client as client:
        task_id = claim(servers.results, "x").task_id
        await eventually(lambda: client.exists(f"celery-task-meta-{task_id}"))
    later = await send(gateway, "/odd", "x", "Idempotency-Key: unusable")
    assert [first.status, later.status] == [202, 202]


async def test_a_result_that_has_expired_is_not_listened_for(servers):
    config = URLS + "timeout = 3\nresult_expires = 1\n" + KEYED + "prefer = true\n"
    gateway = servers.gateway("redis", config)
    key = ("mixed", "Idempotency-Key: mixed")

    statuses = [(await send(gateway, "/keyed", *key, "Prefer: respond-async")).status]
    await eventually(lambda: servers.executions("mixed"))
    await eventually(lambda: expired(servers.results, "mixed"))
    servers.results.client.delete(f"celery-task-meta-{servers.executions('mixed')[0].task}")
    statuses.append((await send(gateway, "/keyed", *key, "Prefer: wait=1")).status)
    # A listener would keep the claim from lapsing.
    assert channels(servers.results) == []
    statuses.append((await send(gateway, "/keyed", *key)).status)
    assert statuses == [202, 202, 200]
    assert len({one.task for one in servers.executions("mixed")}) == 1


def test_what_was_never_sent_is_not_listened_for(servers):
    gateways = servers.each({name: (name, "timeout = 1\n" + KEYED) for name in STRATEGIES})

    async def blocked(strategy: str) -> list:
        # The broker tells a connection that it is blocked when that next publishes.
        gateway, first = gateways[strategy], f"first-{strategy}"
        keys = [f"unsent-{strategy}-{n}" for n in range(10)]
        while (await deliver(gateway, first)).problem["type"].rpartition(":")[2] != BLOCKED:
            pass
        await eventually(lambda: not is_ready(gateway))
        answers = [await deliver(gateway, key) for key in keys]
        await eventually(lambda: not any(state_of(servers.results, key) for key in keys))
        return answers

    with servers.broker.alarm():
        answers = dict(zip(gateways, run(gather(*map(blocked, gateways))), strict=True))
        heard = {channel.decode()[-36:] for channel in channels(servers.results)}

    said = {strategy: {a.type for a in some} for strategy, some in answers.items()}
    assert said == dict.fromkeys(STRATEGIES, {BLOCKED})
    sent = {a.problem["task_id"]: strategy for strategy, some in answers.items() for a in some}
    assert [sent[task_id] for task_id in heard & sent.keys()] == []


async def test_who_waits_for_longer_than_results_are_stored_keeps_the_claim(servers):
    gateway = servers.gateway("redis", "timeout = 5\nresult_expires = 1\n" + KEYED)

    first = asyncio.create_task(deliver(gateway, "patient", until="patient"))
    await eventually(lambda: state_of(servers.results, "patient") == "confirmed")
    await asyncio.sleep(1.5)
    again = asyncio.create_task(deliver(gateway, "patient"))
    await eventually(lambda: metric(gateway, "gateway_duplicates_joined_total") == 1)
    servers.release("patient")
    answers = [await again, await first]

    assert {(a.status, a.body) for a in answers} == {(200, b"patient")}
    assert metric(gateway, PUBLISHED) == 1
