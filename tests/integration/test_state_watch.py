"""What a gateway tells of the Redis of its claims."""

from __future__ import annotations

import logging

import pytest
import redis

from gateway.claims.idempotency import StateWatch
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.stores.state_store import StateStore
from tests.integration.deliveries import KEYED
from tests.support.requests import metric
from tests.support.stack import Server, free_port
from tests.support.waiting import eventually, until

PREFIX = 'state_prefix = "shared"\n'


@pytest.fixture(scope="module")
def gateway(start_gateway) -> Server:
    return start_gateway(PREFIX + KEYED, "--strategy=redis", "--processes", "2")


def config(gateway_broker: str, results: str, **settings: object) -> Config:
    route = {"path": "/keyed", "task": "faults.run", "idempotency": "header:Idempotency-Key"}
    some = {"broker_url": gateway_broker, "result_backend": results, "state_prefix": "shared"}
    return Config(**{**some, "routes": [route], **settings})


def test_how_full_redis_is_can_be_seen(gateway, redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used * 4)
        try:
            until(lambda: 0.1 < metric(gateway, "gateway_state_memory_ratio") < 0.5)
        finally:
            client.config_set("maxmemory", 0)


async def test_where_redis_is_gone_the_last_sizes_are_kept(rabbitmq, caplog):
    caplog.set_level(logging.DEBUG, "gateway.claims.idempotency")
    gone = config(rabbitmq.url, f"redis://127.0.0.1:{free_port()}/0")
    metrics = Metrics()
    metrics.set("gateway_state_keys", 7)

    store = StateStore(gone, "claims")
    watching = StateWatch(metrics, store)
    await store.start()
    await watching.start()
    await eventually(lambda: "cannot check the Redis of the claims" in caplog.text)
    await watching.stop()
    await store.stop()
    assert metrics.get("gateway_state_keys") == 7
    metrics.close()
