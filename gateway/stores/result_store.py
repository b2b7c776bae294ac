"""Connect to the Redis where Celery's workers store results, or to that of the claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import redis.asyncio
from kombu.utils.url import maybe_sanitize_url, url_to_parts
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError

from gateway.celery_message import RESULT_KEY
from gateway.config.settings import Config
from gateway.config.urls import database, master_name, redis_tls, without_options
from gateway.errors import GatewayError
from gateway.stores.primary import only_primary

Ask = Callable[..., Awaitable[Any]]

#: Errors of a lost connection. For a write to a closed transport uvloop raises RuntimeError, and
#: asyncio of Python 3.12 and 3.13 TypeError (https://github.com/python/cpython/issues/136234).
LOST = (RedisError, OSError, RuntimeError, TypeError)

CONNECT_TIMEOUT = 3.0  # seconds
#: Seconds for all Sentinels together: whoever connects waits for at least a second.
SENTINELS = 0.6
PATIENCE = 3.0  # seconds that `asking` waits for a reply


def key_prefix(config: Config) -> str:
    """Return the part of a result's key before the task id, as Celery writes it."""
    prefix = config.result_key_prefix
    if prefix and prefix[-1] not in ":_-.":
        prefix += "_"
    return prefix + RESULT_KEY


def connect(config: Config, url: str = "") -> redis.asyncio.Redis:
    """Make a client for the Redis at `url` (default: the result store); it connects when used.

    It does not retry, and commands have no timeout: the caller sets a deadline. A replica and a
    node of a cluster are refused: see `gateway.stores.primary`.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": None,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "redis_connect_func": only_primary,
    }
    url = url or config.results
    if url.startswith("sentinel:"):
        return _master(url, options)
    options |= redis_tls(url, config.tls)
    return redis.asyncio.Redis.from_url(without_options(url), **options)


def encoded(command: Sequence[bytes | str | int]) -> tuple[bytes | str | int, ...]:
    """Return a command whose arguments are no texts: what UTF-8 has not is a question mark.

    redis-py would raise an error, which would end the connection for the commands of all others.
    Its name stays a text, by which redis-py knows the form of the reply.
    """
    name, *arguments = command
    return name, *(a.encode(errors="replace") if isinstance(a, str) else a for a in arguments)


class _Master(redis.asyncio.Redis):
    """A client of a master, which also closes the clients of the Sentinels."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        pool = cast(SentinelConnectionPool, self.connection_pool)
        sentinels = pool.sentinel_manager.sentinels
        await asyncio.gather(*(sentinel.aclose() for sentinel in sentinels))


def _master(url: str, options: dict[str, Any]) -> redis.asyncio.Redis:
    """Make a client for ``sentinel://host:26379/0;sentinel://...?master_name=NAME``."""
    parts = [url_to_parts(part) for part in url.split(";")]
    watchers = [(part.hostname, part.port or 26379) for part in parts]
    # A Sentinel that does not answer is skipped without a retry.
    patience = {"socket_timeout": SENTINELS / len(parts), "retry": options["retry"]}
    account: dict[str, Any] = {"username": parts[0].username, "password": parts[0].password}
    sentinel = Sentinel(watchers, sentinel_kwargs=patience)
    account["db"] = int(database(url.split(";")[0]))
    return sentinel.master_for(master_name(url), _Master, **account, **options)


def without_password(url: str) -> str:
    """Return a store's URL without its password, so that it can be shown."""
    return ";".join(map(maybe_sanitize_url, url.split(";")))


@asynccontextmanager
async def asking(config: Config, url: str) -> AsyncIterator[Ask]:
    """Yield a coroutine function that sends a command to the Redis at `url` and returns the reply.

    The function raises `GatewayError` where there is no reply within `PATIENCE`.
    """

    async def ask(*command: str | int) -> Any:
        try:
            async with asyncio.timeout(PATIENCE):
                return await client.execute_command(*encoded(command))
        except LOST as exc:
            away = isinstance(exc, (ConnectionError, OSError, RuntimeError, TypeError))
            name = "state_url" if config.state_url and url == config.state else "result_backend"
            remedy = f"; start it, or correct {name} (GATEWAY_{name.upper()})" if away else ""
            problem = f"{without_password(url)}: {str(exc) or 'no answer in time'}{remedy}"
            raise GatewayError(problem) from exc

    async with connect(config, url) as client:
        yield ask
