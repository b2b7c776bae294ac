"""Results that Celery's client has not heard of, and reads from the store."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier

import pytest
import redis
from celery import Celery

from gateway.config.settings import Config
from gateway.outcome import SUCCESS, Outcome
from gateway.stack.server import poll
from gateway.strategies import celery_results
from gateway.strategies.celery_client import CeleryClient

TIMEOUT = 20  # seconds
THREADS = 8


@pytest.mark.parametrize("prefix", ["", "shop"])
def test_a_result_without_a_task_id_is_found_after_a_lost_subscription(redis_server, prefix):
    """Celery's own code fetches what it has missed, and looks in it for whose it is."""
    config = Config(result_backend=redis_server.url, result_key_prefix=prefix)
    task_id = str(uuid.uuid4())
    client = CeleryClient(config)
    with (
        closing(client),
        redis.Redis.from_url(redis_server.url) as server,
        ThreadPoolExecutor() as pool,
    ):
        # Given somebody who waits, and has seen that there is no result yet,
        result = client.subscribe(task_id)
        gets = lookups(server)
        waiting = pool.submit(client.wait, result, time.monotonic() + 3600)
        assert poll(lambda: lookups(server) > gets, TIMEOUT)
        # when it is stored, and the subscription cut before anything is heard,
        key = client.app.backend.get_key_for_task(task_id)
        server.set(key, '{"status": "SUCCESS", "result": "late"}')
        server.client_kill_filter(_type="pubsub")
        # then it is the result.
        assert waiting.result(TIMEOUT) == Outcome(SUCCESS, "late")


def test_results_are_read_again_after_a_reader_has_failed(redis_server, monkeypatch):
    """Celery's own code takes the thread that has failed for the one that reads, for ever."""
    config = Config(result_backend=redis_server.url)
    failing, waited_for = str(uuid.uuid4()), str(uuid.uuid4())
    client = CeleryClient(config)
    with (
        closing(client),
        redis.Redis.from_url(redis_server.url) as server,
        ThreadPoolExecutor() as pool,
    ):
        # Given a reader whose connection is lost when it unsubscribes, before it reads,
        backend = client.app.backend
        consumer = backend.result_consumer
        client.subscribe(failing)
        result = client.subscribe(waited_for)
        for _ in range(2):
            consumer.drain_events(TIMEOUT)  # Redis has confirmed the subscriptions
        with monkeypatch.context() as patch:
            patch.setattr(consumer, "_reconnect", _lost)
            patch.setattr(consumer._pubsub, "unsubscribe", _lost)
            consumer._pending_unsubscribe.add(backend.get_key_for_task(failing))
            with pytest.raises(RuntimeError):
                consumer.drain_events(0.1)
        # when the result comes to somebody who waits,
        gets = lookups(server)
        waiting = pool.submit(client.wait, result, time.monotonic() + 3 * TIMEOUT)
        assert poll(lambda: lookups(server) > gets, TIMEOUT)
        key = backend.get_key_for_task(waited_for)
        value = '{"status": "SUCCESS", "result": "late"}'
        server.set(key, value)
        server.publish(key, value)
        # then it is read.
        assert waiting.result(TIMEOUT) == Outcome(SUCCESS, "late")


def _lost(*_: object) -> None:
    raise redis.ConnectionError("lost")


def test_a_result_whose_message_was_not_heard_is_read(redis_server, monkeypatch):
    """A worker may be faster than the subscription, for which Celery does not wait."""
    monkeypatch.setattr(celery_results, "_INTERVAL", 3600)
    task_id = str(uuid.uuid4())
    with (
        closing(CeleryClient(Config(result_backend=redis_server.url))) as client,
        redis.Redis.from_url(redis_server.url) as server,
        ThreadPoolExecutor() as pool,
    ):
        # Given somebody who waits, and has seen that there is no result yet,
        result = client.subscribe(task_id)
        gets = lookups(server)
        waiting = pool.submit(client.wait, result, time.monotonic() + 3600)
        assert poll(lambda: lookups(server) > gets, TIMEOUT)
        # when it is stored, and nothing is published,
        server.set(
            client.app.backend.get_key_for_task(task_id),
            '{"status": "SUCCESS", "result": "unheard"}',
        )
        # then it is the result after a while.
        monkeypatch.setattr(celery_results, "_INTERVAL", 0.1)
        assert waiting.result(TIMEOUT) == Outcome(SUCCESS, "unheard")


def test_a_result_that_is_long_in_coming_is_read_once(redis_server, monkeypatch):
    monkeypatch.setattr(celery_results, "_INTERVAL", 0)  # each call is an interval after the last
    with (
        closing(CeleryClient(Config(result_backend=redis_server.url))) as client,
        redis.Redis.from_url(redis_server.url) as server,
    ):
        before = lookups(server, "strlen")
        client.subscribe("long")

        for _ in range(5):
            client.app.backend.result_consumer.drain_events(0.01)

        assert lookups(server, "strlen") == before + 1


def test_an_empty_result_is_a_result(redis_server):
    """Celery's own code takes it for a result that is not there yet."""
    task_id = str(uuid.uuid4())
    with (
        closing(CeleryClient(Config(result_backend=redis_server.url))) as client,
        redis.Redis.from_url(redis_server.url) as server,
    ):
        server.set(client.app.backend.get_key_for_task(task_id), b"")

        outcome = client.wait(client.subscribe(task_id), time.monotonic() + TIMEOUT)

    assert outcome == Outcome(SUCCESS, error="no JSON result (JSONDecodeError)")


def test_threads_that_begin_at_once_share_one_backend(redis_server, monkeypatch):
    """Celery creates one in each of them, and forgets all but one with their subscriptions."""
    made = []
    create = Celery._get_backend
    monkeypatch.setattr(Celery, "_get_backend", lambda app: made.append(app) or create(app))
    begin = Barrier(THREADS)

    with (
        closing(CeleryClient(Config(result_backend=redis_server.url))) as client,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        assert len(made) == 1  # before anybody has asked

        def subscribe(number: int) -> None:
            begin.wait(TIMEOUT)
            client.subscribe(f"task-{number}")

        list(pool.map(subscribe, range(THREADS)))

        assert len(made) == 1
        consumer = client.app.backend.result_consumer
        assert len(consumer.subscribed_to) == THREADS


def lookups(server: redis.Redis, command: str = "get") -> int:
    return server.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0)
