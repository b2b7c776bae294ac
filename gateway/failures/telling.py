"""Tell of failures, to a webhook, a chat's robot, or by mail: all that has come since the last one.

What is to be told is kept in the journal's store until a message with it was sent. It is sent by
the process that counts, so once, but twice where that is killed between the two.

Slack escapes three characters: https://api.slack.com/reference/surfaces/formatting. Of what WeCom
and DingTalk say of their robots, copies were read on 2026-11-27.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import smtplib
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from hmac import digest
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from gateway import background
from gateway.answer import JSON
from gateway.background import Service
from gateway.clock import monotonic, time
from gateway.config.notify import Notify
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.http_client import HttpClient, Response
from gateway.journal.group_store import MINUTES
from gateway.journal.groups import MUTED, RESOLVED, Group
from gateway.journal.store import JournalStore
from gateway.metrics import Metrics
from gateway.sources.base import Draft

log = logging.getLogger(__name__)

FAILED = "gateway_notifications_failed_total"
_LATEST = 86_400.0  # seconds for which something is to be told
_MOST = 500  # news of one message
_TRIES = (1.0, 4.0)  # seconds after which a message is sent again
_WORDS = {"new": "new", "again": "again, after it was resolved", "grown": "ten times as many"}
#: Bytes of a chat's message: WeCom takes 2,048.
CHAT_BYTES = 2_000
_ANSWER, _SAID = 64 * 1024, 200  # bytes that are read of an answer, characters that are shown
_MOST_TIME = 10.0  # seconds for a message


class Notice(NamedTuple):
    """A message about failures: ``lines`` are for people, ``body`` is JSON for programs."""

    id: str
    title: str
    lines: list[str]
    body: str

    @property
    def text(self) -> str:
        """Title and lines, as many as fit."""
        text, left = self.title, len(self.lines)
        for line in self.lines:
            more = f"{text}\n- {line}"
            if len(more.encode(errors="replace")) > CHAT_BYTES - 30:
                return f"{text}\n... and {left} more"
            text, left = more, left - 1
        return text


class Messenger:
    """Sends notices as `[notify]` says; its errors have neither the URL nor the secret."""

    def __init__(self, notify: Notify):
        self._notify = notify
        self._url = notify.url.get_secret_value()
        # An operator's own server may be in the same network.
        self._client = HttpClient(_ANSWER, public=False)

    def close(self) -> None:
        self._client.close()

    async def send(self, notice: Notice) -> None:
        """Send a message once. Raises `GatewayError` where it was not taken, or may not be."""
        try:
            async with asyncio.timeout(_MOST_TIME):
                await self._send(notice)
        except TimeoutError as exc:
            kind, seconds = self._notify.kind, f"{_MOST_TIME:g} s"
            raise GatewayError(f"{kind}: the message is not taken within {seconds}") from exc

    async def _send(self, notice: Notice) -> None:
        if self._notify.kind == "email":
            await self._mail(notice)
            return
        url, headers, body = self._request(notice)
        answer = await self._client.fetch("POST", url, {**headers, "Content-Type": JSON}, body)
        if problem := self._problem(answer):
            raise GatewayError(problem)

    def _request(self, notice: Notice) -> tuple[str, dict[str, str], bytes]:
        kind, url = self._notify.kind, self._url
        if kind == "webhook":
            draft = Draft(notice.body.encode(), url, time(), identity=notice.id)
            signed = self._notify.signer.sign(draft)
            return url, signed.headers, signed.body
        if kind == "slack":
            text = notice.text
            for character, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
                text = text.replace(character, escaped)
            return url, {}, _encoded({"text": text})
        if kind == "dingtalk" and self._notify.key:
            stamp = str(int(time() * 1000))
            key = self._notify.key.encode()
            sign = b64encode(digest(key, stamp.encode() + b"\n" + key, "sha256")).decode()
            url += f"{'&' if '?' in url else '?'}{urlencode({'timestamp': stamp, 'sign': sign})}"
        return url, {}, _encoded({"msgtype": "text", "text": {"content": notice.text}})

    def _problem(self, answer: Response) -> str:
        """Return why an answer means that the message was not taken; empty: it was."""
        said = answer.body[: 4 * _SAID].decode(errors="replace")[:_SAID]
        if not 200 <= answer.status < 300:
            return f"{self._notify.kind} answers {answer.status}: {said}"
        if self._notify.kind in ("wecom", "dingtalk"):
            try:
                code = json.loads(answer.body)["errcode"]
            except (ValueError, TypeError, KeyError, RecursionError):
                code = None
            if code != 0:
                return f"{self._notify.kind} does not take it: {said}"
        return ""

    async def _mail(self, notice: Notice) -> None:
        problems: list[Exception] = []
        line = _Line()

        def send() -> None:
            try:
                _send_mail(self._url, self._notify.key, notice, line)
            except (OSError, ValueError, smtplib.SMTPException) as exc:
                problems.append(exc)

        try:
            await background.in_daemon_thread(send)
        finally:
            line.end()
        if problems:
            raise GatewayError(f"mail: {type(problems[0]).__name__}: {problems[0]}")


class _Line:
    """A connection that another thread may end: smtplib has a limit only for each read."""

    _sock: socket.socket | None = None
    _ended = False

    def use(self, sock: socket.socket | None) -> None:
        self._sock = sock
        if self._ended:
            raise TimeoutError

    def end(self) -> None:
        self._ended = True
        if self._sock is not None:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)


class _Server(smtplib.SMTP):
    def __init__(self, line: _Line, *given: Any, **more: Any):
        self._line = line
        super().__init__(*given, **more)

    def getreply(self) -> tuple[int, bytes]:
        self._line.use(self.sock)
        return super().getreply()


class _SecureServer(_Server, smtplib.SMTP_SSL):
    """The same with TLS from the beginning."""


def _send_mail(url: str, password: str, notice: Notice, line: _Line) -> None:
    parts = urlsplit(url)
    query, user = parse_qs(parts.query), unquote(parts.username or "")
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = notice.title, query["from"][0], query["to"]
    mail["Message-ID"] = f"<{notice.id}@celery-gateway>"
    mail.set_content("\n".join([notice.title, "", *(f"- {line}" for line in notice.lines)]))
    host, context = parts.hostname or "", ssl.create_default_context()
    server: smtplib.SMTP
    if parts.scheme == "smtps":
        port = parts.port or 465
        server = _SecureServer(line, host, port, timeout=_MOST_TIME, context=context)
    else:
        server = _Server(line, host, parts.port or 587, timeout=_MOST_TIME)
    with server:
        server.ehlo()
        if parts.scheme == "smtp" and server.has_extn("starttls"):
            server.starttls(context=context)
        elif parts.scheme == "smtp" and password:
            raise ValueError("the server has no STARTTLS, so it does not get the password")
        if password:
            server.login(user, password)
        server.send_message(mail)


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


@dataclass(frozen=True, slots=True)
class News:
    """What is told: a ``kind`` of news, and its group, or a route with its numbers."""

    kind: str
    group: Group | None = None
    route: str = ""
    answered: int = 0
    failed: int = 0

    def __str__(self) -> str:
        if self.group is None:
            share = min(self.failed / max(self.answered, 1), 1.0)
            numbers = f"{self.failed} of {self.answered} in {MINUTES} minutes"
            return f"{self.route}: {share:.0%} of its deliveries fail ({numbers})"
        about, count = self.group.about, self.group.count
        what = ": ".join(filter(None, (about.type, about.text))) or about.state
        since = datetime.fromtimestamp(self.group.first / 1000, UTC)
        return (
            f"{_WORDS[self.kind]}: {what} ({about.route}, {about.task}; {count} {about.state} "
            f"since {since:%Y-%m-%d %H:%M}Z; group {self.group.id})"
        )

    def as_object(self) -> dict[str, Any]:
        """Return what a program reads of it."""
        if self.group is None:
            numbers = {"answered": self.answered, "failed": self.failed, "minutes": MINUTES}
            return {"kind": self.kind, "route": self.route, **numbers}
        return {"kind": self.kind, "group": self.group.as_object()}


class Notifier(Service):
    """Sends what the journal's `store` has as news, at most one message each `Notify.every`."""

    def __init__(self, config: Config, store: JournalStore, metrics: Metrics):
        assert config.notify is not None  # or there is no notifier
        self._every = config.notify.every
        self._messenger = Messenger(config.notify)
        self._store, self._metrics = store, metrics
        self._task: asyncio.Task[None] | None = None
        self._next = 0.0  # when the next message may be sent (monotonic)

    async def stop(self) -> None:
        await background.stop(self._task)
        self._messenger.close()

    def send_news(self) -> None:
        """Begin to tell what there is, unless that is under way, or has been a short time ago."""
        if (self._task is None or self._task.done()) and monotonic() >= self._next:
            self._task = asyncio.create_task(self._send_news(), name="failures are told")

    async def _send_news(self) -> None:
        try:
            names = await self._store.news(_MOST, _LATEST)
            if not names:
                return
            news = await self._news(names)
            if not news:  # it is muted or resolved by now
                await self._store.told(names, 0.0)
                return
            problem = ""
            try:
                await self._send(notice_of(news))
            except GatewayError as exc:
                self._metrics.add(FAILED)
                log.warning("a message about failures cannot be sent: %s", exc)
                names, problem = {}, str(exc) or "the reason is not known"
            # Also where the store does not take what follows, as a Redis that is full.
            self._next = monotonic() + self._every
            await self._store.told(names, self._every, problem)
        except GatewayError as exc:  # of the store, whose errors are logged by what counts
            log.debug("failures cannot be told: %s", exc)

    async def _news(self, names: Iterable[str]) -> list[News]:
        groups = {each.id: each for each in await self._store.groups()}
        rates = await self._store.rates(None, {}, {})
        found = []
        for kind, _, name in (each.partition(" ") for each in names):
            if kind == "share":
                answered, failed = rates.get(name, (0, 0))
                found.append(News(kind, None, name, answered, failed))
            elif name in groups and groups[name].state not in (MUTED, RESOLVED):
                found.append(News(kind, groups[name]))
        return found

    async def _send(self, notice: Notice) -> None:
        for pause in _TRIES:
            try:
                return await self._messenger.send(notice)
            except GatewayError as exc:
                log.debug("a message about failures is sent again: %s", exc)
                await asyncio.sleep(pause)
        await self._messenger.send(notice)


def notice_of(news: Sequence[News]) -> Notice:
    """Return the message with these `news`; without any it is a test."""
    title = f"celery-gateway on {socket.gethostname()}: "
    title += f"{len(news)} news of failures" if news else "this is a test"
    about = {"host": socket.gethostname(), "news": [each.as_object() for each in news]}
    sent = datetime.fromtimestamp(time(), UTC).isoformat(timespec="milliseconds")
    kind = "gateway.failures" if news else "gateway.test"
    body = json.dumps({"type": kind, "timestamp": sent, "data": about})
    return Notice(secrets.token_hex(16), title, [str(each) for each in news], body)


async def send_test(config: Config) -> None:
    """Send a test to whom `[notify]` names, once; raises `GatewayError`."""
    if config.notify is None:
        raise GatewayError("there is no [notify] in this configuration")
    messenger = Messenger(config.notify)
    try:
        await messenger.send(notice_of([]))
    finally:
        messenger.close()
