"""A name that leads to a new primary while connections to the old one live on, and other servers.

`proxy` is the name: it leads new connections elsewhere, and keeps those that live.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from gateway.config.strategies import STRATEGIES
from gateway.stack import free_port
from tests.faults.proxy import Proxy
from tests.integration.checking import check, servers_at, write
from tests.integration.deliveries import KEYED, Servers, send
from tests.support.requests import fetch
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import until

ROUTES = f"{KEYED}\n[[routes]]\npath = '/wait'\ntask = 'faults.run'\n"


class Named:
    """What gateway and worker are given as their Redis: a name, which leads to the `primary`."""

    def __init__(self, stack: Stack):
        self._stack = stack
        self.primary, self.replica = stack.redis(), stack.redis()
        self.proxy = Proxy(self.primary.port)
        self.url = f"redis://127.0.0.1:{self.proxy.port}/0"

    def fail_over(self) -> None:
        """Lead the name to the other server; the old primary is its replica from now on."""
        self.primary, self.replica = self.replica, self.primary
        port = self.primary.port
        with client(self.primary) as new, client(self.replica) as old:
            new.replicaof("NO", "ONE")
            self.proxy.lead(port)
            old.replicaof("127.0.0.1", port)

    def lead(self, server: Server) -> None:
        self.proxy.lead(server.port)


def client(server: Server) -> redis.Redis:
    return redis.Redis.from_url(server.url)


@pytest.fixture
def named(stack: Stack) -> Iterator[Named]:
    named = Named(stack)
    yield named
    named.proxy.close()


@pytest.fixture
def servers(stack: Stack, rabbitmq: RabbitMQ, named: Named) -> Servers:
    return Servers(stack, rabbitmq, named)


def status(gateway: Server, target: str, body: str, *headers: str) -> int:
    answer = asyncio.run(send(gateway, target, body, *headers, patience=20))
    assert answer is not None
    return answer.status


def keyed(gateway: Server, body: str) -> int:
    return status(gateway, "/keyed", body, f"Idempotency-Key: {body}")


def readiness(gateway: Server) -> tuple[int, str]:
    answer = fetch(f"{gateway.admin_url}/readyz?route=/keyed")
    return answer.status, answer.body.decode()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_new_primary_is_used_though_connections_to_the_old_one_live(servers, named, strategy):
    gateway = servers.gateway(strategy, ROUTES)
    assert (status(gateway, "/wait", "before"), keyed(gateway, "one")) == (200, 200)

    named.fail_over()

    until(lambda: keyed(gateway, f"after-{free_port()}") == 200)
    until(lambda: status(gateway, "/wait", "after") == 200)
    until(lambda: readiness(gateway)[0] == 200)
    # The same for those that only listen, and for the worker's.
    assert [keyed(gateway, f"then-{n}") for n in range(5)] == [200] * 5
    if strategy != "pika":
        with client(named.primary) as new:
            assert new.keys("celery-task-meta-*")
    assert [one.id for one in servers.executions("one")] == ["one"]


def test_a_replica_is_not_ready_until_it_is_a_primary(servers, named):
    gateway = servers.gateway("redis", ROUTES)
    with client(named.primary) as server:
        server.replicaof("127.0.0.1", free_port())
        until(lambda: "it is a replica" in readiness(gateway)[1])
        assert readiness(gateway)[0] == 503
        assert (keyed(gateway, "a"), status(gateway, "/wait", "b")) == (503, 503)
        server.replicaof("NO", "ONE")
    until(lambda: readiness(gateway)[0] == 200)
    assert (keyed(gateway, "c"), status(gateway, "/wait", "d")) == (200, 200)


def test_a_primary_without_enough_replicas_is_not_ready(servers, named):
    gateway = servers.gateway("pika", ROUTES)
    with client(named.primary) as server:
        server.config_set("min-replicas-to-write", 1)
        until(lambda: "NOREPLICAS" in readiness(gateway)[1])
        assert readiness(gateway)[0] == 503
        assert (keyed(gateway, "a"), status(gateway, "/wait", "b")) == (503, 200)
        server.config_set("min-replicas-to-write", 0)
    until(lambda: readiness(gateway)[0] == 200)
    assert keyed(gateway, "c") == 200


@pytest.mark.parametrize("strategy", ["pika", "redis"])
def test_cluster_mode_is_refused_and_left(stack, servers, named, strategy):
    # The port of its bus is by default a fixed distance from the other, where somebody may be.
    cluster = stack.redis("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with client(cluster) as node:
        node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
    named.lead(cluster)
    named.proxy.reset()
    gateway = servers.gateway(strategy, ROUTES, ready="/healthz")
    until(lambda: "cluster mode" in readiness(gateway)[1])
    assert readiness(gateway)[0] == 503
    # The name leads to a Redis again, and nothing has to be started anew.
    assert keyed(gateway, "a") == 503
    named.lead(named.primary)
    until(lambda: readiness(gateway)[0] == 200)
    until(lambda: keyed(gateway, "b") == 200)


def test_a_check_of_another_kind_of_redis_fails(stack, rabbitmq, tmp_path):
    cluster = stack.redis("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    replica = stack.redis()
    with client(replica) as server:
        server.replicaof("127.0.0.1", free_port())
    for server, words in ((cluster, "it is in cluster mode"), (replica, "it is a replica")):
        checked = check(*servers_at(rabbitmq.url, server.url), *write(tmp_path, ROUTES))
        for name in ("results", "state"):
            assert checked.of(f"{name} redis").status == "FAIL"
            assert words in checked.of(f"{name} redis").text
        server.kill()
