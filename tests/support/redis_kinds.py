"""Servers of every kind that `state_url` may name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from gateway.stack.programs import find
from tests.support.certificates import Certificates
from tests.support.stack import Server, Stack, free_port
from tests.support.waiting import until

KINDS = ["plain", "tls", "sentinel", "cluster"]


@contextmanager
def redis_of(kind: str, stack: Stack, certificates: Certificates) -> Iterator[Server]:
    """Start one; its `state` is for the setting, and its `url` for a test that looks into it."""
    servers: list[Server] = []
    if kind == "tls":
        tls, port = certificates.server, free_port()
        files = ("--tls-ca-cert-file", tls.ca, "--tls-cert-file", tls.cert)
        files += ("--tls-key-file", tls.key, "--tls-port", port)
        servers.append(server := stack.redis(*map(str, files)))
        own = certificates.client
        options = f"ssl_ca_certs={own.ca}&ssl_certfile={own.cert}&ssl_keyfile={own.key}"
        server.state = f"rediss://127.0.0.1:{port}/0?{options}"
    elif kind == "sentinel":
        servers.append(server := stack.redis())
        port, conf = free_port(), stack.directory / f"sentinel-{free_port()}.conf"
        of = f"127.0.0.1 {server.url.rpartition(':')[2].removesuffix('/0')} 1"
        conf.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor main {of}\n")
        argv = [find("redis-server", "redis-server"), str(conf), "--sentinel"]
        servers.append(stack.spawn("sentinel", argv, ready="+monitor master"))
        server.state = f"sentinel://127.0.0.1:{port}/0?master_name=main"
    elif kind == "cluster":
        nodes = Nodes(stack, 1)
        servers += nodes.masters
        server = nodes.masters[0]
        server.state = server.url
    else:
        servers.append(server := stack.redis())
        server.state = server.url
    yield server
    for each in reversed(servers):
        each.stop()


class Nodes:
    """The masters of a Redis Cluster, which share its slots, and the replica of the first one."""

    def __init__(self, stack: Stack, masters: int, replica: bool = False):
        self._stack = stack
        self.masters = [self._start() for _ in range(masters)]
        share = 16_384 / masters
        for n, node in enumerate(self.masters):
            first, last = round(n * share), round((n + 1) * share) - 1
            self.ask(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            self.ask(node, "CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for node in self.masters[1:]:
            self.join(node)
        until(lambda: all(self.well(node) for node in self.masters))
        if replica:
            self.replica = self._start()
            self.join(self.replica)
            first = self.id(self.masters[0])
            until(lambda: first in self.ask(self.replica, "CLUSTER", "NODES"))
            self.ask(self.replica, "CLUSTER", "REPLICATE", first)
            with redis.Redis.from_url(self.masters[0].url) as client:
                until(lambda: client.wait(1, 100))

    @property
    def url(self) -> str:
        return self.masters[-2].url

    def _start(self) -> Server:
        server = self._stack.redis(
            *("--cluster-enabled", "yes", "--cluster-node-timeout", "1000"),
            *("--cluster-require-full-coverage", "no", "--cluster-port", str(free_port())),
        )
        server.bus = server_bus(server)
        return server

    def join(self, node: Server) -> None:
        host, port = "127.0.0.1", port_of(self.masters[0])
        self.ask(node, "CLUSTER", "MEET", host, port, self.masters[0].bus)

    def ask(self, node: Server, *command: object) -> str:
        with redis.Redis.from_url(node.url, decode_responses=True) as client:
            reply = client.execute_command(*command)
        return reply if isinstance(reply, str) else str(reply)

    def id(self, node: Server) -> str:
        return self.ask(node, "CLUSTER", "MYID")

    def well(self, node: Server) -> bool:
        """Does this node know all others, with all slots?"""
        known = self.ask(node, "CLUSTER", "INFO")
        return "state:ok" in known and f"known_nodes:{len(self.masters)}\r" in known

    def move(self, slot: int, source: Server, target: Server) -> None:
        """Move a slot with its keys, as a resharding does."""
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id(source))
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id(target))
        with redis.Redis.from_url(source.url) as client:
            while keys := client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
                for key in keys:
                    client.migrate("127.0.0.1", port_of(target), key, 0, 5_000)
                    time.sleep(0)
        for node in (target, source):
            self.ask(node, "CLUSTER", "SETSLOT", slot, "NODE", self.id(target))

    def stop(self) -> None:
        for node in (*self.masters, *([self.replica] if hasattr(self, "replica") else [])):
            node.kill()


def server_bus(server: Server) -> int:
    with redis.Redis.from_url(server.url) as client:
        return int(client.config_get("cluster-port")["cluster-port"])


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2].removesuffix("/0"))
