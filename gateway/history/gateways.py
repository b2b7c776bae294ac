"""Gateways that know of each other: each parent writes a line about itself to the state server.

All lines are in one hash, whatever `state_prefix` the gateways have, so that another one is seen.
A line has no secret, and nothing from which one can be learnt. Nothing depends on the lines: while
the state server is away, the gateways do not see each other, and that is all.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kombu.utils.url import parse_url
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from gateway import __version__
from gateway.clock import monotonic, time
from gateway.config.settings import Config
from gateway.errors import StoreError
from gateway.history.history import History
from gateway.history.ring import total
from gateway.process import health
from gateway.process.supervisor import Supervisor
from gateway.stores.result_store import Ask
from gateway.stores.state_store import StateStore

log = logging.getLogger(__name__)

EVERY = 3.0  # seconds between two lines of a gateway
SILENT = 8.0  # seconds without a line after which a gateway counts as lost
KEPT = 3_600.0  # seconds for which it is told of
APART = 1.0  # seconds by which clocks may differ
_PROMPT = 0.5  # seconds within which an answer tells the time
_POINTS = 36  # of the received requests of the last 6 hours

KEY = "gateway:gateways"
#: Write a line, if one is given, and read all: the server's time, names and lines. Each line begins
#: with the server's time at which it was written. All are dropped that are too old, or no lines.
SCRIPT = """\
local now = redis.call('TIME')
now = string.format('%d.%06d', now[1], now[2])
if ARGV[2] then
    redis.call('HSET', KEYS[1], ARGV[2], now .. ' ' .. ARGV[3])
    redis.call('EXPIRE', KEYS[1], ARGV[1])
end
local found = redis.call('HGETALL', KEYS[1])
for at = 1, #found, 2 do
    local written = tonumber(string.match(found[at + 1], '^%S+') or '')
    if ARGV[2] and not (written and math.abs(now - written) <= tonumber(ARGV[1])) then
        redis.call('HDEL', KEYS[1], found[at])
    end
end
return {now, found}
"""

#: What may not differ, by kind; the others are notes.
WRONG = ("lost", "clock", "secret_key", "prefix", "broker", "routes")
KINDS = (*WRONG, "version", "settings")
#: Settings that differ by nature, or that have a kind of their own.
_OWN = {
    *("host", "port", "uds", "processes", "admin_host", "admin_port", "history", "trusted_proxies"),
    *("state_prefix", "sources", "routes", "tls"),
}


class Line(BaseModel):
    """What a gateway tells of itself. A field that another version does not have is empty."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str
    address: str = ""
    version: str = ""
    started: float = Field(0.0, ge=0, lt=1e11)
    """seconds since the epoch"""
    ready: bool = False
    ahead: float | None = None
    """seconds by which its clock is ahead of the state server's; None: not known"""
    prefix: str = ""
    broker: list[str] = []
    secret_key: str = ""
    """a digest; empty: it has none"""
    routes: dict[str, str] = {}
    """of each path a digest of its routes"""
    settings: dict[str, Any] = {}
    seconds: float = 60.0
    """of the last minute, for which it ran"""
    rate: float = 0.0
    """requests a second, in this time, as the next ones"""
    failed: int = 0
    refused: int = 0
    p50: float | None = None
    p99: float | None = None
    waiting: float = 0.0
    received: list[float | None] = []
    """requests a second in each ten minutes of the last 6 hours; None: it did not run"""
    silent: float = 0.0
    """seconds since it was written, when it was read"""

    @property
    def lost(self) -> bool:
        return self.silent > SILENT


@dataclass(frozen=True)
class Difference:
    """By what another gateway differs: one of `KINDS`, in words."""

    gateway: str
    kind: str
    text: str

    @property
    def wrong(self) -> bool:
        return self.kind in WRONG

    def __str__(self) -> str:
        return f"{self.gateway}: {self.text}"


def _digest(key: SecretStr) -> str:
    """Return what tells two keys apart and gives none away: 32 bits of a slow hash."""
    text = key.get_secret_value().encode()
    return hashlib.pbkdf2_hmac("sha256", text, b"gateway", 100_000, 4).hex()


def about(config: Config, name: str) -> Line:
    """Return what a line has of the configuration."""
    routes: dict[str, Any] = {}
    for route in config.routes:
        routes.setdefault(route.path, hashlib.sha256()).update(route.model_dump_json().encode())
    parts = [{**(p := parse_url(url)), "port": p["port"] or 5672} for url in config.brokers]
    fields, settings = Config.model_fields, config.model_dump(mode="json", exclude=_OWN)
    shown = {k: v for k, v in settings.items() if "SecretStr" not in str(fields[k].annotation)}
    return Line(
        name=name, version=__version__, prefix=config.prefix, settings=shown,
        broker=sorted(f"{p['hostname']}:{p['port']}/{p['virtual_host'] or '/'}" for p in parts),
        secret_key=_digest(config.secret_key) if config.secret_key else "",
        routes={path: digest.hexdigest()[:8] for path, digest in routes.items()},
    )  # fmt: skip


def read(reply: Iterable[Any]) -> tuple[float, list[Line]]:
    """Return the server's time and the lines, of a reply to `SCRIPT`; other texts are left out."""
    now, found = reply
    lines = []
    for text in found[1::2]:
        written, _, line = text.partition(b" ")
        try:
            silent = float(now) - float(written)
            if not abs(silent) <= KEPT:
                raise ValueError("it is of another time")
            lines.append(Line.model_validate({**json.loads(line), "silent": silent}))
        except (ValidationError, ValueError, TypeError, RecursionError):
            log.debug("what %s has is not a gateway's line: %r", KEY, text)
    return float(now), sorted(lines, key=lambda line: line.name)


async def running(config: Config, ask: Ask) -> list[str]:
    """Return the names of the gateways with this prefix that run.

    `ask` sends a command to the Redis of the claims and returns the reply.
    """
    _, lines = read(await ask("EVAL", SCRIPT, 1, KEY, 0))
    return [line.name for line in lines if line.prefix == config.prefix and not line.lost]


def differences(own: Line, lines: Iterable[Line]) -> list[Difference]:
    """Say by what other gateways differ from this one.

    One under another prefix is another deployment, and does not matter, unless both its routes and
    its broker are the same.
    """
    return [
        Difference(line.name, kind, text)
        for line in _beside(own, lines)
        for kind, text in _between(own, line)
    ]


def _beside(own: Line, lines: Iterable[Line]) -> list[Line]:
    """Return the lines of other gateways of the same deployment."""
    others = (line for line in lines if line.name != own.name)
    same = own.routes, own.broker
    return [
        each for each in others if each.prefix == own.prefix or (each.routes, each.broker) == same
    ]


def _between(own: Line, other: Line) -> Iterable[tuple[str, str]]:
    if other.lost:
        yield "lost", f"it has not been heard of for {_span(other.silent)}"
        return
    if own.ahead is not None and other.ahead is not None:
        apart = other.ahead - own.ahead
        if abs(apart) > APART:
            yield "clock", f"its clock is {abs(apart):.1f} s {'ahead' if apart > 0 else 'behind'}"
    if other.secret_key != own.secret_key:
        yield "secret_key", "secret_key is another one: result URLs of one are a 404 at the other"
    if other.prefix != own.prefix:
        names = f"{own.prefix!r} here, there with {other.prefix!r}"
        yield "prefix", f"names in Redis begin with {names}: a try that comes to both runs twice"
    if other.broker != own.broker:
        here, there = ", ".join(own.broker), ", ".join(other.broker)
        yield "broker", f"broker_url is {here} here, there {there}"
    if routes := _routes(own.routes, other.routes):
        yield "routes", routes
    if other.version != own.version:
        yield "version", f"version {own.version} here, there {other.version}"
    settings = [
        f"{name} {json.dumps(its)} here, there {json.dumps(other.settings[name])}"
        for name, its in own.settings.items()
        if other.settings.get(name, its) != its
    ]
    if settings:
        yield "settings", "; ".join(settings)


def _routes(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Say by what routes differ; each list has three paths at the most."""
    found = {
        "only here": [path for path in own if path not in other],
        "only there": [path for path in other if path not in own],
        "not the same": [path for path in own if other.get(path, own[path]) != own[path]],
    }
    texts = (
        f"{', '.join(paths[:3])}{' and others' * (len(paths) > 3)} {what}"
        for what, paths in found.items()
        if paths
    )
    return f"routes differ: {text}" if (text := "; ".join(texts)) else ""


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


class Gateways:
    """Writes this gateway's line, and reads those of all.

    `name` is this gateway's, and `address` where it listens.
    """

    def __init__(self, supervisor: Supervisor, history: History, name: str, address: str):
        self._supervisor = supervisor
        self._history = history
        self._name, self._address = name, address
        self._config: Config | None = None
        self._store: StateStore | None = None
        self._ahead: float | None = None
        self._lines: list[Line] = []
        #: This gateway's own line.
        self.own = Line(name=name)
        #: Why the others are not known, in words; or empty.
        self.problem = "they have not been asked for yet"

    @property
    def lines(self) -> list[Line]:
        """The gateways of this deployment, by name, with this one; the lost ones as well."""
        return sorted([self.own, *_beside(self.own, self._lines)], key=lambda line: line.name)

    @property
    def differences(self) -> list[Difference]:
        return differences(self.own, self._lines)

    async def run(self) -> None:
        """Write and read every few seconds, until cancelled; then take the line away."""
        try:
            while True:
                await self._exchange()
                await asyncio.sleep(EVERY)
        finally:
            await self._leave()

    async def _exchange(self) -> None:
        config = self._supervisor.config
        if config is not self._config:
            await self._leave()
            self._config, self._ahead = config, None
            self._about = await asyncio.to_thread(about, config, self._name)
            if config.state:
                self._store = StateStore(config, "")
                await self._store.start()
        answers = await health.ask(self._supervisor.children)
        self.own = self._line(health.serves(self._supervisor, answers))
        if self._store is None:
            self._lines, self.problem = [], "there is no state server (state_url)"
            return
        text, before, began = self.own.model_dump_json(exclude={"silent"}), time(), monotonic()
        try:
            reply = await self._store.run("EVAL", SCRIPT, 1, KEY, int(KEPT), self._name, text)
        except StoreError as exc:
            self.problem = f"the state server does not answer: {exc}"
            return
        took = monotonic() - began
        now, self._lines = read(reply)
        self.problem = ""
        if took < _PROMPT:
            self._ahead = before + took / 2 - now

    def _line(self, ready: bool) -> Line:
        minute = total(self._history.read("10m")[-60:])
        slots = self._history.read("6h", group=60)
        received = [round(slot.rate, 2) if slot.seconds else None for slot in slots]
        return self._about.model_copy(update={
            "address": self._address, "started": self._supervisor.started, "ready": ready,
            "ahead": self._ahead, "seconds": round(minute.seconds, 1),
            "rate": round(minute.rate, 2), "failed": minute.failed, "refused": minute.refused,
            "p50": minute.quantile(0.5), "p99": minute.quantile(0.99),
            "waiting": round(minute.waiting, 2), "received": received[-_POINTS:],
        })  # fmt: skip

    async def _leave(self) -> None:
        """Take the line away, if the state server answers: this gateway is not lost."""
        store, self._store = self._store, None
        if store is None:
            return
        try:
            if not store.error:
                await store.run("HDEL", KEY, self._name)
        except StoreError as exc:
            log.debug("cannot take this gateway's line away: %s", exc)
        await store.stop()
