"""Connect to the Redis where Celery's workers store results, or to that of the claims.

A name may lead to a new primary while connections to the old one live on. What that one answers to
a write says so; to a subscriber it says nothing at all.
https://redis.io/docs/latest/commands/hello/
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import redis.asyncio
from kombu.utils.url import maybe_sanitize_url, url_to_parts
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError, ResponseError

from gateway.celery_message import MAX_STORED, RESULT_KEY
from gateway.config.settings import Config
from gateway.config.urls import at, database, master_name, redis_tls, secure, without_options
from gateway.errors import GatewayError

Ask = Callable[..., Awaitable[Any]]
#: Host and port.
Address = tuple[str, int]

#: Errors of a lost connection. For a write to a closed transport uvloop raises RuntimeError, and
#: asyncio of Python 3.12 and 3.13 TypeError (https://github.com/python/cpython/issues/136234).
LOST = (RedisError, OSError, RuntimeError, TypeError)

CONNECT_TIMEOUT = 3.0  # seconds
#: Seconds for the Sentinels' answers: whoever connects waits for at least a second.
SENTINELS = 0.6
PATIENCE = 3.0  # seconds that `asking` waits for a reply

#: The command whose reply says what a server is; Redis has it since version 6.
HELLO = "HELLO"

#: Results that are looked for together, and bytes of those that are read together: more could be
#: more than arrives in time, or than there is room for. The first one is read in any case.
TOGETHER, _BYTES = 500, 8 * 1024 * 1024

# Returns values from the first key on, as many as fit. Instead of one that is too large it returns
# its size. KEYS: of results. Arguments: bytes of a value, bytes of all
READ = """
local found, left = {}, tonumber(ARGV[2])
for i, key in ipairs(KEYS) do
    local size = redis.pcall('STRLEN', key)
    if type(size) == 'table' then
        if not string.find(size.err, 'WRONGTYPE', 1, true) then
            return size
        end
        found[i] = false -- it is no text, so no worker has stored it
    elseif size > tonumber(ARGV[1]) then
        found[i] = size
    else
        left = left - size
        if left < 0 and i > 1 then
            break
        end
        found[i] = redis.call('GET', key)
    end
end
return found
"""

# Scripts of Redis 6 have the error of their command behind their own.
_elsewhere = re.compile(
    r"(?:^|: -)(?:READONLY|NOREPLICAS|MASTERDOWN|LOADING|UNBLOCKED|CLUSTERDOWN|CROSSSLOT|MOVED|ASK"
    r"|TRYAGAIN)\b"
).search


def key_prefix(config: Config) -> str:
    """Return the part of a result's key before the task id, as Celery writes it."""
    prefix = config.result_key_prefix
    if prefix and prefix[-1] not in ":_-.":
        prefix += "_"
    return prefix + RESULT_KEY


async def stored(
    run: Ask, prefix: str, task_ids: Sequence[str]
) -> AsyncIterator[tuple[str, bytes | int]]:
    """Yield those of the tasks that have a result, with what `decode_result` takes.

    `run` sends a command and returns an awaitable of the reply; it fails as that does.
    """
    while task_ids:
        found = await run(*reading([prefix + each for each in task_ids[:TOGETHER]]))
        for task_id, payload in zip(task_ids, found, strict=False):
            if payload is not None:
                yield task_id, payload
        task_ids = task_ids[len(found) :]


def reading(keys: Sequence[str | bytes]) -> tuple[str | bytes | int, ...]:
    """Return the command that reads results: its reply has those of the first of `keys` that fit.

    A result that is too large to be read is its size there, and a missing one None.
    """
    return ("EVAL", READ, len(keys), *keys, MAX_STORED, _BYTES)


def connect(
    config: Config, url: str = "", *, state: bool = False, node: Address | None = None
) -> redis.asyncio.Redis:
    """Make a client for the Redis at `url` (default: the result store); it connects when used.

    It does not retry, and commands have no timeout: the caller sets a deadline. A replica is
    refused, and so is a node of a cluster, which only the Redis of the claims may be (`state`):
    this or another `node` of it.
    """
    clusters = state and config.state_url is not None
    options: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": None,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "redis_connect_func": partial(greet, clusters=clusters, primary=node is not None),
    }
    url = url or config.results
    options |= redis_tls(url, config.tls)
    if url.startswith("sentinel:"):
        return _master(config, url, options)
    if node is not None:
        url = at(url, *node)
    return redis.asyncio.Redis.from_url(without_options(url), **options)


def elsewhere(error: str) -> bool:
    """Does the text of a server's error say that this is not, or no more, the server to ask?"""
    return _elsewhere(error) is not None


def unusable(hello: Sequence[Any], clusters: bool = False, primary: bool = True) -> str:
    """Return why a server is not to be used, from its reply to HELLO; empty where it is.

    `clusters`: a node of a cluster may be; without `primary` also one that takes no writes.
    """
    about = _about(hello)
    if about.get(b"mode") == b"cluster":
        if not clusters:
            return (
                "it is in cluster mode: Celery stores no results there; use the strategy pika, or "
                "another Redis as result_backend and this one as state_url"
            )
        if not primary:
            return ""
    if about.get(b"role", b"master") != b"master":
        return "it is a replica, which takes no writes"
    return ""


def _about(hello: Sequence[Any]) -> dict[bytes, Any]:
    return dict(zip(hello[::2], hello[1::2], strict=False))


async def greet(connection: Any, clusters: bool = False, primary: bool = True) -> None:
    """Greet the server of a new `connection` of redis-py (its `redis_connect_func`).

    Raises `redis.exceptions.ConnectionError` where it is not to be used: see `unusable`.
    """
    await connection.on_connect()
    await connection.send_command(HELLO)
    try:
        hello = await connection.read_response()
    except ResponseError:  # an older Redis, a proxy, an account that may not
        return
    connection.greeted = _about(hello)
    if problem := unusable(hello, clusters, primary):
        raise ConnectionError(problem)


def is_clustered(connection: Any) -> bool:
    """Tell whether the server of a greeted connection is a node of a cluster."""
    return bool(getattr(connection, "greeted", {}).get(b"mode") == b"cluster")


def encoded(command: Sequence[bytes | str | int]) -> tuple[bytes | str | int, ...]:
    """Return a command whose arguments are no texts: what UTF-8 has not is a question mark.

    redis-py would raise an error, which would end the connection for the commands of all others.
    Its name stays a text, by which redis-py knows the form of the reply.
    """
    name, *arguments = command
    return name, *(a.encode(errors="replace") if isinstance(a, str) else a for a in arguments)


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


class Master(redis.asyncio.Redis):
    """A client of a master, which also closes the clients of the Sentinels."""

    async def replaced(self) -> bool:
        """Ask the Sentinels whether the master is another one by now.

        Where a partition has cut it off, it still answers, and only they know.
        """
        pool = cast(SentinelConnectionPool, self.connection_pool)
        try:
            found = await pool.sentinel_manager.discover_master(pool.service_name)
        except LOST:  # they do not answer, or the master is down: its connection tells that
            return False
        return bool(found != pool.master_address)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        pool = cast(SentinelConnectionPool, self.connection_pool)
        sentinels = pool.sentinel_manager.sentinels
        await asyncio.gather(*(sentinel.aclose() for sentinel in sentinels))


def _master(config: Config, url: str, options: dict[str, Any]) -> redis.asyncio.Redis:
    """Make a client for ``sentinel://host:26379/0;sentinel://...?master_name=NAME``."""
    parts = [url_to_parts(part) for part in url.split(";")]
    watchers = [(part.hostname, part.port or 26379) for part in parts]
    # A Sentinel that does not answer is skipped without a retry.
    asking = sentinel_options(config, url, SENTINELS) | {"retry": options["retry"]}
    account: dict[str, Any] = {"username": parts[0].username, "password": parts[0].password}
    account |= {"db": int(database(url.split(";")[0])), "ssl": secure(url)}
    sentinels = _Sentinels(watchers, sentinel_kwargs=asking)
    return sentinels.master_for(master_name(url), Master, **account, **options)


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


def without_password(url: str) -> str:
    """Return a store's URL without its password, so that it can be shown."""
    return ";".join(map(maybe_sanitize_url, url.split(";")))


def no_answer(config: Config, url: str, exc: Exception) -> GatewayError:
    """Make the error of a command to the Redis at `url`, with the remedy."""
    away = isinstance(exc, (ConnectionError, OSError, RuntimeError, TypeError))
    name = "state_url" if config.state_url and url == config.state else "result_backend"
    remedy = f"; start it, or correct {name} (GATEWAY_{name.upper()})" if away else ""
    return GatewayError(f"{without_password(url)}: {str(exc) or 'no answer in time'}{remedy}")


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
            raise no_answer(config, url, exc) from exc

    async with connect(config, url) as client:
        yield ask
