"""What later tries of a delivery get: a final answer, or another run where there was none."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest
import redis

from gateway.config.strategies import STRATEGIES
from gateway.stack.loopback import answers_ok
from tests.integration.deliveries import (
    KEYED,
    URLS,
    Servers,
    channels,
    claim,
    cut_connections,
    deliver,
    gather,
    run,
    send,
    state_of,
)
from tests.support.requests import metric
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import eventually

ANSWER = """
[[routes]]
path = "/answer"
task = "retries.answer"
idempotency = "header:Idempotency-Key"
"""


@pytest.fixture(scope="module")
def servers(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Servers:
    servers = Servers(stack, rabbitmq, redis_server, app="tests.integration.retry_tasks")
    yield servers
    servers.stop()


def expire_result(servers: Servers, task_id: str) -> None:
    with redis.Redis.from_url(servers.results.url) as client:
        client.delete(f"celery-task-meta-{task_id}")


async def ask(gateway: Server, key: str, statuses: str, *headers: str) -> tuple[int, bytes]:
    target = f"/answer?statuses={statuses}"
    answer = await send(gateway, target, key, f"Idempotency-Key: {key}", *headers)
    return answer.status, answer.body


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_task_s_own_refusal_is_not_the_delivery_s_answer(servers, strategy):
    gateway = servers.gateway(strategy, ANSWER)
    key = f"refusal-{strategy}"

    tries = [run(ask(gateway, key, "503,429,408,425,500")) for _ in range(7)]

    assert [status for status, _ in tries] == [503, 429, 408, 425, 500, 200, 200]
    # Each of the first ones is another task; what is final is kept.
    assert len({body for _, body in tries[:6]}) == 6
    assert tries[5] == tries[6]
    gateway.stop()


def test_what_is_final_is_the_route_s_to_say(servers):
    gateway = servers.gateway("redis", ANSWER + 'final = "below 504, but 200, 404"\n')

    kept = [run(ask(gateway, "kept", "503")) for _ in range(2)]
    again = [run(ask(gateway, "again", "504,404,200")) for _ in range(4)]

    assert kept[0] == kept[1] and kept[0][0] == 503
    assert [status for status, _ in again] == [504, 404, 200, 200]
    assert len({body for _, body in again}) == 4
    gateway.stop()


@pytest.mark.parametrize("strategy", ["pika", "redis"])
def test_copies_that_wait_together_get_the_same_refusal(servers, strategy):
    gateways = [servers.gateway(strategy, ANSWER, "--processes", "2") for _ in range(2)]
    key = f"together-{strategy}"

    async def together() -> list[tuple[int, bytes]]:
        # Long enough for all to come before the refusal.
        return await gather(*(ask(gateways[n % 2], key, "503&seconds=2") for n in range(40)))

    answers = run(together())
    after = run(ask(gateways[0], key, "503"))

    ((status, _),) = set(answers)
    assert (status, after[0]) == (503, 200)
    for gateway in gateways:
        gateway.stop()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_task_that_ends_after_the_deadline_is_the_next_try_s_answer(servers, strategy):
    config = "timeout = 1\nresult_expires = 1\n" + KEYED
    gateway = servers.gateway(strategy, config)
    key = f"late-{strategy}"

    late = run(deliver(gateway, key, seconds=2.5))
    # The result has expired by now, and with it what a later try could look for.
    run(eventually(lambda: state_of(servers.results, key) == "done"))
    (first,) = servers.executions(key)
    expire_result(servers, first.task)
    tries = [run(deliver(gateway, key)) for _ in range(3)]

    assert late.status == 504
    assert {(a.status, a.body) for a in tries} == {(200, key.encode())}
    assert len(servers.executions(key)) == 1
    run(eventually(lambda: channels(servers.results) == []))
    gateway.stop()


def test_a_sender_that_left_gets_the_answer_though_the_result_has_expired(servers):
    gateway = servers.gateway("redis", "result_expires = 1\n" + KEYED)

    assert run(deliver(gateway, "left-late", seconds=2.0, patience=0.4)) is None
    run(eventually(lambda: state_of(servers.results, "left-late") == "done"))

    assert run(deliver(gateway, "left-late")).body == b"left-late"
    assert len(servers.executions("left-late")) == 1
    gateway.stop()


def test_a_late_result_is_found_though_its_subscription_was_cut(servers):
    gateway = servers.gateway("pika", "timeout = 1\nresult_expires = 2\n" + KEYED)

    assert run(deliver(gateway, "cut-late", seconds=2.5)).status == 504
    with redis.Redis.from_url(servers.results.url) as client:
        run(eventually(lambda: channels(servers.results)))
        while state_of(servers.results, "cut-late") != "done":
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    assert run(deliver(gateway, "cut-late")).body == b"cut-late"
    assert len(servers.executions("cut-late")) == 1
    gateway.stop()


def test_a_task_that_fails_after_the_deadline_runs_anew(servers):
    gateway = servers.gateway("redis", "timeout = 1\n" + ANSWER)
    servers.worker.freeze()
    late = run(ask(gateway, "late-refusal", "503"))
    servers.worker.thaw()
    run(eventually(lambda: claim(servers.results, "late-refusal") is None))

    assert late[0] == 504
    assert run(ask(gateway, "late-refusal", "503"))[0] == 200
    gateway.stop()


def test_an_answer_too_large_to_be_kept_is_given_again_as_long_as_its_result_is(servers):
    config = URLS + "max_kept_answer = 8\nresult_expires = 2\n" + KEYED
    gateway = servers.gateway("redis", config)
    key = "an answer of more than eight bytes"

    first, second = (run(deliver(gateway, key)) for _ in range(2))
    (one,) = servers.executions(key.partition(" ")[0])
    expire_result(servers, one.task)
    later = run(deliver(gateway, key))

    assert {(a.status, a.body) for a in (first, second)} == {(200, key.encode())}
    # It was done, and nobody knows any more what the answer was.
    assert (later.status, one.task.encode() in later.body) == (202, True)
    assert len(servers.executions("an")) == 1
    gateway.stop()


@pytest.mark.parametrize("without", ["refuse", "relay"])
def test_who_was_told_that_nothing_was_taken_has_published_nothing(servers, without):
    config = f'timeout = 1.5\nwithout_state = "{without}"\n' + KEYED
    gateway = servers.gateway("redis", config)
    key = f"told-{without}"
    assert run(deliver(gateway, f"warm-{key}")).status == 200

    async def outage() -> list:
        servers.results.freeze()
        try:
            return [await deliver(gateway, key) for _ in range(3)]
        finally:
            servers.results.thaw()

    answers = run(outage())
    run(eventually(lambda: metric(gateway, "gateway_in_flight") == 0))
    run(eventually(lambda: answers_ok(int(gateway.admin_url.rpartition(":")[2]), "/readyz")))
    after = run(deliver(gateway, f"after-{key}"))

    assert after.status == 200
    if without == "refuse":
        assert {a.type for a in answers} == {"state-unavailable"}
        # The worker takes its messages in their order.
        assert servers.executions(key) == []
    else:
        # Whoever does without claims has time left to be relayed, but not to hear its result.
        assert {a.status for a in answers} == {504}
        assert len({one.task for one in servers.executions(key)}) == 3
    gateway.stop()


def test_pika_s_held_tries_wait_for_the_stored_result_when_the_broker_has_gone(servers):
    config = """
[[routes]]
path = "/message"
task = "faults.run"
answer = "wait-then-accept"
idempotency = "header:Idempotency-Key"
deadline = 8
fallback = "success"
"""
    gateway = servers.gateway("pika", config + KEYED)

    async def cut() -> list:
        keys = ["held", "waits"]
        paths = ["/message?seconds=1.5", "/keyed?seconds=1.5"]
        waiting = [
            asyncio.create_task(send(gateway, path, key, f"Idempotency-Key: {key}"))
            for path, key in zip(paths, keys, strict=True)
        ]
        await eventually(lambda: all(state_of(servers.results, key) == "confirmed" for key in keys))
        connected = metric(gateway, "gateway_broker_connections_total")
        await asyncio.to_thread(cut_connections, servers.broker, "gateway")
        await eventually(lambda: metric(gateway, "gateway_broker_connections_total") > connected)
        return await asyncio.gather(*waiting)

    answers = run(cut())

    assert [(a.status, a.body) for a in answers] == [(200, b"held"), (200, b"waits")]
    gateway.stop()


def test_callers_who_chose_the_same_key_are_apart(servers):
    alike = KEYED.replace("/keyed", "/alike") + 'idempotency_scope = "route"\n'
    gateway = servers.gateway("redis", ANSWER + alike)
    callers = ["Authorization: Bearer a", "Authorization: Bearer b", "Cookie: c=1", "X-Y: z"]

    each = [run(ask(gateway, "caller", "200", caller)) for caller in callers * 2]
    same = [
        run(send(gateway, "/alike", "alike", "Idempotency-Key: 1", caller)) for caller in callers
    ]

    assert len({body for _, body in each}) == len(callers)
    assert each[:4] == each[4:]
    assert {a.body for a in same} == {b"alike"}
    assert len(servers.executions("alike")) == 1
    gateway.stop()


def test_two_deployments_on_one_redis_share_no_deliveries(servers):
    other = KEYED.replace("faults.run", "retries.answer")
    first, second = servers.gateway("redis", KEYED), servers.gateway("redis", other)

    answers = [
        run(send(gateway, "/keyed?statuses=201", "shared", "Idempotency-Key: shared"))
        for gateway in (first, second)
    ]

    assert [a.status for a in answers] == [200, 201]
    assert len(servers.executions("shared")) == 1
    for gateway in (first, second):
        gateway.stop()


def test_what_failed_is_told_with_the_delivery_s_own_ids(servers):
    config = URLS + '\n[[routes]]\npath = "/fails"\nanswer = "accept"\ntask = "no.such.task"\n'
    gateway = servers.gateway("redis", config)
    accepted = run(send(gateway, "/fails", "x"))
    path = urlsplit(accepted.headers["location"]).path

    async def look() -> dict:
        while (found := await send(gateway, path, "", method="GET")).status == 202:
            await asyncio.sleep(0.05)
        return found.problem

    problem = run(look())

    assert problem["type"].endswith("task-failed")
    ids = json.loads(accepted.body)
    assert (problem["delivery_id"], problem["task_id"]) == (ids["delivery_id"], ids["task_id"])
    gateway.stop()
