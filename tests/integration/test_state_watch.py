"""What a gateway tells of the Redis of its claims, and who else uses it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import pytest
import redis

from gateway.claims.state_watch import StateWatch, others
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.stores import result_store
from gateway.stores.state_store import StateStore
from tests.integration.deliveries import KEYED
from tests.support.requests import metric
from tests.support.stack import RabbitMQ, Server, Stack, free_port
from tests.support.waiting import eventually

PREFIX = 'state_prefix = "shared"\n'


@pytest.fixture(scope="module")
def gateway(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server, tmp_path_factory) -> Server:
    path = tmp_path_factory.mktemp("watch") / "gateway.toml"
    path.write_text(PREFIX + KEYED)
    urls = ["--broker", rabbitmq.url, "--result-backend", redis_server.url]
    gateway = stack.gateway("--strategy=redis", *urls, "--processes", "2", "--config", str(path))
    yield gateway
    gateway.stop()


def config(gateway_broker: str, results: str, **settings: object) -> Config:
    route = {"path": "/keyed", "task": "faults.run", "idempotency": "header:Idempotency-Key"}
    some = {"broker_url": gateway_broker, "result_backend": results, "state_prefix": "shared"}
    return Config(**{**some, "routes": [route], **settings})


def test_another_deployment_with_the_same_prefix_is_seen(gateway, rabbitmq, redis_server):
    urls = rabbitmq.url, redis_server.url
    with redis.Redis.from_url(redis_server.url) as client:
        asyncio.run(eventually(lambda: client.exists("shared:deployments")))

    async def look(settings: dict[str, object]) -> list[str]:
        looking = config(*urls, **settings)
        async with result_store.asking(looking, looking.state) as ask:
            return await others(looking, ask)

    def seen(**settings: object) -> list[str]:
        return asyncio.run(look(settings))

    assert seen() == []
    assert seen(state_prefix="another") == []
    for settings in ({"broker_url": "amqp://another//"}, {"routes": [{"path": "/"}]}):
        (told,) = seen(**settings)
        assert "faults.run" in told and "guest" not in told


def test_check_says_who_else_is_there(gateway, rabbitmq, redis_server, tmp_path):
    path = tmp_path / "other.toml"
    path.write_text(PREFIX + KEYED.replace("faults.run", "another.task"))
    urls = ["--broker", rabbitmq.url, "--result-backend", redis_server.url]
    command = [sys.executable, "-m", "gateway", "check", "--config", str(path), *urls]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    (line,) = (line for line in done.stdout.splitlines() if "another gateway, with" in line)
    assert line.startswith("warn  state redis://") and "state_prefix" in line


def test_how_full_redis_is_can_be_seen(gateway, redis_server):
    with redis.Redis.from_url(redis_server.url) as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used * 4)
        try:
            asyncio.run(
                eventually(lambda: 0.1 < metric(gateway, "gateway_state_memory_ratio") < 0.5)
            )
        finally:
            client.config_set("maxmemory", 0)


def test_where_redis_is_gone_the_last_sizes_are_kept(rabbitmq, caplog):
    caplog.set_level(logging.DEBUG, "gateway.claims.state_watch")
    gone = config(rabbitmq.url, f"redis://127.0.0.1:{free_port()}/0")
    metrics = Metrics()
    metrics.set("gateway_state_keys", 7)

    async def watch() -> None:
        store = StateStore(gone, "claims")
        watching = StateWatch(gone, metrics, store)
        await store.start()
        await watching.start()
        await eventually(lambda: "cannot check the Redis of the claims" in caplog.text)
        await watching.stop()
        await store.stop()

    asyncio.run(watch())
    assert metrics.get("gateway_state_keys") == 7
    metrics.close()
