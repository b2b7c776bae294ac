"""Servers of every kind that `state_url` may name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import redis

from gateway.config.settings import TLS, Config
from gateway.stack.programs import find
from tests.support.certificates import Certificates
from tests.support.stack import Server, Stack, free_port
from tests.support.waiting import until

#: What a Sentinel may do whose partition is to end without it; the other knows nothing of it.
USERS = [
    *("--user", "default", "off"),
    *("--user", "gateway", "on", ">s", "~*", "&*", "+@all"),
    *("--user", "sentinel", "on", ">s", "~*", "&*", "+@all"),
    *("--user", "cut", "on", ">s", "resetchannels", "+ping", "+info", "+client"),
]
KINDS = ["plain", "tls", "sentinel", "cluster"]


def start_sentinel(
    stack: Stack, primary: Server, ready: str, *settings: str, tls: Sequence[str] = ()
) -> Server:
    """Start a Sentinel that watches a server, called `main`, until it says that it is `ready`.

    `tls` are the settings of its certificates, without which it has no TLS.
    """
    port, conf = free_port(), stack.directory / f"sentinel-{free_port()}.conf"
    lines = [
        *tls,
        *(["port 0", f"tls-port {port}"] if tls else [f"port {port}"]),
        "bind 127.0.0.1",
        f"sentinel monitor main 127.0.0.1 {primary.port} 1",
        "sentinel failover-timeout main 5000",
        *settings,
    ]
    conf.write_text("\n".join(lines))
    argv = [find("redis-server", "redis-server"), str(conf), "--sentinel"]
    server = stack.spawn("sentinel", argv, ready=ready)
    server.url = f"redis://127.0.0.1:{port}/0"
    return server


def redis_of(kind: str, stack: Stack, certificates: Certificates) -> Server:
    """Start one; its `state` is for the setting, and its `url` for a test that looks into it."""
    if kind == "tls":
        tls, port = certificates.server, free_port()
        files = ("--tls-ca-cert-file", tls.ca, "--tls-cert-file", tls.cert)
        files += ("--tls-key-file", tls.key, "--tls-port", port)
        server, own = stack.redis(*map(str, files)), certificates.client
        options = f"ssl_ca_certs={own.ca}&ssl_certfile={own.cert}&ssl_keyfile={own.key}"
        server.state = f"rediss://127.0.0.1:{port}/0?{options}"
    elif kind == "sentinel":
        server = stack.redis()
        sentinel = start_sentinel(stack, server, "+monitor master")
        server.state = f"sentinel://127.0.0.1:{sentinel.port}/0?master_name=main"
    else:
        server = Nodes(stack, 1).masters[0] if kind == "cluster" else stack.redis()
        server.state = server.url
    return server


def account(server: Server, *forbidden: str, channels: Sequence[str] = ("*",)) -> str:
    """Make an account that may do everything but these commands; return the URL with its name."""
    name = "-".join(["without", *forbidden])
    with redis.Redis.from_url(server.url) as client:
        client.acl_setuser(
            name, enabled=True, passwords=["+secret"], categories=["+@all"], keys=["*"],
            commands=[f"-{each}" for each in forbidden], channels=channels,
            reset_channels=not channels,
        )  # fmt: skip
    return server.url.replace("redis://", f"redis://{name}:secret@")


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
        host, port = "127.0.0.1", self.masters[0].port
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
                    client.migrate("127.0.0.1", target.port, key, 0, 5_000)
                    time.sleep(0)
        for node in (target, source):
            self.ask(node, "CLUSTER", "SETSLOT", slot, "NODE", self.id(target))

    def stop(self) -> None:
        for node in (*self.masters, *([self.replica] if hasattr(self, "replica") else [])):
            node.kill()


def server_bus(server: Server) -> int:
    with redis.Redis.from_url(server.url) as client:
        return int(client.config_get("cluster-port")["cluster-port"])


class Watched:
    """A primary and its replicas; a Sentinel watches them, one more is on the primary's side."""

    NAME, PASSWORD = "main", "watch-word"

    def __init__(self, stack: Stack, *options: str, tls: TLS | None = None, replicas: int = 1):
        self._stack, self._tls = stack, tls
        self.primary = self._redis(*options)
        of = "--replicaof", "127.0.0.1", str(self.primary.port)
        of += "--masteruser", "sentinel", "--masterauth", "s"
        self.replica, *self._more = [self._redis(*of) for _ in range(replicas)]
        self.sentinel = self._sentinel("sentinel", "+slave ")
        self.cut = self._sentinel("cut", "+monitor master")
        # Each connection with TLS takes a tenth of a second of CPU time.
        ports = [self.sentinel.port] if tls else [self.cut.port, self.sentinel.port]
        self.url = ";".join(f"sentinel://gateway:s@127.0.0.1:{port}/0" for port in ports)
        self.url += f"?master_name={self.NAME}" + ("&ssl=true" if tls else "")

    def _files(self, prefix: str = "--tls-") -> list[str]:
        tls = self._tls
        if tls is None:
            return []
        return [
            *(f"{prefix}ca-cert-file", str(tls.ca), f"{prefix}cert-file", str(tls.cert)),
            *(f"{prefix}key-file", str(tls.key), f"{prefix}replication", "yes"),
        ]

    def _redis(self, *options: str) -> Server:
        args = [*USERS, *options]
        if self._tls is not None:
            port = free_port()
            server = self._stack.redis(
                *args, "--port", "0", "--tls-port", str(port), *self._files()
            )
            server.url = f"rediss://gateway:s@127.0.0.1:{port}/0"
            return server
        server = self._stack.redis(*args)
        server.url = server.url.replace("//", "//gateway:s@")
        return server

    def _sentinel(self, user: str, ready: str) -> Server:
        files, down_after = self._files("tls-"), 500 if user == "sentinel" else 3_600_000
        return start_sentinel(
            self._stack, self.primary, ready,
            f"requirepass {self.PASSWORD}",
            f"sentinel auth-user {self.NAME} {user}",
            f"sentinel auth-pass {self.NAME} s",
            f"sentinel down-after-milliseconds {self.NAME} {down_after}",
            tls=[f"{name} {value}" for name, value in zip(files[::2], files[1::2], strict=True)],
        )  # fmt: skip

    def client(self, server: Server) -> redis.Redis:
        files = {}
        if self._tls is not None:
            files = {"ssl_ca_certs": self._tls.ca, "ssl_certfile": self._tls.cert}
            files |= {"ssl_keyfile": self._tls.key}
        return redis.Redis.from_url(server.url, **files)

    def part(self) -> None:
        """Cut the primary off from its replica and the Sentinel, until that promotes the other."""
        with self.client(self.primary) as client:
            client.execute_command("ACL", "SETUSER", "sentinel", "off")
            client.execute_command("CLIENT", "KILL", "USER", "sentinel")
        until(lambda: "+switch-master" in self.sentinel.output(), said=self.sentinel.output)
        with self.client(self.primary) as client:
            assert client.role()[0] == b"master"

    def config(self, **more: Any) -> Config:
        return Config(result_backend=self.url, sentinel_password=self.PASSWORD, **more)
