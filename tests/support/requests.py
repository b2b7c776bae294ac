"""Requests that are sent one by one or all at once, and what a gateway has counted of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from tornado.httpclient import HTTPResponse
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from gateway.metrics import Metrics
from gateway.process.counters import Reader
from gateway.stack.loopback import answers_ok
from tests.support.http_client import Answer
from tests.support.stack import Server

#: How many requests were answered, and how many messages were handed to the broker.
REQUESTS = "http_server_request_duration_seconds_count"
PUBLISHED = "messaging_client_sent_messages_total"


#: A line that says why a request was refused, on one line and with nothing that is not printable.
_REFUSAL = re.compile(
    r"\S+ INFO +\[\d+\] gateway\.(http\.received_request|relay\.in_flight): 4\d\d [^\0-\x1f]+\n"
)


def without_refusals(output: str) -> str:
    """Return what a gateway has logged but for the lines of requests that it has refused."""
    return "".join(line for line in output.splitlines(True) if not _REFUSAL.fullmatch(line))


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


def fetch(url: str, *headers: str, method: str = "GET", body: bytes | None = None) -> Answer:
    """Send one request to a URL, and follow nowhere; holds up the loop."""
    parts = urlsplit(url)
    target = parts._replace(scheme="", netloc="", path=parts.path or "/").geturl()
    with closing(HTTPConnection(str(parts.hostname), parts.port, timeout=120)) as connection:
        connection.request(method, target, body, dict(line.split(": ", 1) for line in headers))
        found = connection.getresponse()
        named = {name.lower(): value for name, value in found.getheaders()}
        return Answer(found.status, named, found.read())


def readiness(gateway: Server, route: str = "") -> tuple[int, dict[str, Any]]:
    """Return the status of a gateway's readiness, or of a route's, and what it tells."""
    answer = fetch(f"{gateway.admin_url}/readyz" + (f"?route={route}" if route else ""))
    return answer.status, json.loads(answer.body)


def is_ready(gateway: Server, route: str = "") -> bool:
    """Tell the same of a gateway that may not answer at all."""
    return answers_ok(gateway.admin_port, "/readyz" + (f"?route={route}" if route else ""))


def scrape(gateway: Server, *headers: str) -> str:
    """Return all that a gateway tells of its metrics."""
    answer = fetch(f"{gateway.admin_url}/metrics", *headers)
    assert answer.status == 200
    return answer.body.decode()


def metric(gateway: Server, name: str, **labels: object) -> float:
    """Return the sum of a metric's series that have these labels; holds up the loop."""
    return total(scrape(gateway), name, **labels)


def confirmed(gateway: Server) -> float:
    """Return how many messages the broker has confirmed."""
    return metric(gateway, "messaging_client_operation_duration_seconds_count", error_type="")


def total(exposed: str, name: str, **labels: object) -> float:
    """Return the same of the text that a gateway exposes."""
    wanted = {label: str(value) for label, value in labels.items()}.items()
    return sum(
        sample.value
        for family in text_string_to_metric_families(exposed)
        for sample in family.samples
        if sample.name == name and wanted <= sample.labels.items()
    )


def counted(metrics: Metrics, name: str, **labels: object) -> float:
    """Return the same of what a process has counted; a histogram's observations."""
    wanted = {label: str(value) for label, value in labels.items()}.items()
    return sum(
        sum(values[: len(bounds) or 1])
        for (series, given, bounds), values in Reader(metrics.map).totals().values.items()
        if series == name and wanted <= dict(given).items()
    )
