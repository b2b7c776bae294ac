"""Check the Redis with the results, and the one with the claims and the journal."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError
from redis.utils import str_if_bytes

from gateway.cli.checks.finding import LIMIT, Finding, fail, ok, skipped, warn
from gateway.clock import monotonic, time
from gateway.config.settings import Config
from gateway.errors import StoreError
from gateway.history.gateways import KEY, SCRIPT, about, differences, read
from gateway.journal.store import JournalStore
from gateway.stores import result_store, server
from gateway.stores.state_store import StateStore

OLDEST = (6, 2)  # Redis
FULL = 0.9  # of its maxmemory

_RESULTS = "result_backend (GATEWAY_RESULT_BACKEND, --result-backend)"
_STATE = "state_url (GATEWAY_STATE_URL)"
#: Remedies by words in a Redis' error; `{}` is replaced by the setting with its URL.
_REMEDIES = {
    "NOAUTH|Authentication|WRONGPASS|invalid password": "correct user and password in {}",
    "OOM|OutOfMemory": "give it more memory: CONFIG SET maxmemory, and the same in redis.conf",
    "READONLY|ReadOnly|a replica": "name the primary, and not a replica, in {}",
    "cluster mode": "name a Redis that is not in cluster mode in {}; a cluster may be state_url",
    "MISCONF": "its log says why it cannot save to disk; it takes no writes until it can",
    "NOPERM|NoPermission|ACL|can't (run|publish)": (
        "ACL SETUSER NAME ~* &* +@all -@dangerous +info, or more narrowly, for the user in {}"
    ),
    "ResponseError|StoreError": "correct {}",
    "": "start it, or correct {}",
}
#: An account may lack a command, or the server does not have it under its name.
_refused = re.compile("NOPERM|no permissions|unknown command", re.IGNORECASE).search
#: Remedies where another gateway differs, by kind.
_DIFFERING = {
    "clock": "let NTP set the clocks of both machines",
    "lost": "start it again; if it was taken away, ignore this for an hour",
    "routes": "give both the same file, and reload what runs after a change; another deployment "
    "needs a state_prefix of its own (GATEWAY_STATE_PREFIX)",
}
#: The commands that claims use, on a key that is gone after the last one.
_CLAIM = """\
redis.call('SET', KEYS[1], struct.pack('>I6', 1), 'PX', 1000)
redis.call('SET', KEYS[1], redis.call('GET', KEYS[1]), 'KEEPTTL')
redis.call('DEL', KEYS[1])
redis.call('SADD', KEYS[1], 1)
redis.call('PEXPIRE', KEYS[1], 1000)
redis.call('SRANDMEMBER', KEYS[1], 1)
return redis.call('SREM', KEYS[1], 1)
"""
_PATIENCE = 0.2  # seconds, as the check has hardly any left
#: The protocol of each scheme, its usual port, and whether it has TLS.
_SCHEMES = {
    "amqp": ("amqp", 5672, False),
    "amqps": ("amqp", 5671, True),
    "redis": ("redis", 6379, False),
    "rediss": ("redis", 6379, True),
}
#: A web server answers it, a Redis refuses it, RabbitMQ tells its protocol, TLS sends an alert.
_REQUEST = b"GET / HTTP/1.0\r\n\r\n"
_ANSWERS = {b"HTTP": "http", b"AMQP": "amqp", b"-": "redis", b"\x15\x03": "tls"}
_NAMES = {"http": "a web server", "amqp": "an AMQP broker", "redis": "a Redis"}


async def what_answers(url: str) -> str:
    """Return what answers at `url` in place of such a server, as a clause; empty: not known."""
    parts = urlsplit(url)
    try:
        protocol, usual, tls = _SCHEMES[parts.scheme]
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or usual)
            writer.write(_REQUEST)
            answer = await reader.read(4)
            writer.close()
    except (OSError, ValueError, KeyError):
        return ""
    found = next((kind for start, kind in _ANSWERS.items() if answer.startswith(start)), "")
    if found in _NAMES and found != protocol:
        return f"; what answers there is {_NAMES[found]}"
    if found == "tls" and not tls:
        return f"; its port has TLS: write {parts.scheme}s://"
    if found == protocol == "redis" and tls:  # of a broker, the error says it
        return "; its port has no TLS: write redis://"
    return ""


async def check_results(config: Config) -> list[Finding]:
    """Return findings about the Redis where workers store results."""
    if not config.results:
        return [ok("results", "no store is configured: workers only reply over AMQP")]
    name = f"results {result_store.without_password(config.results)}"
    found: list[Finding] = []
    async with asking(config, config.results, name, _RESULTS, found) as client:
        info = await _info(client, name, found)
        found += judge(name, info)
        await _read_results(client, config)
    return found or [ok(name, described(info))]


async def check_state(config: Config) -> list[Finding]:
    """Return findings about the Redis with the claims and the journal."""
    used = config.journal or any(r.identified or r.takes_chosen_keys for r in config.routes)
    if not config.state or not (used or config.state_url):
        return [ok("state", "none is needed: no route has an identity, and there is no journal")]
    origin, setting = "state_url", _STATE
    if not config.state_url:
        origin, setting = "result_backend, as state_url is not set", f"{_RESULTS}, or set {_STATE}"
    name = f"state {result_store.without_password(config.state)} ({origin})"
    shared = config.state == config.results
    found: list[Finding] = []
    async with asking(config, config.state, name, setting, found, state=True) as client:
        info = await _info(client, name, [] if shared else found)
        if info.get("redis_mode") == "cluster":
            async with StateStore.opened(config) as store:
                await _write_state(config, store.run)
                found += await _others(config, name, store.run)
                found += await _check_nodes(config, name, store)
            return found or [ok(name, f"{described(info)}, a cluster of {len(store.nodes)} nodes")]
        found += () if shared else judge(name, info)
        await _write_state(config, client.execute_command)
        found += await _persistence(client, name, info)
        found += await _others(config, name, client.execute_command)
    return found or [ok(name, described(info))]


async def _write_state(config: Config, run: result_store.Ask) -> None:
    key = f"{config.prefix}{{check-{secrets.token_hex(8)}}}"
    await run("EVAL", _CLAIM, 1, key)
    if config.journal:
        await JournalStore(config, run).check()


async def _check_nodes(config: Config, name: str, store: StateStore) -> list[Finding]:
    """Return findings about each node of a cluster, and about slots that none has."""
    found: list[Finding] = []
    if problem := store.error or store.partly:
        remedy = "redis-cli --cluster check says why; start the node, or let a replica take over"
        found.append(fail(name, problem, remedy))
    for node, pipeline in store.nodes.items():
        if node is None or pipeline.error:
            continue
        async with result_store.connect(config, config.state, state=True, node=node) as client:
            own = f"{name}, node {node[0]}:{node[1]}"
            info = await _info(client, own, found)
            found += [*judge(own, info), *await _persistence(client, own, info)]
    return found


async def _info(client: Redis, name: str, found: list[Finding]) -> Mapping[str, Any]:
    """Return a Redis' INFO; what of it HELLO tells where the account may not read it."""
    try:
        info: Mapping[str, Any] = await client.info()
    except ResponseError as exc:
        if not _refused(str(exc)):
            raise
        problem = f"not seen are its memory, what it evicts, and its replicas: {exc}"
        remedy = "ACL SETUSER NAME +info, or look at them where the server is managed"
        found.append(warn(name, problem, remedy))
        info = await _hello(client)
    return info


async def _hello(client: Any) -> Mapping[str, Any]:
    """Return version and mode of a Redis as INFO has them."""
    fields = server.about(await client.execute_command(server.HELLO))
    version, mode = (str_if_bytes(fields.get(name, b"")) for name in (b"version", b"mode"))
    return {"redis_version": version, "redis_mode": mode}


def judge(name: str, info: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings about problems of a Redis, from its INFO."""
    version = re.match(r"(\d+)\.(\d+)", str(info.get("redis_version")))
    if version and tuple(map(int, version.groups())) < OLDEST:
        problem = f"Redis {info['redis_version']} is too old"
        yield fail(name, problem, "install {}.{} or newer".format(*OLDEST))
    most = info.get("maxmemory", 0)
    if most and (policy := info.get("maxmemory_policy", "noeviction")) != "noeviction":
        problem = f"it evicts needed keys when its memory is full (maxmemory-policy {policy})"
        yield fail(
            name, problem, "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
        )
    if most and _used(info) / most > FULL:
        problem = f"it is nearly full: {_memory(info)}"
        shorter = "or a shorter result_expires or idempotency_window"
        remedy = f"CONFIG SET maxmemory {2 * most}, and the same in redis.conf; {shorter}"
        yield fail(name, problem, remedy)


def described(info: Mapping[str, Any]) -> str:
    """Describe a Redis by its INFO: product, version and memory."""
    return f"{server.product(info)}, {_memory(info)}"


def _used(info: Mapping[str, Any]) -> int:
    # As Redis compares it with maxmemory.
    return int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))


def _memory(info: Mapping[str, Any]) -> str:
    used, most = _used(info), info.get("maxmemory", 0)
    if not most:
        return f"{used / 2**20:,.1f} MiB used, no maxmemory"
    return f"{used / 2**20:,.1f} of {most / 2**20:,.1f} MiB used ({used / most:.0%})"


async def _read_results(client: Redis, config: Config) -> None:
    """Run the gateway's own commands for results, as the account may lack a permission."""
    key = f"{result_store.key_prefix(config)}check-{secrets.token_hex(8)}"
    await client.execute_command(*result_store.reading([key]))  # type: ignore[no-untyped-call]
    subscribes = config.strategy_info.subscribes
    if not subscribes:
        return
    async with client.pubsub() as pubsub:
        await (pubsub.psubscribe(f"{key}*") if subscribes == "prefix" else pubsub.subscribe(key))
        await pubsub.get_message(timeout=None)  # the confirmation, or a refusal


async def _persistence(client: Redis, name: str, info: Mapping[str, Any]) -> list[Finding]:
    if info.get("aof_enabled"):
        return []
    try:
        saves = (await client.config_get("save")).get("save")
    except ResponseError as exc:
        why = f"not checked whether it keeps claims on disk, as CONFIG is not allowed: {exc}"
        return [skipped(name, why)]
    if saves:
        return []
    problem = (
        "it keeps nothing on disk: once it is restarted, a delivery that is tried again runs again"
    )
    remedy = "CONFIG SET appendonly yes, and the same in redis.conf"
    return [warn(name, problem, remedy)]


async def _others(config: Config, name: str, run: result_store.Ask) -> list[Finding]:
    """Return findings about the gateways there that differ from one of this configuration."""
    began, before = monotonic(), time()
    now, lines = read(await run("EVAL", SCRIPT, 1, KEY, 0))
    took = monotonic() - began
    own = about(config, "").model_copy(update={"ahead": before + took / 2 - now})
    return [
        warn(
            name,
            f"another gateway differs from this configuration, {each}",
            _DIFFERING.get(each.kind, "give both the same, or ignore it in an upgrade"),
        )
        for each in differences(own, lines)
        if each.wrong
    ]


@asynccontextmanager
async def asking(
    config: Config, url: str, name: str, setting: str, found: list[Finding], state: bool = False
) -> AsyncIterator[Redis]:
    """Yield a client of the Redis at `url`; an error or a timeout is added to `found`."""
    try:
        connection = result_store.connect(config, url, state=state)
        async with asyncio.timeout(LIMIT), connection as client:
            yield client
    except TimeoutError:
        problem = f"no answer within {LIMIT:g} s{await what_answers(url)}"
        found.append(fail(name, problem, f"start it, or correct {setting}"))
    except (RedisError, StoreError, OSError) as exc:
        # Sentinel's error continues with a list of all settings.
        kind, problem = type(exc).__name__, server.described(exc).partition(" : <")[0]
        error = f"{kind}: {problem}"
        remedy = next(remedy for words, remedy in _REMEDIES.items() if re.search(words, error))
        problem += await what_answers(url)
        found.append(fail(name, problem, remedy.format(setting)))
