"""Results that Celery's client has not heard of, and reads from the store."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Barrier

import pytest
import redis
from celery import Celery

from gateway.config.settings import Config
from gateway.outcome import FAILURE, SUCCESS, Outcome
from gateway.stack.server import poll
from gateway.strategies import celery_results
from gateway.strategies.celery_client import CeleryClient
from tests.support.stack import Server

TIMEOUT = 20  # seconds
THREADS = 8
TASK = str(uuid.uuid4())
LATE = '{"status": "SUCCESS", "result": "late"}'


@pytest.fixture
def opened(redis_server: Server) -> Iterator[Callable[..., CeleryClient]]:
    """Open Celery's clients of the store."""
    with ExitStack() as clients:

        def opened(**settings: str) -> CeleryClient:
            config = Config(result_backend=redis_server.url, **settings)
            return clients.enter_context(closing(CeleryClient(config)))

        yield opened


@pytest.fixture
def waiting(client: redis.Redis) -> Iterator[Callable[..., Future[Outcome]]]:
    """Wait for a result in a thread; return when it has seen that there is none yet."""
    with ThreadPoolExecutor() as pool:

        def begin(celery: CeleryClient, result: object) -> Future[Outcome]:
            gets = lookups(client)
            begun = pool.submit(celery.wait, result, time.monotonic() + 3600)
            assert poll(lambda: lookups(client) > gets, TIMEOUT)
            return begun

        yield begin


@pytest.mark.parametrize("prefix", ["", "shop"])
def test_a_result_without_a_task_id_is_found_after_a_cut(opened, client, waiting, prefix):
    """Celery's own code fetches what it has missed, and looks in it for whose it is."""
    celery = opened(result_key_prefix=prefix)
    # Given somebody who waits,
    begun = waiting(celery, celery.subscribe(TASK))
    # when the result is stored, and the subscription cut before anything is heard,
    client.set(celery.app.backend.get_key_for_task(TASK), LATE)
    client.client_kill_filter(_type="pubsub")
    # then it is the result.
    assert begun.result(TIMEOUT) == Outcome(SUCCESS, "late")


def test_results_are_read_again_after_a_reader_has_failed(opened, client, waiting, monkeypatch):
    """Celery's own code takes the thread that has failed for the one that reads, for ever."""
    celery = opened()
    # Given a reader whose connection is lost when it unsubscribes, before it reads,
    backend = celery.app.backend
    consumer = backend.result_consumer
    celery.subscribe("failing")
    result = celery.subscribe(TASK)
    for _ in range(2):
        consumer.drain_events(TIMEOUT)  # Redis has confirmed the subscriptions
    with monkeypatch.context() as patch:
        patch.setattr(consumer, "_reconnect", _lost)
        patch.setattr(consumer._pubsub, "unsubscribe", _lost)
        consumer._pending_unsubscribe.add(backend.get_key_for_task("failing"))
        with pytest.raises(RuntimeError):
            consumer.drain_events(0.1)
    # when the result comes to somebody who waits,
    begun = waiting(celery, result)
    key = backend.get_key_for_task(TASK)
    client.set(key, LATE)
    client.publish(key, LATE)
    # then it is read.
    assert begun.result(TIMEOUT) == Outcome(SUCCESS, "late")


def _lost(*_: object) -> None:
    raise redis.ConnectionError("lost")


def test_a_result_whose_message_was_not_heard_is_read(opened, client, waiting, monkeypatch):
    """A worker may be faster than the subscription, for which Celery does not wait."""
    monkeypatch.setattr(celery_results, "_INTERVAL", 3600)
    celery = opened()
    # Given somebody who waits,
    begun = waiting(celery, celery.subscribe(TASK))
    # when the result is stored, and nothing is published,
    client.set(celery.app.backend.get_key_for_task(TASK), LATE)
    # then it is the result after a while.
    monkeypatch.setattr(celery_results, "_INTERVAL", 0.1)
    assert begun.result(TIMEOUT) == Outcome(SUCCESS, "late")


def test_a_result_that_is_long_in_coming_is_read_once(opened, client, monkeypatch):
    monkeypatch.setattr(celery_results, "_INTERVAL", 0)  # each call is an interval after the last
    celery, before = opened(), lookups(client, "strlen")
    celery.subscribe("long")

    for _ in range(5):
        celery.app.backend.result_consumer.drain_events(0.01)

    assert lookups(client, "strlen") == before + 1


def test_an_empty_result_is_a_result(opened, client):
    """Celery's own code takes it for a result that is not there yet."""
    celery = opened()
    client.set(celery.app.backend.get_key_for_task(TASK), b"")

    outcome = celery.wait(celery.subscribe(TASK), time.monotonic() + TIMEOUT)

    assert outcome == Outcome(SUCCESS, error="no JSON result (JSONDecodeError)")


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "stored"])
def test_without_what_is_replaced_celery_reads_results(opened, client, monkeypatch, caplog, heard):
    monkeypatch.setattr(celery_results, "REPLACED", [(Celery, "_get_backend"), (Celery, "_no")])
    celery = opened()
    assert caplog.messages == ["_no is missing in this version: results are read as Celery does"]
    result, key = celery.subscribe(TASK), celery.app.backend.get_key_for_task(TASK)
    failure = {"exc_type": "KeyError", "exc_message": ["x"], "exc_module": "builtins"}
    stored = json.dumps({"status": "FAILURE", "result": failure, "task_id": TASK})

    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(celery.wait, result, time.monotonic() + (TIMEOUT if heard else 1))
        if heard:
            assert poll(lambda: client.publish(key, stored), TIMEOUT)
        client.set(key, stored)

    assert begun.result(TIMEOUT) == Outcome(FAILURE, error="KeyError", detail="x")


def test_threads_that_begin_at_once_share_one_backend(opened, monkeypatch):
    """Celery creates one in each of them, and forgets all but one with their subscriptions."""
    made = []
    create = Celery._get_backend
    monkeypatch.setattr(Celery, "_get_backend", lambda app: made.append(app) or create(app))
    begin = Barrier(THREADS)

    celery = opened()
    with ThreadPoolExecutor(THREADS) as pool:
        assert len(made) == 1  # before anybody has asked

        def subscribe(number: int) -> None:
            begin.wait(TIMEOUT)
            celery.subscribe(f"task-{number}")

        list(pool.map(subscribe, range(THREADS)))

        assert len(made) == 1
        consumer = celery.app.backend.result_consumer
        assert len(consumer.subscribed_to) == THREADS


def lookups(server: redis.Redis, command: str = "get") -> int:
    return server.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0)
