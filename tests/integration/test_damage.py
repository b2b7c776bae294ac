"""Whatever another program makes of a key in Redis, all processes go on, with all other keys."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import redis

from gateway import background
from gateway.admin.api.schema import WholeDelivery
from gateway.archive.tables import row
from gateway.celery_message import Message
from gateway.cli import printed
from gateway.config.settings import Config
from gateway.failures.telling import Notifier
from gateway.history.gateways import KEY, SCRIPT
from gateway.history.gateways import read as read_lines
from gateway.journal.entry import ACCEPTED, iso_now
from gateway.journal.filter import Filter
from gateway.journal.reading import Reader
from gateway.outcome import FAILURE, Outcome
from gateway.pending_task import PendingTask
from tests.support.http_client import request
from tests.support.in_memory import Gateway, InMemory, echo
from tests.support.stack import Server
from tests.support.waiting import eventually

#: What takes the place of a text, and of a value in JSON.
TEXTS = (b"", b"x", b"\xff\xfe", b"-1", b"nan", b"1e999", b"null", b"[]", b'{"a":1}', b"[" * 9999)
VALUES = (None, True, -1, 1e99, "", "x", [], [1], {}, {"a": [1]}, 10**30, "\ud800")
#: Fields of hashes that are JSON.
JSON = (b"about", b"call", b"record", b"runs")

#: What is the same in the names of keys that are alike.
KINDS = re.compile(rb"((?:c|also|failed|delivery|group|task):).*", re.DOTALL)

Damage = Callable[[redis.Redis], object]


def task(message: Message) -> Outcome | None:
    if b"slow" in message.body:
        return None
    return Outcome(FAILURE, error="KeyError") if b"fail" in message.body else echo(message)


class Tasks(InMemory):
    """Confirms each message."""

    def send(self, message: Message, deadline: float) -> PendingTask:
        pending = super().send(message, deadline)
        pending.confirm()
        return pending

    publish = send


def settings(url: str, archive: Path) -> dict[str, Any]:
    late = {"like": "slack", "hosts": ["127.0.0.1:1"]}
    once = {"idempotency": "header:x-id", "also": [{"task": "t", "queue": "q"}]}
    wait = {"answer": "wait-then-accept", "fallback": "wait", "deadline": 0.1, "late": late}
    return {
        "state_url": url, "result_backend": url, "strategy": "pika", "journal": 1_000,
        "archive_url": f"sqlite:///{archive}", "journal_refused": True,
        "notify": {"kind": "slack", "url": "http://127.0.0.1:1/"},
        "sources": {"s": {"scheme": "github", "secrets": "s"}},
        "routes": [{"path": "/once", **once}, {"path": "/late", "source": "s", **wait}],
    }  # fmt: skip


def damages(client: redis.Redis, key: bytes) -> Iterator[Damage]:
    """Yield what another program may do to a key."""
    kind, texts = client.type(key), cycle(TEXTS)
    yield lambda it: (it.delete(key), it.rpush(key, "x"))
    yield lambda it: (it.delete(key), it.hset(key, "x", "x"))
    yield from (lambda it, text=text: it.set(key, text, keepttl=True) for text in TEXTS)
    if kind == b"string":
        value = client.get(key)
        for size in (1, len(value) // 2):
            yield lambda it, size=size: it.set(key, value[:size])
        yield lambda it: it.set(key, value[:1] + b"\xff" * 100)
        yield lambda it: it.set(key, value + b"x" * 5_000_000)
    if kind == b"hash":
        for name, value in client.hgetall(key).items():
            yield lambda it, name=name: it.hdel(key, name)
            for text in (next(texts), next(texts), value[: len(value) // 2]):
                yield lambda it, name=name, text=text: it.hset(key, name, text)
            for text in spoilt(json.loads(value)) if name in JSON and value else ():
                yield lambda it, name=name, text=text: it.hset(key, name, text)
    if kind == b"zset":
        for text in TEXTS:
            yield lambda it, text=text: it.zadd(key, {text: "-inf"})
            yield lambda it, text=text: it.zadd(key, {b"new " + text: 1e15})
    if kind == b"stream":
        yield lambda it: it.xadd(key, {"x": "y"})
        yield lambda it: it.xadd(key, {"id": b"\xff", "bytes": "x"})
    if kind == b"set":
        yield lambda it: it.sadd(key, *TEXTS)


def spoilt(whole: Any) -> Iterator[str]:
    """Yield JSON in which one value is missing, or another one is in its place."""
    places: list[tuple[Any, Any]] = []

    def collect(inner: Any) -> None:
        pairs = inner.items() if isinstance(inner, dict) else enumerate(inner)
        for name, value in list(pairs):
            places.append((inner, name))
            if isinstance(value, (dict, list)):
                collect(value)

    collect(whole)
    for (inner, name), value in zip(places, cycle(VALUES), strict=False):
        kept = inner[name]
        inner[name] = value
        yield json.dumps(whole)
        inner[name] = kept
        if isinstance(inner, dict):
            del inner[name]
            yield json.dumps(whole)
            inner[name] = kept


class User:
    """A serving process whose tasks run in memory, and all that reads what it has written."""

    def __init__(self, one: Gateway, config: Config, client: redis.Redis):
        self.one, self.config, self.client = one, config, client
        self.context = one.relay.context
        assert self.context.journal is not None and self.context.late is not None
        self.store = self.context.journal.store
        self.number = 0

    async def post(self, body: bytes, path: str = "/once", number: str = "") -> tuple[int, bytes]:
        signed = hmac.digest(b"s", body, hashlib.sha256).hex()
        headers = (f"X-Hub-Signature-256: sha256={signed}", "X-GitHub-Event: push")
        headers += (f"X-GitHub-Delivery: {number}", f"X-Id: {number}")
        async with await self.one.open() as connection:
            answer = await connection.ask(request(body, path, *headers))
            return answer.status, answer.body

    async def typical(self) -> None:
        """Leave keys of each kind."""
        url = {"response_url": "http://127.0.0.1:1/hook"}
        assert (await self.post(b"hello", "/once", "hello"))[0] == 200
        assert (await self.post(b"fail", "/once", "fail"))[0] == 502
        for n in range(2):
            body = json.dumps({**url, "n": n, "text": "slow"}).encode()
            assert (await self.post(body, "/late", f"late-{n}"))[0] == 200
        assert (await self.post(b"bad", "/late?x=y", "\xff"))[0] != 500
        await self.store.rates(0.5, {"/once": 30}, {"/once": 30})
        await self.store.told([], 60.0, "it does not answer")
        await self.tell()
        await eventually(lambda: len(self.client.keys("*failing*")) == 0)
        await eventually(lambda: len(self.client.keys("*{late}*")) == 3)
        entry = next(e for e in await self.entries() if e.state == ACCEPTED)
        await self.store.begin_replay(entry.id, "replay", entry.task_id)
        run = entry.run() | {"resent_at": iso_now()}
        await self.store.end_replay(entry.id, "replay", True, [run])

    async def tell(self) -> list[str]:
        reply = await self.store._store.run("EVAL", SCRIPT, 1, KEY, 3600, "me", '{"name": "me"}')
        return [line.name for line in read_lines(reply)[1]]

    async def entries(self, calls: bool = False) -> list[Any]:
        async with aclosing(self.store.entries(calls)) as entries:
            return [entry async for entry in entries]

    async def use(self) -> None:
        """Do once what processes do; none of it may fail, and what is new is there."""
        self.number += 1
        new = f"new-{self.number}".encode()
        assert await self.post(new, "/once", new.decode()) == (200, new)
        status, body = await self.post(b"hello", "/once", "hello")
        assert status in (202, 409) or (status, body) == (200, b"hello")
        store = self.store
        assert "me" in await self.tell()
        await store.due(100, 1, 1)
        failing = await store.failing("p", 1.0, 100)
        await store.count(failing or [], True)
        await store.trim(10)
        await store.rates(0.5, {"/once": 1}, {})
        await store.untold()
        assert all(group.as_object() for group in await store.groups())
        news = await store.news(100, 1e9)
        list(map(str, await Notifier(self.config, store, self.one.metrics)._news(news)))
        async with aclosing(Reader(store).find(Filter(text=new.decode()))) as found:
            assert [each async for each in found]
        for each in await self.entries():
            for entry in filter(None, (each, await store.get(each.id))):
                assert printed.line(entry) and printed.line(entry, True)
                assert WholeDelivery.whole(entry).model_dump_json()
                assert entry.unsendable or entry.message("t").headers()
        changes = await store.changed(100, 1 << 20, 0.0)
        assert all(row(each.entry) for each in changes if each.entry is not None)
        records = self.context.late._records
        for found in await records.due():
            await records.get(found.record.task_id)
        await self.context.late._look(await records.due())


@asynccontextmanager
async def using(url: str, archive: Path, client: redis.Redis) -> AsyncIterator[User]:
    own = settings(url, archive)
    one = Gateway(lambda *_: Tasks(task), own)
    await one.relay.start()
    try:
        await eventually(lambda: not any(one.relay.checks().values()))
        yield User(one, Config(**own), client)
    finally:
        await one.relay.stop()
        await one.close()


def test_a_damaged_key_is_set_aside(redis_server: Server, tmp_path: Path, monkeypatch, caplog):
    ended: list[Any] = []
    monkeypatch.setattr(background, "_ended", lambda task: task.cancelled() or ended.append(task))

    async def run(client: redis.Redis) -> None:
        async with using(redis_server.url, tmp_path / "archive", client) as user:
            await user.typical()
            whole = {key: client.dump(key) for key in sorted(client.keys("*"))}
            alike = Counter[bytes]()
            for key in whole:
                kind = KINDS.sub(rb"\1", key)
                alike[kind] += 1
                if alike[kind] > 2:
                    continue
                for damage in damages(client, key):
                    damage(client)
                    try:
                        await user.use()
                    except Exception as exc:
                        exc.add_note(f"{key!r}: {damage.__defaults__}")
                        raise
                    assert not ended, (key, damage.__defaults__, ended)
                    for each, dumped in whole.items():
                        client.restore(each, 0, dumped, replace=True)
            assert user.one.metrics.get("gateway_damaged_records_total") > 100

    with redis.Redis.from_url(redis_server.url) as client, caplog.at_level(logging.WARNING):
        client.flushdb()
        asyncio.run(run(client))
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
