"""Ask the API of a gateway's admin port."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import urlencode

from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.httputil import HTTPInputError
from tornado.iostream import StreamClosedError
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from gateway.cli.outgoing import without_account
from gateway.errors import GatewayError

TIMEOUT = 30.0  # seconds for an answer
#: Errors of a request that has no answer.
NO_ANSWER = (HTTPClientError, HTTPInputError, OSError, ValueError)
_PAGE = 100
_SILENCE = 45.0  # seconds; the gateway says something every 15 s


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
        self.client = SimpleAsyncHTTPClient(force_instance=True, max_clients=20)

    def close(self) -> None:
        self.client.close()

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self._fetch(self._request(path, query))
        try:
            return json.loads(answer.body)
        except ValueError as exc:
            raise Refused(
                f"{self._shown}: this is not a gateway's admin port; correct --admin"
            ) from exc

    async def kept(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the kept deliveries that `query` takes, the oldest first."""
        found: list[dict[str, Any]] = []
        before = ""
        while True:
            page = await self.get("deliveries", **query, limit=_PAGE, before=before)
            found += page["deliveries"]
            if page["next"] is None:
                return found[::-1]
            before = page["next"]

    async def changes(self, query: Mapping[str, str]) -> AsyncGenerator[tuple[str, Any], None]:
        """Yield each event's type and data: ``ready`` with the gateway's time is the first."""
        # Its error has a reason, unlike that of a stream.
        await self.get("deliveries", **query, limit=1)
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        left = False

        def on_chunk(chunk: bytes) -> None:
            if left:
                raise StreamClosedError  # which closes the connection
            chunks.put_nowait(chunk)

        asked = self._request("changes", query, request_timeout=0)
        asked.streaming_callback = on_chunk
        answer = asyncio.ensure_future(self._fetch(asked))
        answer.add_done_callback(lambda _: chunks.put_nowait(None))
        decode = codecs.getincrementaldecoder("utf-8")().decode
        text = ""
        try:
            while (chunk := await asyncio.wait_for(chunks.get(), _SILENCE)) is not None:
                *events, text = (text + decode(chunk)).split("\n\n")
                for event in events:
                    fields = dict(line.partition(": ")[::2] for line in event.split("\n"))
                    if kind := fields.get("event"):
                        data = fields["data"]
                        yield kind, json.loads(data) if kind == "delivery" else data
            await answer
            raise GatewayError(f"{self._shown}: the stream of changes has ended")
        except TimeoutError as exc:
            raise GatewayError(f"{self._shown}: no answer") from exc
        finally:
            left = True
            answer.cancel()

    def _request(self, path: str, query: Mapping[str, Any], **more: Any) -> HTTPRequest:
        url = f"{self._url}/api/{path}?{urlencode(query)}"
        timeouts = {"connect_timeout": TIMEOUT, "request_timeout": TIMEOUT, **more}
        return HTTPRequest(url, headers=dict(self._headers), **timeouts)

    async def _fetch(self, asked: HTTPRequest) -> HTTPResponse:
        try:
            answer = await self.client.fetch(asked, raise_error=False)
        except NO_ANSWER as exc:
            problem = f"{exc or type(exc).__name__}; start the gateway, or correct --admin"
            raise GatewayError(f"{self._shown}: {problem}") from exc
        if answer.code != 200:
            refused = Refused if 400 <= answer.code < 500 else GatewayError
            raise refused(f"{self._shown}: {_reason(answer)}")
        return answer


def _reason(answer: HTTPResponse) -> str:
    """Return what an answer of the API says is wrong."""
    try:
        return f"{answer.code}: {json.loads(answer.body)['detail']}"
    except (ValueError, KeyError, TypeError):
        return str(answer.error or answer.code)
