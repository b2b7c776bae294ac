"""Send a message to a webhook, to a chat's robot, or by mail.

Slack escapes three characters: https://api.slack.com/reference/surfaces/formatting. Of what WeCom
and DingTalk say of their robots, copies were read on 2026-11-27.
"""

from __future__ import annotations

import asyncio
import json
import smtplib
import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from email.message import EmailMessage
from hmac import digest
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from gateway import background
from gateway.answer import JSON
from gateway.clock import time
from gateway.config.notify import Notify
from gateway.errors import GatewayError
from gateway.http_client import HttpClient, Response
from gateway.sources.base import Draft

#: Bytes of a chat's message: WeCom takes 2,048.
MOST = 2_000
_ANSWER, _SAID = 64 * 1024, 200  # bytes that are read of an answer, characters that are shown
_MOST_TIME = 10.0  # seconds for a message


class Message(NamedTuple):
    """A message: ``lines`` are for people, ``body`` is JSON for programs."""

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
            if len(more.encode(errors="replace")) > MOST - 30:
                return f"{text}\n... and {left} more"
            text, left = more, left - 1
        return text


class Sender:
    """Sends messages as `[notify]` says; its errors have neither the URL nor the secret."""

    def __init__(self, notify: Notify):
        self._notify = notify
        self._url = notify.url.get_secret_value()
        # An operator's own server may be in the same network.
        self._client = HttpClient(_ANSWER, public=False)

    def close(self) -> None:
        self._client.close()

    async def send(self, message: Message) -> None:
        """Send a message once. Raises `GatewayError` where it was not taken, or may not be."""
        try:
            async with asyncio.timeout(_MOST_TIME):
                await self._send(message)
        except TimeoutError as exc:
            kind, seconds = self._notify.kind, f"{_MOST_TIME:g} s"
            raise GatewayError(f"{kind}: the message is not taken within {seconds}") from exc

    async def _send(self, message: Message) -> None:
        if self._notify.kind == "email":
            await self._mail(message)
            return
        url, headers, body = self._request(message)
        answer = await self._client.fetch("POST", url, {**headers, "Content-Type": JSON}, body)
        if problem := self._problem(answer):
            raise GatewayError(problem)

    def _request(self, message: Message) -> tuple[str, dict[str, str], bytes]:
        kind, url = self._notify.kind, self._url
        if kind == "webhook":
            draft = Draft(message.body.encode(), url, time(), identity=message.id)
            signed = self._notify.signer.sign(draft)
            return url, signed.headers, signed.body
        if kind == "slack":
            text = message.text
            for character, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
                text = text.replace(character, escaped)
            return url, {}, _encoded({"text": text})
        if kind == "dingtalk" and self._notify.key:
            stamp = str(int(time() * 1000))
            key = self._notify.key.encode()
            sign = b64encode(digest(key, stamp.encode() + b"\n" + key, "sha256")).decode()
            url += f"{'&' if '?' in url else '?'}{urlencode({'timestamp': stamp, 'sign': sign})}"
        return url, {}, _encoded({"msgtype": "text", "text": {"content": message.text}})

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

    async def _mail(self, message: Message) -> None:
        problems: list[Exception] = []
        line = _Line()

        def send() -> None:
            try:
                _send_mail(self._url, self._notify.key, message, line)
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


def _send_mail(url: str, password: str, message: Message, line: _Line) -> None:
    parts = urlsplit(url)
    query, user = parse_qs(parts.query), unquote(parts.username or "")
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = message.title, query["from"][0], query["to"]
    mail["Message-ID"] = f"<{message.id}@celery-gateway>"
    mail.set_content("\n".join([message.title, "", *(f"- {line}" for line in message.lines)]))
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
