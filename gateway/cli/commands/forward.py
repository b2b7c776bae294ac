"""Send deliveries of a gateway to a local server: those that come, or kept ones."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
from collections.abc import Container, Iterable, Mapping
from itertools import takewhile
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.httputil import HTTPHeaders, HTTPInputError
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from gateway.backoff import Backoff
from gateway.cli import shown, tell
from gateway.cli.outgoing import checked_url, without_account
from gateway.clock import monotonic
from gateway.config.pointers import glob
from gateway.errors import GatewayError
from gateway.journal.entry import Original
from gateway.journal.filter import PARTS, events_of
from gateway.sources.reading import read_query

ADMIN = "http://127.0.0.1:9464"
_SEEN = 10_000  # ids of deliveries that are remembered, so that each is sent once
_FILTERS = ("route", "source", "event")
#: Headers of the original request that belong to its connection.
_OWN = {
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
_TIMEOUT = 30.0  # seconds for an answer
#: Errors of a request that has no answer.
_NO_ANSWER = (HTTPClientError, HTTPInputError, OSError, ValueError)
_PAGE = 100  # deliveries of an answer
EVERY = 0.5  # seconds between two looks for what has come

_is_name = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_is_value = re.compile(r"[^\0\r\n]*").fullmatch


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    for name in (*_FILTERS, "since"):
        text = PARTS[name].help
        text = f"first what was kept, and {text}" if name == "since" else text
        add(f"--{name}", metavar=PARTS[name].metavar, default="", help=text)
    text = (
        "the local server's URL; deliveries of routes with `args` or `kwargs` cannot be sent, as "
        "their requests are not kept"
    )
    add("--to", metavar="URL", required=True, help=text)
    text = "send only this delivery, and end; may be given several times"
    add("--id", metavar="ID", action="append", default=[], help=text)
    add("--admin", metavar="URL", help=f"the admin port ({ADMIN}, or at GATEWAY_ADMIN_PORT)")
    add("--token", metavar="TOKEN", help="its `admin_token` (default: GATEWAY_ADMIN_TOKEN)")


def run(arguments: argparse.Namespace) -> int:
    port = os.environ.get("GATEWAY_ADMIN_PORT", "")
    named = arguments.admin or (f"http://127.0.0.1:{port}" if port else ADMIN)
    arguments.to = checked_url("--to", arguments.to)
    name = "--admin" if arguments.admin else "--admin, by default with GATEWAY_ADMIN_PORT"
    arguments.admin = checked_url(name, named)
    wanted = {name: value for name in _FILTERS if (value := getattr(arguments, name))}
    # What goes wrong is said here; at the end it would log the requests that are cancelled.
    logging.getLogger("tornado").setLevel(logging.CRITICAL)
    token = arguments.token or os.environ.get("GATEWAY_ADMIN_TOKEN", "")
    if not token.isascii() or not token.isprintable():
        name = "--token" if arguments.token else "GATEWAY_ADMIN_TOKEN"
        raise GatewayError(f"{name}: has letters that are not ASCII, or a line break; correct it")
    return asyncio.run(_forward(arguments, wanted, token))


class Refused(GatewayError):
    """The API does not do what it is asked for: trying again would not help."""


class API:
    """The API of a gateway's admin port.

    Raises `Refused` with what it says is wrong, and `GatewayError` where it does not answer.
    """

    def __init__(self, url: str, token: str):
        self._url = url.rstrip("/")
        self._shown = without_account(self._url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.client = SimpleAsyncHTTPClient(force_instance=True)

    def close(self) -> None:
        self.client.close()

    async def get(self, path: str, **query: Any) -> Any:
        url = f"{self._url}/api/{path}?{urlencode(query)}"
        asked = HTTPRequest(
            url, headers=self._headers, connect_timeout=_TIMEOUT, request_timeout=_TIMEOUT
        )
        try:
            answer = await self.client.fetch(asked, raise_error=False)
        except _NO_ANSWER as exc:
            problem = f"{exc or type(exc).__name__}; start the gateway, or correct --admin"
            raise GatewayError(f"{self._shown}: {problem}") from exc
        if answer.code != 200:
            refused = Refused if 400 <= answer.code < 500 else GatewayError
            raise refused(f"{self._shown}: {_reason(answer)}")
        try:
            return json.loads(answer.body)
        except ValueError as exc:
            raise Refused(
                f"{self._shown}: this is not a gateway's admin port; correct --admin"
            ) from exc

    async def kept(
        self, query: Mapping[str, str], seen: Container[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the kept deliveries that `query` takes, the oldest first.

        Only those that are newer than each of the `seen` ids.
        """
        found: list[dict[str, Any]] = []
        before: str | None = ""
        while before is not None:
            page = await self.get("deliveries", **query, limit=_PAGE, before=before)
            new = list(takewhile(lambda each: each["id"] not in seen, page["deliveries"]))
            found += new
            before = page["next"] if len(new) == len(page["deliveries"]) else None
        return found[::-1]


def _reason(answer: HTTPResponse) -> str:
    """Return what an answer of the API says is wrong."""
    try:
        return f"{answer.code}: {json.loads(answer.body)['detail']}"
    except (ValueError, KeyError, TypeError):
        return str(answer.error or answer.code)


async def _forward(arguments: argparse.Namespace, wanted: dict[str, str], token: str) -> int:
    api = API(arguments.admin, token)
    forwarder = Forwarder(api, arguments.to)
    try:
        if arguments.id:
            return 0 if all([await forwarder.send(each) for each in arguments.id]) else 1
        await forwarder.follow(wanted, arguments.since)
    finally:
        api.close()
    return 0


def original(delivery: Mapping[str, Any]) -> Original | None:
    """Return the request of a delivery.

    None: it is not kept, or its route passes other arguments than the request.
    """
    call = delivery["call"]
    request = call and Original.of(call["args"], call["kwargs"])
    # A sender may choose what `args` takes from its body, but not that it looks like its request.
    if not request or request.query != read_query(delivery["query_string"], "replace"):
        return None
    headers = request.headers.items()
    if not all(isinstance(v, str) and _is_name(n) and _is_value(v) for n, v in headers):
        return None
    return None if request.raw is None else request


def _is_wanted(delivery: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Tell whether a delivery fits the filters, as the API reads them."""
    values = {name: [delivery[name]] for name in wanted} | {"event": events_of(delivery["event"])}
    return all(any(map(glob(pattern), values[name])) for name, pattern in wanted.items())


class Forwarder:
    """Sends deliveries to a URL, each once, and prints a line for each."""

    def __init__(self, api: API, to: str):
        self._api = api
        self._to = to
        #: The ids of the last ones that were sent, or are not to be.
        self._seen: dict[str, None] = {}

    async def follow(self, wanted: dict[str, str], since: str) -> None:
        """Send what was kept `since`, if that is given, and then what comes, for ever.

        What came while the gateway did not answer is sent later.
        """
        backoff, begun = Backoff(), False
        while True:
            try:
                if not begun:
                    # Without filters, so that few are looked at again and again.
                    page = await self._api.get("deliveries", limit=_PAGE)
                    first = await self._api.kept({**wanted, "since": since or "0s"})
                    self._note(each["id"] for each in page["deliveries"])
                    where = without_account(self._to)
                    print(f"waiting for deliveries; they go to {where}", flush=True)
                    begun = True
                    for each in first if since else ():
                        await self._send_new(each)
                for each in await self._api.kept({}, self._seen):
                    self._note([each["id"]])
                    if _is_wanted(each, wanted):
                        await self._send_new(each)
                backoff.reset()
                await asyncio.sleep(EVERY)
            except Refused:
                raise
            except GatewayError as exc:
                tell(f"{exc}; trying again")
                await asyncio.sleep(backoff.next())

    def _note(self, ids: Iterable[str]) -> None:
        self._seen.update(dict.fromkeys(ids))
        while len(self._seen) > _SEEN:
            del self._seen[next(iter(self._seen))]

    async def _send_new(self, delivery: Mapping[str, Any]) -> None:
        """Send a delivery, also if the gateway is away meanwhile; a refused request is none."""
        delivery_id, backoff, settled = delivery["id"], Backoff(), bool(delivery["request"])
        self._note([delivery_id])
        while not settled:
            try:
                await self.send(delivery_id)
                settled = True
            except Refused as exc:  # it is not in the journal any more
                tell(f"{delivery_id} not sent: {exc}")
                settled = True
            except GatewayError as exc:
                tell(f"{exc}; trying again")
                await asyncio.sleep(backoff.next())

    async def send(self, delivery_id: str) -> bool:
        """Send a delivery; return whether the server has answered with a 2xx."""
        delivery = await self._api.get(f"deliveries/{quote(delivery_id, safe='')}")
        about = f"{delivery['received_at'][:23]} {delivery_id} {delivery['route']}"
        request = original(delivery)
        if delivery["request"] or request is None:
            why = "its request is not kept, as its route has `args`, or by `keep_bodies`"
            if delivery["request"]:
                why = f"it was {delivery['state']}: {delivery['error']}"
            print(shown(f"{about} not sent: {why}"), flush=True)
            return False
        begun = monotonic()
        code, outcome = await self._post(request, delivery["query_string"])
        took = f"{(monotonic() - begun) * 1e3:,.0f} ms"
        print(shown(f"{about} {delivery['event']} -> {outcome} in {took}"), flush=True)
        return 200 <= code < 300

    async def _post(self, request: Original, query_string: str) -> tuple[int, str]:
        """Return the status of the server's answer, and how it is told; 0: there is none."""
        parts = urlsplit(self._to)
        query = "&".join(filter(None, (parts.query, query_string)))
        # Where it has none of these, the client would add its own.
        headers = HTTPHeaders({"content-type": "application/octet-stream"})
        headers["user-agent"] = "gateway-forward"
        for name, value in request.headers.items():
            if name.lower() not in _OWN:
                headers[name] = value
        method = request.method(query_string)
        asked = HTTPRequest(
            parts._replace(query=query).geturl(), method, headers,
            None if method == "GET" else request.raw,
            follow_redirects=False, decompress_response=False, connect_timeout=_TIMEOUT,
            request_timeout=_TIMEOUT,
        )  # fmt: skip
        try:
            answer = await self._api.client.fetch(asked, raise_error=False)
        except _NO_ANSWER as exc:
            return 0, f"no answer: {exc or type(exc).__name__}"
        return answer.code, str(answer.code)
