"""Open connections to Redis, with redis-py: with addresses, TLS, Sentinel and passwords.

It is imported when a connection is made, or by what uses Celery's own client of Redis: it needs
11 MB, which a process without Redis saves.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, cast

import redis.asyncio
from kombu.utils.url import url_to_parts
from redis.asyncio.connection import RedisSSLContext, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError, ResponseError

from gateway.config.settings import Config
from gateway.config.urls import at, database, master_name, redis_tls, secure, without_options
from gateway.errors import Unanswered
from gateway.stores.server import CONNECT_TIMEOUT, HELLO, LOST, Address, about, described, unusable

#: Seconds for the Sentinels' answers: whoever connects waits for at least a second.
SENTINELS = 0.6

_LOST = (RedisError, *LOST)


class _Secure(SSLConnection):
    """A connection that shares its TLS context, which takes 30 ms of the loop to make.

    All with the same options have the same one, until one of the files is replaced.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        its = self.ssl_context
        files = its.keyfile, its.certfile, its.ca_certs
        written = tuple(name and os.stat(name).st_mtime_ns for name in files)
        self.ssl_context = _context(*files, its.cert_reqs, its.check_hostname, written)


class _SecureMaster(SentinelManagedSSLConnection, _Secure):
    """The same to a master that Sentinels tell."""


@lru_cache(16)
def _context(key: str, cert: str, ca: str, needed: Any, named: bool, _: object) -> RedisSSLContext:
    return RedisSSLContext(key, cert, needed, ca_certs=ca, check_hostname=named)


class Client(redis.asyncio.Redis):
    """A client of one server, whose errors of a connection are the gateway's."""

    #: Are there Sentinels who know whether it is still the one to use?
    watched = False

    async def opened(self) -> tuple[asyncio.StreamWriter, bool, str]:
        """Open a connection and greet the server.

        Returns its writer, whether the server is a node of a cluster, and its host. The connection
        lives as long as the writer is referred to. Raises `Unanswered`, or another one of
        `gateway.stores.server.LOST`.
        """
        try:
            connection: Any = await self.connection_pool.get_connection()
        except RedisError as exc:
            raise Unanswered(described(exc)) from exc
        # redis-py, which has no public name for it, is not to close it any more: it waits, and
        # leaves it open where it is cancelled. Without its writer it would be closed at once.
        writer, connection._writer = connection._writer, None
        greeted = getattr(connection, "greeted", {})
        return writer, greeted.get(b"mode") == b"cluster", connection.host

    async def replaced(self) -> bool:
        """Ask the Sentinels whether the server is another one by now.

        Where a partition has cut it off, it still answers, and only they know.
        """
        return False

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        # A peer that is away does not answer the end of TLS, which redis-py waits for.
        with suppress(*_LOST):
            await super().aclose(close_connection_pool)

    async def messages(
        self, channel: str, patience: float, silence: float
    ) -> AsyncGenerator[bytes | None, None]:
        """Yield None when `channel` is subscribed, within `patience` seconds, then its messages.

        After `silence` seconds without any the server is asked whether it is there. Raises
        `Unanswered` where the connection cannot be made, or is lost.
        """
        try:
            async with self as client, client.pubsub() as listening:
                async with asyncio.timeout(patience):
                    await listening.subscribe(channel)
                asked = False
                while True:
                    message = await listening.get_message(timeout=silence)
                    if message is not None:
                        asked = False
                        if message["type"] != "pong":
                            yield message["data"] if message["type"] == "message" else None
                    elif asked:
                        raise TimeoutError
                    else:
                        await listening.ping()
                        asked = True
        except _LOST as exc:
            raise Unanswered(str(exc) or "no answer in time") from exc


def connect(
    config: Config, url: str, *, clusters: bool = False, node: Address | None = None
) -> Client:
    """Make a client for the Redis at `url`: see `gateway.stores.result_store.connect`.

    `clusters`: it may be a node of a cluster, or be led to another `node` of it.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": None,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "redis_connect_func": partial(_greet, clusters=clusters, primary=node is not None),
    }
    options |= redis_tls(url, config.tls)
    if url.startswith("sentinel:"):
        return _master(config, url, options)
    if node is not None:
        url = at(url, *node)
    client = Client.from_url(without_options(url), **options)
    if secure(url):
        client.connection_pool.connection_class = _Secure
    return cast(Client, client)


async def _greet(connection: Any, clusters: bool, primary: bool) -> None:
    """Greet the server of a new `connection` of redis-py (its `redis_connect_func`).

    Raises `redis.exceptions.ConnectionError` where it is not to be used: see `unusable`.
    """
    await connection.on_connect()
    await connection.send_command(HELLO)
    try:
        hello = await connection.read_response()
    except ResponseError:  # an older Redis, a proxy, an account that may not
        return
    connection.greeted = about(hello)
    if problem := unusable(hello, clusters, primary):
        raise ConnectionError(problem)


class _Sentinels(Sentinel):
    """Asks all Sentinels at once, as one of them may be cut off from the others.

    Where they disagree, the configuration of the highest epoch is the latest.
    https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/#configuration-epochs
    """

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        asked = (each.sentinel_masters() for each in self.sentinels)
        replies = await asyncio.gather(*asked, return_exceptions=True)
        states = [
            state
            for reply in replies
            if isinstance(reply, dict) and (state := reply.get(service_name)) is not None
        ]
        if not states:
            problems = {str(r) if isinstance(r, Exception) else "unknown there" for r in replies}
            reasons = "; ".join(sorted(problems))
            raise MasterNotFoundError(f"the Sentinels tell no master {service_name!r}: {reasons}")
        latest = max(states, key=lambda state: int(state["config-epoch"]))
        if not self.check_master_state(latest, service_name):
            raise MasterNotFoundError(f"the master {service_name!r} is down, say the Sentinels")
        return latest["ip"], int(latest["port"])


class _Master(Client):
    """A client of a master, which also closes the clients of the Sentinels."""

    watched = True

    async def replaced(self) -> bool:
        pool = cast(SentinelConnectionPool, self.connection_pool)
        try:
            found = await pool.sentinel_manager.discover_master(pool.service_name)
        except _LOST:
            # They do not answer, or the master is down: its connection tells that.
            return False
        return bool(found != pool.master_address)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        pool = cast(SentinelConnectionPool, self.connection_pool)
        sentinels = pool.sentinel_manager.sentinels
        closing = (sentinel.aclose() for sentinel in sentinels)
        await asyncio.gather(*closing, return_exceptions=True)


def _master(config: Config, url: str, options: dict[str, Any]) -> _Master:
    """Make a client for ``sentinel://host:26379/0;sentinel://...?master_name=NAME``."""
    parts = [url_to_parts(part) for part in url.split(";")]
    watchers = [(part.hostname, part.port or 26379) for part in parts]
    # A Sentinel that does not answer is skipped without a retry.
    asking = sentinel_options(config, url, SENTINELS) | {"retry": options["retry"]}
    account: dict[str, Any] = {"username": parts[0].username, "password": parts[0].password}
    account |= {"db": int(database(url.split(";")[0])), "ssl": secure(url)}
    sentinels = _Sentinels(watchers, sentinel_kwargs=asking)
    if secure(url):
        account["connection_class"] = _SecureMaster
        for sentinel in sentinels.sentinels:
            sentinel.connection_pool.connection_class = _Secure
    return sentinels.master_for(master_name(url), _Master, **account, **options)


def sentinel_options(config: Config, url: str, timeout: float) -> dict[str, Any]:
    """Return redis-py's options for the Sentinels of `url`; they have an account of their own."""
    password = config.sentinel_password
    return {
        "socket_timeout": timeout,
        "username": config.sentinel_username,
        "password": password and password.get_secret_value(),
        "ssl": secure(url),
        **redis_tls(url, config.tls),
    }
