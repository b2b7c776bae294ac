"""Failures are counted by one process of several, and told as `[notify]` says."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import parse_qs, urlsplit

import pytest
import redis
import standardwebhooks

from gateway.cli.checks import run as run_checks
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.failures import counting, telling
from gateway.failures.counting import Failures
from gateway.failures.telling import CHAT_BYTES, Messenger, Notice
from gateway.journal.entry import FAILED
from gateway.journal.scripts import Keys
from gateway.journal.store import JournalStore
from gateway.metrics import Metrics
from tests.contract.test_journal_store import answered
from tests.support.certificates import Certificates
from tests.support.http_server import Asked, Said, served
from tests.support.parts import ProcessStore, started
from tests.support.waiting import eventually

SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
WHOLE = Notice("id1", "A title", ["<one> & two", "three"], '{"type": "gateway.test"}')


class Recorder:
    """Keeps requests; answers them with `status` and `said`."""

    def __init__(self) -> None:
        self.seen: list[Asked] = []
        self.status, self.said = 200, "{}"

    def answer(self, asked: Asked) -> Said:
        self.seen.append(asked)
        return self.status, {}, self.said.encode()

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(each.body) for each in self.seen]


@contextmanager
def recorder() -> Iterator[tuple[Recorder, str]]:
    server = Recorder()
    with served(server.answer) as port:
        yield server, f"http://127.0.0.1:{port}/hook?key=hidden"


def notify(kind: str, url: str, **more: Any) -> Config:
    table = {"kind": kind, "url": url, **more}
    return Config(strategy="pika", state_url="redis://127.0.0.1:1", journal=10, notify=table)


async def sent(config: Config, notice: Notice = WHOLE) -> None:
    assert config.notify is not None
    messenger = Messenger(config.notify)
    try:
        await messenger.send(notice)
    finally:
        messenger.close()


async def test_each_kind_gets_what_it_takes():
    with recorder() as (server, url):
        await sent(notify("webhook", url, secret=SECRET))
        (request,) = server.seen
        library = standardwebhooks.Webhook(SECRET)
        headers = request.headers
        assert library.verify(request.body, headers) == {"type": "gateway.test"}
        assert (headers["webhook-id"], headers["content-type"]) == ("id1", "application/json")

        await sent(notify("slack", url))
        text = "A title\n- &lt;one&gt; &amp; two\n- three"
        assert server.bodies[1] == {"text": text}

        server.said = '{"errcode": 0, "errmsg": "ok"}'
        await sent(notify("wecom", url))
        plain = {"msgtype": "text", "text": {"content": "A title\n- <one> & two\n- three"}}
        assert server.bodies[2] == plain

        await sent(notify("dingtalk", url, secret="SECx"))
        assert server.bodies[3] == plain
        query = parse_qs(urlsplit(server.seen[3].path).query)
        signed = f"{query['timestamp'][0]}\nSECx".encode()
        right = hmac.new(b"SECx", signed, hashlib.sha256).digest()
        assert base64.b64decode(query["sign"][0]) == right
        assert query["key"] == ["hidden"]


@pytest.mark.parametrize(
    ("kind", "status", "said", "problem"),
    [
        ("slack", 404, "no_service", "slack answers 404: no_service"),
        ("webhook", 302, "", "webhook answers 302"),
        ("wecom", 200, '{"errcode": 93000, "errmsg": "invalid webhook url"}', "93000"),
        ("dingtalk", 200, "[]", "dingtalk does not take it"),
    ],
)
async def test_what_is_not_taken_is_an_error_without_secrets(kind, status, said, problem):
    with recorder() as (server, url):
        server.status, server.said = status, said
        config = notify(kind, url, **({"secret": SECRET} if kind == "webhook" else {}))
        with pytest.raises(GatewayError, match=problem) as error:
            await sent(config)
        found = await run_checks(config, notify=True)
        said_too = next(each.problem for each in found if each.check == "notify")
        assert problem in said_too
        assert "hidden" not in f"{error.value}{said_too}{config!r}"

    with pytest.raises(GatewayError, match="ConnectionRefusedError") as error:
        await sent(config)
    assert "hidden" not in str(error.value)


def test_without_a_table_no_test_is_sent():
    with pytest.raises(GatewayError, match=r"there is no \[notify\]"):
        asyncio.run(telling.send_test(Config()))


def test_a_long_message_says_how_many_more_there_are():
    text = Notice("id", "title", ["ü" * 100] * 50, "").text
    assert len(text.encode()) <= CHAT_BYTES
    assert text.endswith("... and 41 more")


@asynccontextmanager
async def mail_server(
    context: ssl.SSLContext | None = None, starts: bool = False
) -> AsyncIterator[tuple[list[bytes], str]]:
    """A server for mail, with TLS from the beginning or when it `starts`; RFC 5321, 3207, 4954."""
    said: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")
        secure = context is not None and not starts
        while line := await reader.readline():
            verb = line.split()[0].upper()
            if verb == b"EHLO":
                able = b"AUTH PLAIN" if secure else b"STARTTLS" if starts else b"8BITMIME"
                writer.write(b"250-mail\r\n250 %b\r\n" % able)
                continue
            if verb == b"STARTTLS":
                writer.write(b"220 go on\r\n")
                assert context is not None
                await writer.start_tls(context)
                secure = True
                continue
            if verb == b"DATA":
                writer.write(b"354 go on\r\n")
                said.append(await reader.readuntil(b"\r\n.\r\n"))
            if verb == b"AUTH":
                said.append(line)
            done = {b"QUIT": b"221 bye", b"AUTH": b"235 well"}.get(verb, b"250 well")
            writer.write(done + b"\r\n")
        writer.close()

    kind = "smtps" if context and not starts else "smtp"
    given = context if kind == "smtps" else None
    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=given)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield said, f"{kind}://u@127.0.0.1:{port}?from=a@a.example&to=b@a.example&to=c@a.example"
    finally:
        listening.close()


async def test_mail_is_sent_and_a_password_never_without_tls():
    async with mail_server() as (said, url):
        await sent(notify("email", url))
        mail = message_from_bytes(said[0][:-3], policy=policy.default)
        assert (mail["Subject"], mail["From"]) == ("A title", "a@a.example")
        assert mail["To"] == "b@a.example, c@a.example"
        assert " ".join(mail.get_content().split()) == "A title - <one> & two - three"

        with pytest.raises(GatewayError, match="no STARTTLS") as error:
            await sent(notify("email", url, secret="hidden"))
        assert "hidden" not in str(error.value)
        assert len(said) == 1


async def test_a_mail_server_that_never_ends_its_answer_is_left(monkeypatch):
    monkeypatch.setattr(telling, "_MOST_TIME", 0.2)
    began, left = asyncio.Event(), asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began.set()
        with suppress(ConnectionError):
            while True:
                writer.write(b"220-mail\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        left.set()

    listening = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    url = f"smtp://127.0.0.1:{port}?from=a@a.example&to=b@a.example"
    while not began.is_set():  # it may be left before it has been reached
        with pytest.raises(GatewayError, match="email: the message is not taken within 0.2 s"):
            await sent(notify("email", url))
    async with asyncio.timeout(10):
        await left.wait()
    listening.close()


@pytest.mark.parametrize("starts", [False, True])
async def test_mail_with_tls(certificates: Certificates, monkeypatch, starts: bool):
    own = certificates.server
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(str(own.cert), own.key)

    async with mail_server(context, starts) as (said, url):
        # Given a server whose authority is not known,
        with pytest.raises(GatewayError, match="CERTIFICATE_VERIFY_FAILED"):
            await sent(notify("email", url, secret="hidden"))
        # or is,
        monkeypatch.setenv("SSL_CERT_FILE", str(own.ca))
        await sent(notify("email", url, secret="hidden"))
        # then it gets the password, and the mail.
        auth, mail = said
        assert base64.b64decode(auth.split()[2]) == b"\0u\0hidden"
        assert b"A title" in mail


# Counting -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "PAUSE", 0.02)
    monkeypatch.setattr(counting, "_LEASE", 0.3)
    monkeypatch.setattr(counting, "_MOST", 3)
    monkeypatch.setattr(counting, "_RATES", 0.05)
    monkeypatch.setattr(telling, "_TRIES", (0.01,))


@asynccontextmanager
async def deployment(
    config: Config, number: int = 2
) -> AsyncIterator[tuple[JournalStore, list[Failures], list[Metrics]]]:
    """Run what counts in so many processes of a gateway."""
    metrics = [Metrics(routes=["/"]) for _ in range(number)]
    stores = [ProcessStore(config) for _ in metrics]
    failures = [Failures(config, *each) for each in zip(stores, metrics, strict=True)]
    async with started(*stores, *failures):
        yield stores[0], failures, metrics
    for one in metrics:
        one.close()


async def fail(store: JournalStore, *errors: str) -> None:
    for n, error in enumerate(errors):
        row = answered(f"{error}-{n}-{id(errors)}", FAILED, 502)
        await store.write([(*row[:7], f"task-failed: {error}: text", *row[8:])])


def refused(client: redis.Redis) -> int:
    """Return how many scripts Redis has refused to run."""
    return client.info("commandstats").get("cmdstat_evalsha", {}).get("failed_calls", 0)


async def counts(store: JournalStore) -> dict[str, int]:
    return {each.about.type: each.count for each in await store.groups()}


async def test_what_a_killed_process_leaves_is_counted_by_another_one(client, redis_server, caplog):
    config = Config(state_url=redis_server.url, journal=1_000, strategy="pika")

    async with deployment(config) as (store, failures, _):
        await fail(store, *"ABAB")
        await eventually(lambda: not client.exists(Keys(config).failing))
        assert await counts(store) == {"A": 2, "B": 2}
        # Whichever counts is stopped,
        holder = client.get(Keys(config).counts).decode()
        (one,) = [each for each in failures if each._process == holder]
        await one.stop()
        await fail(store, *"AC")
        # then the other one takes over,
        await eventually(lambda: not client.exists(Keys(config).failing))
        assert await counts(store) == {"A": 3, "B": 2, "C": 1}

        # and one that Redis refuses goes on when it may.
        client.config_resetstat()
        client.config_set("maxmemory", "1")
        await eventually(lambda: refused(client) > 3)
        client.config_set("maxmemory", "0")
        assert caplog.text.count("failures cannot be counted") == 1
        await fail(store, "C")
        await eventually(lambda: not client.exists(Keys(config).failing))
        assert await counts(store) == {"A": 3, "B": 2, "C": 2}


async def test_one_message_has_all_that_has_come_since_the_last_one(client, redis_server, caplog):
    with recorder() as (server, url):
        table = {"kind": "webhook", "url": url, "secret": SECRET, "every": 1.0, "share": 0.5}
        config = Config(state_url=redis_server.url, journal=1_000, strategy="pika", notify=table)
        keys = Keys(config)
        async with deployment(config) as (store, _, metrics):
            # Given one that has failed, it is told at once, once.
            await fail(store, "A")
            await eventually(lambda: server.seen)
            assert server.bodies[0]["type"] == "gateway.failures"
            (news,) = server.bodies[0]["data"]["news"]
            assert (news["kind"], news["group"]["type"]) == ("new", "A")
            assert "hidden" not in str(server.bodies)

            # When more fail in the pause, among them one that is muted,
            (group,) = await store.groups()
            await store.change_group(group.id, None)
            await fail(store, "B", "M", "A")
            await eventually(lambda: client.zcard(keys.news) == 3)
            muted = next(g for g in await store.groups() if g.about.type == "M")
            assert await store.change_group(muted.id, datetime.now(UTC) + timedelta(hours=1))
            for one in metrics:
                for _ in range(10):
                    one.answered("/", "POST", 502, 0.1)
                    one.answered("/", "POST", 404, 0.1)
            await fail(store, *["A"] * 9)

            # then one message has the others, and the route's share.
            await eventually(lambda: len(server.seen) > 1 and not client.zcard(keys.news))
            told = [each for body in server.bodies[1:] for each in body["data"]["news"]]
            kinds = {(each["kind"], each.get("group", {}).get("type")) for each in told}
            assert {("new", "B"), ("again", "A"), ("share", None)} <= kinds
            assert all(kind[1] != "M" for kind in kinds)
            share = next(each for each in told if each["kind"] == "share")
            assert (share["route"], share["answered"]) == ("/", 20)
            assert share["failed"] >= 10

            # When the server does not take it, that is counted, and told when it does.
            server.status, before = 500, len(server.seen)
            await fail(store, "D")
            await eventually(lambda: sum(one.get(telling.FAILED) for one in metrics) == 1)
            assert len(server.seen) == before + 2
            server.status = 200
            await eventually(lambda: len(server.seen) > before + 2)
            news = server.bodies[-1]["data"]["news"]
            assert "D" in {each.get("group", {}).get("type") for each in news}
    assert "hidden" not in caplog.text and SECRET not in caplog.text


async def test_what_is_resolved_before_it_is_told_is_not_told(client, redis_server):
    with recorder() as (server, url):
        table = {"kind": "slack", "url": url, "every": 60.0}
        settings = {"state_url": redis_server.url, "journal": 1_000, "strategy": "pika"}
        config = Config(**settings, notify=table)
        keys = Keys(config)
        async with deployment(config, 1) as (store, _, _):
            await store.told({}, 60.0)
            await fail(store, "A")
            await eventually(lambda: client.zcard(keys.news))
            (group,) = await store.groups()
            assert await store.change_group(group.id, None)
            await store.told({}, 0.0)
            await eventually(lambda: not client.zcard(keys.news))
            assert server.seen == []


async def test_a_store_that_is_away_is_told_once_by_who_counts(caplog):
    caplog.set_level("DEBUG", "gateway.failures")

    config, metrics = notify("slack", "http://127.0.0.1:9"), Metrics(routes=["/"])
    async with started(ProcessStore(config)) as store:
        notifier = telling.Notifier(config, store, metrics)
        notifier.send_news()
        await eventually(lambda: "failures cannot be told" in caplog.text)
        await notifier.stop()
    assert metrics.get(telling.FAILED) == 0
    metrics.close()


async def test_a_message_that_cannot_be_noted_is_not_sent_again_at_once(client, redis_server):
    with recorder() as (server, url):
        # Given something to be told, and a store that does not take what was told,
        config, metrics = Config(state_url=redis_server.url, journal=10), Metrics(routes=["/"])
        async with started(ProcessStore(config)) as store:
            await fail(store, "A")
            await store.count(await store.failing("test", 60.0, 9) or (), True)
            store.told = full = AsyncMock(side_effect=GatewayError("Redis is full"))
            notifier = telling.Notifier(notify("slack", url), store, metrics)

            # when it is told, and is to be told a second later,
            for _ in range(2):
                notifier.send_news()
                await asyncio.wait([notifier._task])

            # then one message was sent.
            assert (len(server.seen), full.await_count) == (1, 1)
            await notifier.stop()
        metrics.close()
