"""Where results cannot be stored, each pool's worker goes on, and no task runs twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from gateway.stack import free_port
from tests.faults.oracle import executions
from tests.faults.tasks import EXECUTED
from tests.integration.losses import Servers
from tests.support.requests import post_all
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import until

LOST, ASKED = 100, 16  # deliveries of each outage, and requests after it


@contextmanager
def full(store: redis.Redis) -> Iterator[None]:
    store.config_set("maxmemory-policy", "noeviction")
    store.config_set("maxmemory", "1mb")
    yield
    store.config_set("maxmemory", "0")


@contextmanager
def read_only(store: redis.Redis) -> Iterator[None]:
    store.replicaof("127.0.0.1", free_port())
    yield
    store.replicaof("NO", "ONE")


@contextmanager
def forbidden(store: redis.Redis) -> Iterator[None]:
    store.execute_command("ACL SETUSER", "default", "-evalsha")
    yield
    store.execute_command("ACL SETUSER", "default", "+evalsha")


WAYS = [full, read_only, forbidden]


@pytest.fixture
def results(stack: Stack, start) -> Iterator[Server]:
    results = start(stack.redis)
    yield results
    results.kill()


@pytest.fixture
def servers(stack: Stack, rabbitmq: RabbitMQ, results: Server, tmp_path_factory):
    servers = Servers(stack, rabbitmq, results.url, tmp_path_factory.mktemp("lost"))
    yield servers
    servers.stop()


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet", "solo", "prefork"])
def test_a_worker_goes_on(servers: Servers, pool: str):
    size = 1 if pool == "solo" else 4
    worker, gateway = servers.worker(pool, size), servers.gateway("--strategy=redis")
    sent: list[str] = []

    def ran() -> Counter[str]:
        return Counter(one.id for one in executions(servers.directory / EXECUTED))

    def post(path: str, number: int) -> list[int]:
        bodies = [f"{path}-{len(sent) + n}" for n in range(number)]
        sent.extend(bodies)
        answers = post_all(gateway.url + path, [body.encode() for body in bodies])
        return [answer.code for answer in answers]

    with redis.Redis.from_url(servers.results) as store:
        for way in WAYS:
            with way(store):
                assert post("/accept", LOST) == [202] * LOST
                until(lambda: len(ran()) == len(sent), 30, ran().total)
                until(lambda: servers.messages() == (0, 0), 30, servers.messages)
            assert post("/wait", ASKED) == [200] * ASKED
    worker.stop()
    worker.restart()
    assert post("/wait", ASKED) == [200] * ASKED
    assert set(ran().values()) == {1} and len(ran()) == len(sent)
