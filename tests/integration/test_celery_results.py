"""Results that Celery's client has not heard of, and reads from the store."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import redis

from gateway.config.settings import Config
from gateway.outcome import SUCCESS, Outcome
from gateway.stack.server import poll
from gateway.strategies.celery_client import CeleryClient

TIMEOUT = 20  # seconds


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


def lookups(server: redis.Redis) -> int:
    return server.info("commandstats").get("cmdstat_get", {}).get("calls", 0)
