"""What docs/celery.md says of Celery's features, with one worker that uses them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import kombu
import kombu.pools
import pytest
import redis
from celery import Celery
from celery.beat import EmbeddedService

from tests.integration.deliveries import URLS, Servers, run, send
from tests.support.config import route
from tests.support.http_client import Answer
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import until

QUEUE = "features"
QUEUES = [QUEUE, *(f"{QUEUE}.{name}" for name in ("classic", "quorum", "late", "revoked"))]
TASKS = ("seen", "stamps", "retries", "fails_once", "limited")
NAME = ["json:/name"]
PRIORITY = {"args": ["json:/priority"], "priority": "json:/priority", "answer": "accept"}


def to(task: str, path: str = "", queue: str = QUEUE, **more: Any) -> str:
    """Write a route to a task, on the path of its name and without arguments unless given."""
    return route(path or f"/{task}", f"features.{task}", queue=queue, **{"args": [], **more})


def through(exchange: str, **more: Any) -> str:
    """Write a route to the task `seen` through an exchange."""
    return route(f"/{exchange}", "features.seen", exchange=f"features.{exchange}", args=[], **more)


CONFIG = (
    f"{URLS}timeout = 50\n"
    + "".join(map(to, TASKS))
    + to("limited", "/limited-briefly", deadline=1)
    + to("meet", args=NAME)
    + to("stored", args=["json:"])
    + to("overruns", "/hard", time_limit=1)
    + to("overruns", "/soft", soft_time_limit=1)
    + to(
        "noted", "/classic", "features.classic", queue_arguments={"x-max-priority": 10}, **PRIORITY
    )
    + to("noted", "/quorum", "features.quorum", queue_type="quorum", **PRIORITY)
    + to("noted", "/late", "features.late", args=NAME, deadline=0.5)
    + to("noted", "/in-time", "features.late", args=NAME)
    + to("noted", "/revoked", "features.revoked", args=NAME)
    + through("direct", routing_key="{json:/kind}")
    + through("fanout")
    + through("headers", message_headers={"region": "header:x-region"})
)


@pytest.fixture(scope="module")
def servers(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Iterator[Servers]:
    servers = Servers(
        stack,
        rabbitmq,
        redis_server,
        queues=(QUEUE,),
        concurrency=1,
        app="tests.integration.feature_tasks",
        pool="prefork",
        CELERY_WORKER_AUTOSCALE="2,1",  # these are the worker's options
        CELERY_WORKER_TASK_EVENTS="1",
    )
    yield servers
    servers.worker.stop()
    with kombu.Connection(rabbitmq.url) as connection:
        for queue in QUEUES:
            connection.default_channel.queue_delete(queue)


@pytest.fixture(scope="module")
def channel(servers: Servers) -> Iterator[Any]:
    """A channel for what is published, with the exchanges that the routes name."""
    bindings = {
        "direct": {"routing_key": "paid"},
        "fanout": {"routing_key": ""},
        "headers": {"routing_key": "", "arguments": {"x-match": "all", "region": "eu"}},
    }
    with kombu.Connection(servers.broker.url) as connection:
        channel = connection.default_channel
        for kind, binding in bindings.items():
            channel.exchange_declare(f"features.{kind}", kind, durable=True, auto_delete=False)
            channel.queue_bind(QUEUE, f"features.{kind}", **binding)
        yield channel


@pytest.fixture(scope="module")
def gateway(servers: Servers, channel: Any) -> Server:
    return servers.gateway("redis", CONFIG)


@pytest.fixture(scope="module")
def client(servers: Servers) -> Iterator[redis.Redis]:
    with servers.results.client as client:
        yield client


@pytest.fixture
def app(servers: Servers) -> Iterator[Celery]:
    """Somebody else's app on the same broker."""
    kombu.pools.reset()  # as others may have left a connection to a broker that has died since
    with Celery(broker=servers.broker.url, set_as_current=False) as app:
        yield app
    kombu.pools.reset()


def post(gateway: Server, target: str, body: Any = None, *headers: str) -> Answer:
    return run(send(gateway, target, json.dumps(body), *headers))


def lying_in(channel: Any, queue: str) -> Any:
    """Wait for a message in a queue; return it as it was, and leave it there."""
    found: list[Any] = []
    until(lambda: found.extend(filter(None, [channel.basic_get(queue)])) or found)
    channel.basic_reject(found[0].delivery_tag, requeue=True)
    return found[0]


def first_arguments(channel: Any, queue: str) -> list[Any]:
    """Take all messages of a queue; return their tasks' first arguments in this order."""
    some = iter(lambda: channel.basic_get(queue, no_ack=True), None)
    return [json.loads(message.body)[0][0] for message in some]


def test_a_message_with_a_higher_priority_comes_first(gateway, channel):
    for priority in (1, 9, 5):
        assert post(gateway, "/classic", {"priority": priority}).status == 202
        assert post(gateway, "/quorum", {"priority": priority}).status == 202

    assert first_arguments(channel, "features.classic") == [9, 5, 1]
    # RabbitMQ 4 has two levels there, of which that above 4 comes first; earlier ones have none.
    version = int(channel.connection.server_properties["version"].split(".")[0])
    expected = [9, 5, 1] if version >= 4 else [1, 9, 5]
    assert first_arguments(channel, "features.quorum") == expected


def test_a_task_whose_sender_waits_no_more_does_not_run(gateway, channel, client, app):
    assert post(gateway, "/late", {"name": "late"}).status == 504
    expires = datetime.fromisoformat(lying_in(channel, "features.late").headers["expires"])
    until(lambda: datetime.now(UTC) > expires)

    # Remote control: the worker consumes another queue.
    (told,) = app.control.add_consumer("features.late", reply=True, timeout=30, limit=1)

    assert "ok" in next(iter(told.values()))
    assert post(gateway, "/in-time", {"name": "in time"}).status == 200
    assert client.llen("features:in time") == 1
    assert not client.exists("features:late")


def test_a_revoked_task_is_a_502(gateway, channel, client, app):
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(post, gateway, "/revoked", {"name": "revoked"})
        task_id = lying_in(channel, "features.revoked").headers["id"]

        (told,) = app.control.revoke(task_id, reply=True, timeout=30, limit=1)
        app.control.add_consumer("features.revoked", reply=True, timeout=30, limit=1)

        assert "ok" in next(iter(told.values()))
        assert answer.result().status == 502
    assert "TaskRevokedError" in answer.result().problem["detail"]
    assert not client.exists("features:revoked")


def test_what_exceeds_a_time_limit_is_a_502(gateway):
    with ThreadPoolExecutor() as threads:
        hard, soft = threads.map(lambda target: post(gateway, target), ("/hard", "/soft"))

    assert (hard.status, soft.status) == (502, 502)
    assert "TimeLimitExceeded" in hard.problem["detail"]
    assert "SoftTimeLimitExceeded" in soft.problem["detail"]


@pytest.mark.parametrize(("target", "tries"), [("/retries", b"2"), ("/fails_once", b"1")])
def test_a_request_waits_until_the_last_try(gateway, target, tries):
    answer = post(gateway, target)

    assert (answer.status, answer.body) == (200, tries)


def test_exchanges_of_each_type_route(gateway):
    direct = post(gateway, "/direct", {"kind": "paid"})
    fanout = post(gateway, "/fanout")
    headers = post(gateway, "/headers", None, "X-Region: eu")

    for kind, answer in (("direct", direct), ("fanout", fanout), ("headers", headers)):
        assert answer.status == 200, kind
        assert json.loads(answer.body)["exchange"] == f"features.{kind}"
    assert json.loads(direct.body)["routing_key"] == "paid"
    # and what they route nowhere is refused.
    assert post(gateway, "/direct", {"kind": "void"}).type == "unroutable"
    assert post(gateway, "/headers", None, "X-Region: us").type == "unroutable"


def test_the_route_names_the_queue_whatever_the_app_s_routes_say(gateway):
    seen = json.loads(post(gateway, "/seen").body)

    assert (seen["routing_key"], seen["routed"]) == (QUEUE, "elsewhere")


def test_the_gateway_stamps_nothing_and_workers_keep_stamps(gateway):
    assert not json.loads(post(gateway, "/seen").body)["stamps"]
    assert json.loads(post(gateway, "/stamps").body)["stamps"] == {"shop": "main"}


@pytest.mark.parametrize(
    ("settings", "status"),
    [({}, 200), ({"result_serializer": "pickle"}, 502), ({"result_compression": "gzip"}, 502)],
)
def test_a_stored_result_is_plain_json_or_a_502(gateway, settings, status):
    answer = post(gateway, "/stored", settings)

    assert answer.status == status
    if status == 502:
        assert answer.type == "result-unusable"
    else:
        assert answer.body == b"done"


def test_task_events_name_the_gateway_s_tasks(gateway, app):
    """Flower shows what these say."""
    seen = []

    def hear(event: dict[str, Any]) -> None:
        seen.append((event["type"], event["uuid"], event.get("name")))
        receiver.should_stop = event["type"] == "task-succeeded"

    handlers = dict.fromkeys(("task-received", "task-succeeded"), hear)
    with ThreadPoolExecutor() as threads, app.connection_for_read() as link:
        receiver = app.events.Receiver(link, handlers=handlers)
        answers = []
        receiver.on_consume_ready = lambda *_args, **_more: answers.append(
            threads.submit(post, gateway, "/seen")
        )
        receiver.capture(timeout=60)
        task_id = json.loads(answers[0].result().body)["id"]

    assert seen == [("task-received", task_id, "features.seen"), ("task-succeeded", task_id, None)]


def test_a_rate_limit_is_the_worker_s_own(gateway):
    assert post(gateway, "/limited").status == 200
    assert post(gateway, "/limited-briefly").status == 504


def test_a_pool_grows_with_its_tasks_and_its_processes_are_replaced(gateway, servers):
    """The pool has one process at first, which two tasks that wait for each other need two of."""
    with ThreadPoolExecutor() as threads:
        both = list(threads.map(lambda _: post(gateway, "/meet", {"name": "met"}), range(2)))
    pids = Counter(json.loads(post(gateway, "/seen").body)["pid"] for _ in range(12))

    assert [answer.status for answer in both] == [200, 200]
    assert "Scaling up 1 processes" in servers.worker.output()
    assert max(pids.values()) <= 5 and len(pids) > 2


def test_periodic_tasks_run_beside_the_gateway(gateway, client, app, tmp_path):
    options = {"queue": QUEUE, "ignore_result": True}
    tick = {"task": "features.noted", "schedule": 0.2, "args": ["ticks"], "options": options}
    app.conf.beat_schedule = {"tick": tick}
    beat = EmbeddedService(app, thread=True, schedule_filename=str(tmp_path / "schedule"))
    beat.start()
    try:
        until(lambda: client.llen("features:ticks") >= 2)
        assert post(gateway, "/seen").status == 200
    finally:
        beat.stop()
