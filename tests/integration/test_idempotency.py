"""A delivery is taken once, whoever sends it how often to however many processes."""

from __future__ import annotations

import asyncio

import pytest
import redis

from gateway.config.strategies import STRATEGIES
from tests.integration.deliveries import (
    KEYED,
    Servers,
    channels,
    claim,
    deliver,
    expired,
    gather,
    run,
    send,
    state_of,
)
from tests.support.requests import metric
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import eventually

CONFIG = (
    KEYED
    + """
[[routes]]
path = "/json"
task = "faults.run"
idempotency = "json:/event/id"

[[routes]]
path = "/fail"
task = "appserver.tasks.fail"
idempotency = "header:Idempotency-Key"

[[routes]]
path = "/unknown"
task = "appserver.tasks.that_nobody_wrote"
idempotency = "header:Idempotency-Key"

[[routes]]
path = "/nowhere"
task = "faults.run"
idempotency = "header:Idempotency-Key"
queue = "a-queue-that-comes-later"
declare = false

[[routes]]
path = "/full"
task = "faults.run"
idempotency = "header:Idempotency-Key"
queue = "a-queue-for-one"
"""
)
COPIES = 100


@pytest.fixture(scope="module")
def servers(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Servers:
    servers = Servers(stack, rabbitmq, redis_server)
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def gateway(servers: Servers) -> Server:
    return servers.gateway("redis", CONFIG, "--processes", "2")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_100_copies_over_four_processes_run_once_and_get_one_answer(servers, strategy):
    gateways = [servers.gateway(strategy, CONFIG, "--processes", "2") for _ in range(2)]
    nginx = servers.nginx(*gateways)
    key = f"copies-{strategy}"

    answers = run(gather(*(deliver(nginx, key, seconds=0.4) for _ in range(COPIES))))
    after = [run(deliver(gateway, key)) for gateway in gateways]

    assert {(a.status, a.body) for a in answers + after} == {(200, key.encode())}
    assert len({tuple(sorted(a.headers.items() - {("date", a.headers["date"])}))
                for a in after}) == 1  # fmt: skip
    (execution,) = servers.executions(key)
    assert execution.attempt == 1
    for gateway in gateways:
        assert metric(gateway, "gateway_in_flight") == 0
    run(eventually(lambda: channels(servers.results) == []))
    for server in (nginx, *gateways):
        server.stop()


def test_a_thousand_deliveries_at_once_are_taken_over_few_connections(servers, gateway):
    # Until then the worker's processes have not all connected.
    run(gather(*(deliver(gateway, f"few-{n}") for n in range(50))))
    with redis.Redis.from_url(servers.results.url) as client:
        before = client.info("clients")["connected_clients"]
        client.config_set("maxclients", before + 20)
        try:
            keys = [f"many-{n}" for n in range(1_000)]
            answers = run(gather(*(deliver(gateway, key) for key in keys)))
        finally:
            client.config_set("maxclients", 10_000)

    assert [(a.status, a.body) for a in answers] == [(200, key.encode()) for key in keys]
    assert len(servers.executions("many-")) == 1_000


def test_those_that_wait_free_everything_when_they_leave(servers, gateway):
    gone = metric(gateway, "gateway_clients_gone_total")

    async def some_leave() -> list:
        owner = asyncio.create_task(deliver(gateway, "leaving", seconds=3))
        await eventually(lambda: state_of(servers.results, "leaving") == "confirmed")
        leaving = [deliver(gateway, "leaving", seconds=3, patience=1) for _ in range(20)]
        assert await gather(*leaving) == [None] * 20
        await eventually(lambda: metric(gateway, "gateway_clients_gone_total") == gone + 20)
        await eventually(lambda: metric(gateway, "gateway_in_flight") == 1)
        # Nobody but the owner waits.
        await eventually(lambda: channels(servers.results) == [])
        return await owner

    answer = run(some_leave())

    assert (answer.status, answer.body) == (200, b"leaving")
    assert len(servers.executions("leaving")) == 1
    assert metric(gateway, "gateway_in_flight") == 0


def test_a_sender_that_left_gets_the_answer_when_it_comes_back(servers, gateway):
    assert run(deliver(gateway, "back", seconds=1.5, patience=0.5)) is None

    # While the task runs, and after it has ended with nobody there.
    joined = run(deliver(gateway, "back"))
    assert run(deliver(gateway, "back-later", seconds=1, patience=0.5)) is None
    run(eventually(lambda: servers.executions("back-later")))
    later = run(deliver(gateway, "back-later"))

    assert (joined.status, joined.body) == (200, b"back")
    assert (later.status, later.body) == (200, b"back-later")
    assert len(servers.executions("back")) == 2


def test_a_sender_that_leaves_before_it_is_known_whose_the_delivery_is_has_delivered(
    servers, gateway
):
    with redis.Redis.from_url(servers.results.url) as client:
        client.client_pause(500)
    assert run(deliver(gateway, "hasty", patience=0.2)) is None

    run(eventually(lambda: servers.executions("hasty")))
    answer = run(deliver(gateway, "hasty"))

    assert (answer.status, answer.body) == (200, b"hasty")
    assert len(servers.executions("hasty")) == 1


def test_another_body_under_the_same_key_is_a_conflict(servers, gateway):
    first = run(send(gateway, "/keyed", "one", "Idempotency-Key: conflict"))
    second = run(send(gateway, "/keyed", "two", "Idempotency-Key: conflict"))
    again = run(send(gateway, "/keyed", "one", "Idempotency-Key: conflict"))

    assert (first.status, second.status, again.status) == (200, 409, 200)
    assert second.type == "key-conflict"
    assert len(servers.executions("one")) == 1
    assert servers.executions("two") == []


@pytest.mark.parametrize(
    ("target", "body"),
    [("/keyed", "{}"), ("/json", "{}"), ("/json", '{"event":{"id":[1]}}'), ("/json", "no JSON")],
)
def test_a_delivery_without_its_key_is_malformed(gateway, target, body):
    assert run(send(gateway, target, body)).type == "bad-request"


def test_a_key_may_stand_in_the_body(servers, gateway):
    bodies = ['{"event":{"id":17},"try":1}', '{"event":{"id":18},"try":1}']

    answers = [run(send(gateway, "/json", body)) for body in bodies * 2]
    other = run(send(gateway, "/json", '{"event":{"id":17},"try":2}'))

    assert [a.body.decode() for a in answers] == bodies * 2
    assert other.status == 409
    assert len(servers.executions('{"event"')) == 2


@pytest.mark.parametrize("strategy", ["redis", "pika"])
@pytest.mark.parametrize("path", ["/fail", "/unknown"])
def test_a_failure_is_everyones_and_the_next_try_runs_anew(servers, strategy, path):
    gateway = servers.gateway(strategy, CONFIG, "--processes", "2")
    key = f"Idempotency-Key: {strategy}"

    together = run(gather(*(send(gateway, path, "x", key) for _ in range(COPIES))))
    run(eventually(lambda: metric(gateway, "gateway_in_flight") == 0))
    next_try = run(send(gateway, path, "x", key))

    assert {a.type for a in [*together, next_try]} == {"task-failed"}
    assert len({a.problem["detail"] for a in [*together, next_try]}) == 1
    tasks = {a.problem["task_id"] for a in together}
    assert next_try.problem["task_id"] not in tasks
    # One that looks when the failure is there already is the next try itself.
    assert len(tasks) < COPIES / 4
    gateway.stop()


@pytest.mark.parametrize("strategy", ["redis", "threadpool"])
def test_a_message_that_comes_back_releases_its_claim(servers, strategy):
    gateway = servers.gateway(strategy, CONFIG)
    key = f"returned-{strategy}"

    refused = run(send(gateway, "/nowhere", key, f"Idempotency-Key: {key}"))
    assert refused.type == "unroutable"
    run(eventually(lambda: metric(gateway, "gateway_in_flight") == 0))
    worker = servers.start_worker(["a-queue-that-comes-later"], concurrency=1)
    answer = run(send(gateway, "/nowhere", key, f"Idempotency-Key: {key}"))

    assert (answer.status, answer.body) == (200, key.encode())
    assert len(servers.executions(key)) == 1
    worker.stop()
    servers.broker.ctl("delete_queue", "a-queue-that-comes-later")
    gateway.stop()


def test_a_message_that_is_rejected_is_published_again_under_its_task_s_id(servers, gateway):
    policy = '{"max-length":1,"overflow":"reject-publish"}'
    servers.broker.ctl("set_policy", "one", "^a-queue-for-one$", policy)
    filler = run(send(gateway, "/full", "filler", "Idempotency-Key: filler", patience=1))
    assert filler is None
    refused = run(send(gateway, "/full", "rejected", "Idempotency-Key: rejected"))
    assert refused.type == "rejected"

    servers.broker.ctl("clear_policy", "one")
    worker = servers.start_worker(["a-queue-for-one"], concurrency=1)
    run(eventually(lambda: servers.executions("filler")))
    answer = run(send(gateway, "/full", "rejected", "Idempotency-Key: rejected"))

    assert (answer.status, answer.body) == (200, b"rejected")
    # A queue that crashes rejects also what is in there when it has come back.
    (execution,) = servers.executions("rejected")
    assert execution.task == refused.problem["task_id"]
    worker.stop()


def test_a_result_that_has_expired_unseen_is_not_waited_for(servers):
    config = "result_expires = 2\nidempotency_window = 60\n" + KEYED
    gateway = servers.gateway("redis", config)
    assert run(deliver(gateway, "expired", seconds=0.3, patience=0.1)) is None
    run(eventually(lambda: servers.executions("expired")))
    (first,) = servers.executions("expired")
    with redis.Redis.from_url(servers.results.url) as client:
        run(eventually(lambda: client.exists(f"celery-task-meta-{first.task}")))
        client.delete(f"celery-task-meta-{first.task}")
    run(eventually(lambda: expired(servers.results, "expired")))

    answer = run(deliver(gateway, "expired"))

    assert (answer.status, answer.body) == (200, b"expired")
    assert {one.task for one in servers.executions("expired")} == {first.task}
    gateway.stop()


def test_the_stored_answer_ends_with_its_window(servers):
    gateway = servers.gateway("pika", "idempotency_window = 1\n" + KEYED)
    assert run(deliver(gateway, "window")).status == 200
    assert state_of(servers.results, "window") == "done"
    run(eventually(lambda: not claim(servers.results, "window")))

    assert run(deliver(gateway, "window")).status == 200
    assert len({one.task for one in servers.executions("window")}) == 2
    gateway.stop()
