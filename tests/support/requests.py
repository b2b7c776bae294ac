"""Requests by Tornado's own client, and what a gateway has counted of them."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Sequence

from tornado.httpclient import HTTPResponse
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from gateway.stack import Server


def post_all(url: str, bodies: Sequence[bytes], at_once: int = 200) -> list[HTTPResponse]:
    """Post each body, `at_once` of them at a time; return the answers in the same order."""
    return post_each([(url, body) for body in bodies], at_once)


def post_each(requests: Sequence[tuple[str, bytes]], at_once: int = 200) -> list[HTTPResponse]:
    """The same for requests to different URLs."""

    async def run() -> list[HTTPResponse]:
        client = SimpleAsyncHTTPClient(force_instance=True, max_clients=at_once)
        options = {"raise_error": False, "connect_timeout": 60, "request_timeout": 60}
        try:
            return await asyncio.gather(
                *(client.fetch(url, method="POST", body=body, **options) for url, body in requests)
            )
        finally:
            client.close()

    return asyncio.run(run())


def post(url: str, body: bytes = b"hello") -> HTTPResponse:
    (answer,) = post_all(url, [body])
    return answer


def get(url: str) -> HTTPResponse:
    async def run() -> HTTPResponse:
        client = SimpleAsyncHTTPClient(force_instance=True)
        try:
            return await client.fetch(url, raise_error=False)
        finally:
            client.close()

    return asyncio.run(run())


def metric(gateway: Server, name: str) -> float:
    """Return the sum of a metric's series, or of those that begin so; holds up the loop."""
    with urllib.request.urlopen(f"{gateway.admin_url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))
