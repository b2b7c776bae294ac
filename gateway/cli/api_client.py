"""Ask the API of a gateway's admin port."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any
from urllib.parse import urlencode

from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.httputil import HTTPInputError
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from gateway.cli.outgoing import without_account
from gateway.errors import GatewayError

TIMEOUT = 30.0  # seconds for an answer
#: Errors of a request that has no answer.
NO_ANSWER = (HTTPClientError, HTTPInputError, OSError, ValueError)
_PAGE = 100  # deliveries of an answer


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
        url = f"{self._url}/api/{path}?{urlencode(query)}"
        asked = HTTPRequest(
            url, headers=self._headers, connect_timeout=TIMEOUT, request_timeout=TIMEOUT
        )
        try:
            answer = await self.client.fetch(asked, raise_error=False)
        except NO_ANSWER as exc:
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
        self, query: Mapping[str, str], known: Container[str] = ()
    ) -> list[dict[str, Any]]:
        """Return the kept deliveries that `query` takes, the oldest first.

        Those with `known` ids are left out, and what is older than the page of the first of them.
        """
        found: list[dict[str, Any]] = []
        before: str | None = ""
        while before is not None:
            page = await self.get("deliveries", **query, limit=_PAGE, before=before)
            new = [each for each in page["deliveries"] if each["id"] not in known]
            found += new
            before = page["next"] if len(new) == len(page["deliveries"]) else None
        return found[::-1]


def _reason(answer: HTTPResponse) -> str:
    """Return what an answer of the API says is wrong."""
    try:
        return f"{answer.code}: {json.loads(answer.body)['detail']}"
    except (ValueError, KeyError, TypeError):
        return str(answer.error or answer.code)
