"""Send late answers as a route's `late` says, and see from the sender's what became of them."""

from __future__ import annotations

import json
import re
from asyncio import Lock
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from gateway.answer import JSON, Answer
from gateway.clock import monotonic, time
from gateway.config.late import OURS, Fetch, Late, fill, fill_url
from gateway.errors import ResultUnusable
from gateway.http_client import HttpClient, NotAllowed, NotKnown, NotSent, Response
from gateway.late.record import NOT_TAKEN, REFUSED, TAKEN, UNKNOWN, Record, Terms, Verdict
from gateway.sources.base import Options
from gateway.sources.reading import at, pointer, read_loosely

#: Bytes of a late answer: it is kept until it is sent.
MAX_MESSAGE = 256 * 1024
_SAID = 200  # characters of a sender's answer that are shown
_EARLY = 60.0  # seconds before its end from which on a token is not used
#: Statuses that say that the answer was not taken; a proxy that has had no answer itself (502,
#: 504) does not know.
_LATER = {408, 425, 429, 500, 503}
_UNSURE = {502, 504}
_LONGEST = 86_400.0  # seconds of a Retry-After, and for which a token is used
_MAX_BODY = 1024 * 1024  # bytes of a sender's answer
_MAX_URL = 4_096  # characters
_printable = re.compile(r"[!-~]+").fullmatch


class Client:
    """Sends requests to `hosts` only; those of them in `own` may be private, and without TLS.

    A host has its port after a colon, where that is not the scheme's own.
    """

    def __init__(self, hosts: set[str], own: set[str]):
        self._hosts, self._own = hosts, own
        self._public = HttpClient(_MAX_BODY)
        self._private = HttpClient(_MAX_BODY, public=False)

    def close(self) -> None:
        self._public.close()
        self._private.close()

    def check(self, url: str) -> str:
        """Return the host in `url`; raises `NotAllowed`, which does not repeat the URL."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as exc:
            raise NotAllowed("it is no URL") from exc
        if not _printable(url) or len(url) > _MAX_URL or "@" in parts.netloc or "\\" in url:
            raise NotAllowed("the URL is malformed")
        ports = {"https": 443, "http": 80}
        name = host if port in (None, ports.get(parts.scheme)) else f"{host}:{port}"
        if name not in self._hosts:
            raise NotAllowed(f"the host {name!r:.99} is none that late answers are sent to")
        if parts.scheme != "https" and not (parts.scheme == "http" and name in self._own):
            raise NotAllowed(f"the URL of {name} is not https")
        return name

    async def fetch(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Response:
        """Send a request and return the answer, as `HttpClient.fetch` does. Raises `NotAllowed`."""
        client = self._private if self.check(url) in self._own else self._public
        return await client.fetch(method, url, headers, body)


class Sender:
    """Sends late answers; `options` are those of the route's source, if it has one."""

    def __init__(self, late: Late, options: Options | None):
        self.late = late
        self.terms = Terms(late.tries, late.replaces)
        self._client = Client({*late.hosts}, late.own_hosts)
        self._ours = credentials(late, options)
        self._token, self._token_until = "", 0.0
        self._fetching = Lock()
        #: Why the last fetch of a token has failed, and when.
        self._failed, self._failed_at = NotSent(), 0.0

    def close(self) -> None:
        self._client.close()

    def check(self, values: dict[str, Any]) -> None:
        """Raise KeyError where a delivery lacks a value, and `NotAllowed` for its URL."""
        known = {**values, **dict.fromkeys(OURS, "x")}
        fill(self.late.body, known)
        self._client.check(self._url(known))

    def host(self, record: Record) -> str:
        """Return the host to which the record's message goes; empty: it goes nowhere."""
        try:
            return self._client.check(self._url({**record.values, **dict.fromkeys(OURS, "x")}))
        except (KeyError, NotAllowed):
            return ""

    def window(self, values: dict[str, Any], age: float) -> float:
        """Return for how many seconds the sender still takes late answers at the most.

        `age` is the time since the first try of the delivery, in seconds.
        """
        window = self.late.window - age
        until: Any = values.get(self.late.until.strip("{}"))
        # Where it is a number, the sender says when it is too late.
        with suppress(TypeError, ValueError, OverflowError):
            window = min(window, int(until) / 1000 - time())
        return max(window, 0.0)

    def message(self, answer: Answer, values: dict[str, Any]) -> str | None:
        """Return the body of the request for a task's `answer`; None: there is nothing to send.

        Raises `ResultUnusable`.
        """
        try:
            text = answer.body.decode()
        except UnicodeDecodeError as exc:
            raise ResultUnusable("A late answer has to be UTF-8.") from exc
        if not text or text in self.late.silent:
            return None
        content: Any = read_loosely(answer.body) if answer.content_type.startswith(JSON) else text
        if isinstance(content, dict) and self.late.unwrap:
            inner = at(content, pointer(self.late.unwrap))
            content = inner if isinstance(inner, (dict, str)) else content
        if not isinstance(content, dict):
            plain = content if isinstance(content, str) else text
            content = fill(self.late.text, {**values, "answer": plain})
        body = fill(self.late.body, {**values, "answer": content})
        made = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
        if len(made.encode(errors="replace")) > MAX_MESSAGE:
            raise ResultUnusable(f"A late answer has at most {MAX_MESSAGE} bytes.")
        return made

    async def send(self, record: Record) -> Verdict:
        """Send the record's message; a token that is not valid any more is fetched once again."""
        try:
            found, token = await self._send(record)
            if self._is_stale(found):
                self._forget(token)
                found, _ = await self._send(record)
        except NotAllowed as exc:
            return Verdict(REFUSED, str(exc))
        except NotSent as exc:
            return Verdict(NOT_TAKEN, str(exc), exc.after)
        except NotKnown as exc:
            return Verdict(UNKNOWN, str(exc))
        return self._verdict(found)

    async def _send(self, record: Record) -> tuple[Response, str]:
        token = await self._valid_token() if "token" in self.late.needs else ""
        values = {**record.values, **self._ours, "token": token}
        message = record.message or ""
        kind = JSON if message.startswith(("{", "[")) else "text/plain; charset=utf-8"
        headers = {"Content-Type": kind, **fill(self.late.headers, values)}
        body = message.encode(errors="replace")
        return await self._client.fetch(self.late.method, self._url(values), headers, body), token

    def _url(self, values: dict[str, Any]) -> str:
        return fill_url(self.late.url, values)

    def _verdict(self, found: Response) -> Verdict:
        document = read_loosely(found.body) if self.late.code or self.late.wait else None
        said = found.body[:_SAID].decode(errors="replace")
        reason = f"the sender has answered {found.status}: {said}"
        after = retry_after(found.headers.get("retry-after", ""))
        if self.late.wait and isinstance(wait := at(document, pointer(self.late.wait)), int):
            after = max(after, min(wait, _LONGEST))
        if found.status in _UNSURE:
            return Verdict(UNKNOWN, reason, after)
        code = at(document, pointer(self.late.code)) if self.late.code else 0
        if found.status in _LATER or (code and code in self.late.again):
            return Verdict(NOT_TAKEN, reason, after)
        if not 200 <= found.status < 300 or code:
            return Verdict(REFUSED, reason)
        return Verdict(TAKEN if code == 0 or not self.late.code else UNKNOWN, reason)

    def _is_stale(self, found: Response) -> bool:
        if self.late.fetch is None:
            return False
        code = at(read_loosely(found.body), pointer(self.late.code)) if self.late.code else None
        return found.status == 401 or code in self.late.stale

    # The token ---------------------------------------------------------------------------------

    async def _valid_token(self) -> str:
        """Return the token, which is fetched if need be. Raises `NotSent`."""
        fetch, since = self.late.fetch, monotonic()
        if fetch is None:
            return self._ours["token"]
        async with self._fetching:
            if self._token and monotonic() < self._token_until:
                return self._token
            # A fetch may take as long as a request: a wait for several would outlast the lease.
            if self._failed_at > since:
                raise self._failed.with_traceback(None)
            try:
                await self._fetch_token(fetch)
            except NotSent as exc:
                self._failed, self._failed_at = exc, monotonic()
                raise
            return self._token

    async def _fetch_token(self, fetch: Fetch) -> None:
        """Fetch a token. Raises `NotSent`."""
        url, body = fill_url(fetch.url, self._ours), b""
        if fetch.method == "POST":
            body = json.dumps(fill(fetch.body, self._ours)).encode()
        try:
            kind = {"Content-Type": JSON} if body else {}
            found = await self._client.fetch(fetch.method, url, kind, body)
        except NotKnown as exc:  # but nothing of the answer was sent
            raise NotSent(f"no token was fetched: {exc}") from exc
        document = read_loosely(found.body)
        token, life = (at(document, pointer(each)) for each in (fetch.token, fetch.life))
        if not isinstance(token, str) or not token:
            said = f"{found.status}: {found.body[:_SAID].decode(errors='replace')}"
            if isinstance(document, dict) and found.status < 300 and not self._refused(document):
                # It may have the token, at another place than the pointer says.
                said = (
                    f"{found.status}, with nothing at {fetch.token}: {', '.join(document)[:_SAID]}"
                )
            error = NotSent(f"no token was fetched: the sender has answered {said}")
            error.after = retry_after(found.headers.get("retry-after", ""))
            raise error
        seconds = min(life, _LONGEST) if isinstance(life, (int, float)) else 0
        self._token, self._token_until = token, monotonic() + max(seconds - _EARLY, seconds / 2)

    def _refused(self, document: Any) -> bool:
        """Does the code in an answer say that it is an error?"""
        return bool(self.late.code and at(document, pointer(self.late.code)))

    def _forget(self, token: str) -> None:
        if token == self._token:  # another request may have fetched one already
            self._token = ""


def credentials(late: Late, options: Options | None) -> dict[str, str]:
    """Return the app's id, its secret and the block's token, as far as they are known."""
    found = {"token": late.token.get_secret_value() if late.token else ""}
    if options is not None:
        found |= {name: options.credential(name) for name in ("app_id", "app_secret")}
    return {name: text for name, text in found.items() if text}


def retry_after(text: str) -> float:
    """Return the seconds in a Retry-After header; 0 where it has none. RFC 9110, 10.2.3"""
    try:
        seconds = float(text)
    except ValueError:
        try:
            when = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return 0.0
        now = datetime.fromtimestamp(time(), UTC)
        seconds = (when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds()
    return min(max(seconds, 0.0), _LONGEST) if seconds == seconds else 0.0
