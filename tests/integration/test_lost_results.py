"""Where results cannot be stored, each pool's worker goes on, and no task runs twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from celery import Celery

from gateway.amqp import worker_watch
from gateway.amqp.publisher import Publisher
from gateway.amqp.worker_watch import WorkerWatch
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.stack import free_port
from tests.faults.oracle import executions
from tests.faults.tasks import EXECUTED
from tests.integration.checking import Line, check
from tests.integration.losses import Servers, ask
from tests.support.parts import started
from tests.support.requests import post_all
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import eventually, until

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


@pytest.fixture
def results(stack: Stack, start) -> Server:
    return start(stack.redis)


@pytest.fixture
def servers(stack: Stack, own_rabbitmq: RabbitMQ, results: Server, tmp_path_factory):
    return Servers(stack, own_rabbitmq, results.url, tmp_path_factory.mktemp("lost"))


def client_of(servers: Servers) -> Celery:
    return Celery(broker=servers.broker.url, set_as_current=False)


def told(servers: Servers) -> Line:
    """Return what `gateway check` says of lost results."""
    return check("--config", f"{servers.directory}/gateway.toml", *servers.urls).of("lost results")


async def watched(broker: str) -> float:
    """Return what a gateway learns when it asks the workers."""
    metrics = Metrics()
    config = Config(broker_url=broker)
    async with started(Publisher(config, metrics)) as publisher:
        await eventually(lambda: publisher.connection is not None)
        await WorkerWatch(config, publisher, metrics).look()
    return metrics.get(worker_watch.LOST)


def test_a_broker_that_has_seen_no_worker_is_no_error(own_rabbitmq: RabbitMQ):
    assert asyncio.run(watched(own_rabbitmq.url)) == 0


@pytest.mark.parametrize(
    ("pool", "ways"),
    [
        ("threads", [full, read_only, forbidden]),
        ("gevent", [full, read_only, forbidden]),
        ("eventlet", [read_only]),
        ("solo", [full]),
        ("prefork", [full]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_worker_goes_on(servers: Servers, pool: str, ways):
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

    with redis.Redis.from_url(servers.results) as store, client_of(servers) as client:
        for way in ways:
            with way(store):
                client.send_task("nobody.has.it", queue=servers.queue)
                assert post("/accept", LOST) == [202] * LOST
                until(lambda: len(ran()) == len(sent), 30, ran().total)
                until(lambda: servers.messages() == (0, 0), 30, servers.messages)
            # A gateway does not use a replica.
            until(lambda: ask(gateway, "/readyz?route=/wait", admin=True)[0] == 200, 30)
            assert post("/wait", ASKED) == [200] * ASKED
    number = (LOST + 1) * len(ways)
    assert worker.output().count("is lost, and") == number
    line = told(servers)
    assert line.status == "warn" and f": {number} results since it was started" in line.text
    assert asyncio.run(watched(servers.broker.url)) == number
    worker.stop()
    worker.restart()
    assert post("/wait", ASKED) == [200] * ASKED
    assert set(ran().values()) == {1} and len(ran()) == len(sent)
