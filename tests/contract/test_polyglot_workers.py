"""Workers in other languages keep the contract of the strategies, and lose no message."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import amqp
import pytest
import redis

from tests.contract.test_strategies import (  # noqa: F401  # they run with the `worker` below
    test_a_delivery_is_accepted_once_the_broker_has_confirmed_it,
    test_a_failed_task_is_a_502_that_names_the_exception_and_no_more,
    test_a_large_result_is_answered_whole,
    test_a_result_that_cannot_be_sent_is_a_502_and_nobody_elses_concern,
    test_a_task_slower_than_the_deadline_is_a_504_in_time,
    test_a_task_that_no_worker_knows_is_a_502,
    test_bodies_come_back_byte_for_byte,
    test_each_of_many_requests_gets_its_own_answer,
)
from tests.support.polyglot import LANGUAGES, start_worker
from tests.support.requests import post
from tests.support.stack import RabbitMQ, Server, Stack, StackError
from tests.support.waiting import until

pytestmark = pytest.mark.long

KEY = "celery-task-meta-"


@pytest.fixture(scope="module", params=LANGUAGES)
def worker(
    request: pytest.FixtureRequest,
    stack: Stack,
    own_rabbitmq: RabbitMQ,
    redis_server: Server,
    start,
) -> Iterator[Server]:
    worker = start(lambda: start_worker(stack, request.param, own_rabbitmq.url, redis_server.url))
    yield worker
    worker.stop()


@pytest.fixture
def channel(own_rabbitmq: RabbitMQ, worker) -> Iterator[amqp.Channel]:
    address = own_rabbitmq.url.removeprefix("amqp://guest:guest@").rstrip("/")
    with amqp.Connection(address, confirm_publish=True) as connection:
        yield connection.channel()


@pytest.fixture
def store(redis_server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def send(channel: amqp.Channel, task="api.core.main", args=({}, {}, "hi"), body=None, **headers):
    """Publish a task with no more headers than protocol 2 demands; return its id."""
    task_id = str(uuid4())
    channel.basic_publish(
        amqp.Message(
            json.dumps([args, {}, {}]) if body is None else body,
            content_type="application/json",
            content_encoding="utf-8",
            correlation_id=task_id,
            application_headers={"id": task_id, "task": task, **headers},
        ),
        routing_key="celery",
    )
    return task_id


def stored(store: redis.Redis, task_id: str) -> dict:
    until(lambda: store.exists(KEY + task_id))
    return json.loads(store.get(KEY + task_id))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_worker_names_the_variables_that_it_needs(stack, start, language):
    with pytest.raises(StackError, match="GATEWAY_BROKER_URL, GATEWAY_RESULT_BACKEND and QUEUE"):
        start(lambda: start_worker(stack, language, broker="", results=""))


def test_an_answer_has_the_status_and_the_headers_that_the_task_gave(gateway):
    answer = {"status": 201, "body": "größe", "headers": {"Location": "/orders/7"}}
    given = post(f"{gateway.url}/returned", json.dumps(answer).encode())
    assert (given.code, given.body.decode()) == (201, "größe")
    assert given.headers["Location"] == "/orders/7"

    data = post(f"{gateway.url}/returned", b'{"a": [1, 2.5, null, true]}')
    assert (data.code, data.body) == (200, b'{"a":[1,2.5,null,true]}')
    nothing = post(f"{gateway.url}/returned", b"null")
    assert (nothing.code, nothing.body) == (200, b"")


def test_a_large_body_comes_back(gateway):
    body = "größe".encode() * 100_000
    assert post(f"{gateway.url}/", body).body == body


def test_a_message_that_has_expired_does_not_run(channel, store):
    past = (datetime.now(UTC) - timedelta(seconds=5)).isoformat()
    result = stored(store, send(channel, expires=past))
    assert result["status"] == "REVOKED"
    assert result["result"]["exc_type"] == "TaskRevokedError"


def test_a_task_with_an_eta_runs_after_it(channel, store):
    eta = datetime.now(UTC) + timedelta(seconds=1)
    result = stored(store, send(channel, eta=eta.isoformat()))
    assert result["status"] == "SUCCESS"
    assert datetime.fromisoformat(result["date_done"]) >= eta


def test_a_result_is_published_as_it_is_stored_and_expires(channel, store):
    with store.pubsub() as events:
        events.psubscribe(f"{KEY}*")
        assert events.get_message(timeout=10)["type"] == "psubscribe"
        task_id = send(channel)
        event = events.get_message(timeout=60)
    assert event["channel"].decode() == KEY + task_id
    assert event["data"] == store.get(KEY + task_id)
    assert 0 < store.ttl(KEY + task_id) <= 300


def test_a_result_that_nobody_wants_is_not_stored(channel, store):
    ignored = send(channel, ignore_result=True)
    # One message after the other is begun, and ended, as neither waits for anything but Redis.
    stored(store, send(channel, task="appserver.tasks.sleep", args=({"seconds": "0.3"}, {}, "")))
    assert not store.exists(KEY + ignored)


def test_a_message_that_cannot_be_read_is_a_dead_letter_and_nobody_elses_concern(channel, store):
    unreadable = [
        "{",
        "[]",
        '{"args": []}',
        "[1, {}, {}]",
        '[[], {}, {"errbacks": [{"task": "x"}]}]',
    ]
    ids = [send(channel, body=body) for body in unreadable]
    good = send(channel)

    found = {}
    until(lambda: _collect(channel, found) == len(unreadable))

    assert {i: m.body for i, m in found.items()} == dict(zip(ids, unreadable, strict=True))
    for message in found.values():
        assert message.properties["delivery_mode"] == 2
        assert message.headers["dead_letter"]["reason"]
        assert message.headers["dead_letter"]["routing_key"] == "celery"
    assert stored(store, good)["status"] == "SUCCESS"


def _collect(channel: amqp.Channel, found: dict) -> int:
    while message := channel.basic_get("gateway.dead", no_ack=True):
        found[message.headers["id"]] = message
    return len(found)


def test_a_worker_that_is_told_to_stop_ends_its_tasks_and_gives_the_others_back(
    channel, store, worker
):
    sleeping = {"task": "appserver.tasks.sleep", "args": ({"seconds": "2"}, {}, "done")}
    begun = send(channel, **sleeping)
    later = send(channel, eta=(datetime.now(UTC) + timedelta(hours=1)).isoformat())
    stored(store, send(channel))  # which was delivered after both

    os.kill(worker.pid, signal.SIGTERM)  # once: a second signal ends it at once
    until(lambda: not worker.alive())

    assert stored(store, begun)["result"] == "done"
    message = channel.basic_get("celery", no_ack=True)
    assert message.headers["id"] == later
    assert channel.basic_get("celery") is None
    worker.restart()


def test_the_message_of_a_worker_that_is_killed_runs_again(channel, store, worker):
    sleeping = {"task": "appserver.tasks.sleep", "args": ({"seconds": "1"}, {}, "done")}
    begun = send(channel, **sleeping)
    stored(store, send(channel))  # which was delivered after it

    worker.kill()
    assert not store.exists(KEY + begun)
    worker.restart()

    assert stored(store, begun)["result"] == "done"
