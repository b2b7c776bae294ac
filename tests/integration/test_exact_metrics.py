"""The metrics of four processes are what clients and tasks count, whatever becomes of a process.

A process counts a request right before it answers, and a message right after it has handed that to
the broker. So one that is killed may have counted a request whose client sees a reset, and may not
have counted a message that a worker gets. Both differ by no more than the requests that were reset;
all else is exact.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from itertools import product

import pytest

from gateway.metric_table import OTHER
from tests.integration.deliveries import Servers, run
from tests.integration.tasks import RECORD, records
from tests.support.config import route, source
from tests.support.http_client import Connection, request
from tests.support.requests import REQUESTS, confirmed, metric, scrape, total
from tests.support.stack import Server
from tests.support.waiting import until

PROCESSES, CONNECTIONS = 4, 48
MANY, SOME = 4_000, 1_500  # requests
CONFIG = (
    source("signed", "hmac", signature="header:X-Signature", secrets=["a secret of these tests"])
    + route("/count", RECORD, deadline=50)
    + route("/signed", None, source="signed")
)
#: What is sent in turn: method, target, the route that it is counted by, status.
KINDS = [
    ("POST", "/count", "/count", 200),
    ("POST", "/count?status=201", "/count", 201),
    ("POST", "/count?status=418", "/count", 418),
    ("POST", "/nowhere", "", 404),
    ("BREW", "/count", "/count", 405),
    ("PUT", "/count", "/count", 405),
    ("POST", "/signed", "/signed", 401),
]
#: A request as it is counted: route, method, status.
Kind = tuple[str, str, int]


class Client:
    """Sends requests on several connections, and counts what becomes of them."""

    def __init__(self, gateway: Server):
        self._gateway = gateway
        self._port = gateway.port
        self._number = self._half = 0
        self.answers: Counter[Kind] = Counter()
        self.done: set[str] = set()  # the bodies of those that a task has answered
        self.reset: list[str] = []  # those that have no answer
        self.killing = False  # is a process to be killed once half of the requests are sent?

    def send(self, number: int) -> None:
        """Send so many requests and wait for all answers."""

        async def all_of_them() -> None:
            end = self._number + number
            self._half = self._number + number // 2
            await asyncio.gather(*(self._send_until(end) for _ in range(CONNECTIONS)))

        run(all_of_them())

    async def _send_until(self, end: int) -> None:
        while self._number < end:
            async with await Connection.open(self._port) as connection:
                await self._use(connection, end)

    async def _use(self, connection: Connection, end: int) -> None:
        """Send on one connection until it ends, or all are sent."""
        used = False
        while self._number < end:
            method, target, route, status = KINDS[self._number % len(KINDS)]
            body = f"body-{self._number}" if status < 400 or status == 418 else ""
            self._number += 1
            connection.send(request(body.encode(), target, method=method))
            if self.killing and used and self._number > self._half:
                self.killing = False
                self._kill(connection)
            try:
                answer = await connection.answer()
            except (EOFError, ConnectionError):
                self.reset.append(body)
                return
            used = True
            assert answer.status == status
            self.answers[route, OTHER if method == "BREW" else method, status] += 1
            if body:
                assert answer.body == body.encode()
                self.done.add(body)
            if answer.headers.get("connection") == "close":
                return

    def _kill(self, connection: Connection) -> None:
        """Kill the process that serves `connection`, which has got an answer on it before."""
        address = connection.writer.get_extra_info("sockname")
        for process in self._gateway.family():
            if any(one.raddr == address for one in process.net_connections()):
                process.kill()


class Counts:
    """What the gateway and the tasks have counted."""

    def __init__(self, gateway: Server, servers: Servers):
        self.bodies = [record["body"].decode() for record in records(servers.directory)]
        text = scrape(gateway)
        self.answers: Counter[Kind] = Counter()
        statuses = (200, 201, 400, 401, 404, 405, 418, 500, 502, 503, 504, OTHER)
        names = ("http_route", "http_request_method", "http_response_status_code")
        for kind in product(
            ("", "/count", "/signed", OTHER), ("POST", "PUT", "GET", OTHER), statuses
        ):
            self.answers[kind] = total(text, REQUESTS, **dict(zip(names, kind, strict=True)))
        self.all = total(text, REQUESTS)
        self.published = total(text, "messaging_client_sent_messages_total")
        self.waited = total(text, "gateway_result_wait_seconds_count")
        self.unverified = total(text, "gateway_verification_failures_total", scheme="hmac")
        self.errors = total(text, "gateway_request_errors_total")

    def lost(self, client: Client) -> Counter[Kind]:
        """Return how many were counted whose answer the client has not got."""
        assert self.all == sum(self.answers.values())
        difference = Counter(self.answers)
        difference.subtract(client.answers)
        return Counter({kind: number for kind, number in difference.items() if number})


@pytest.mark.usefixtures("unmeasured")
def test_metrics_are_what_clients_and_tasks_count(servers):
    gateway = servers.gateway("pika", CONFIG, f"--processes={PROCESSES}")
    # Given some thousand requests,
    client = Client(gateway)
    client.send(MANY)

    # then each is counted once, and so is each message and each wait.
    counts = Counts(gateway, servers)
    assert client.reset == []
    assert counts.lost(client) == {}
    assert counts.all == MANY
    assert len(counts.bodies) == len(set(counts.bodies)) == len(client.done)
    assert counts.published == confirmed(gateway) == counts.waited == len(counts.bodies)
    assert counts.unverified == client.answers["/signed", "POST", 401]
    refused = [n for (_, _, status), n in client.answers.items() if status in (401, 404, 405)]
    assert counts.errors == sum(refused)

    # When a process is killed under load,
    client.killing = True
    client.send(SOME)
    until(lambda: metric(gateway, "gateway_processes") == PROCESSES)

    # then only those that were reset can have been counted without an answer,
    counts = Counts(gateway, servers)
    lost = counts.lost(client)
    assert client.reset
    assert all(number > 0 for number in lost.values())
    assert sum(lost.values()) <= len(client.reset)
    assert counts.all == sum(client.answers.values()) + sum(lost.values())
    # and each task that was executed was counted, or is one of those.
    assert len(counts.bodies) == len(set(counts.bodies))
    assert client.done <= set(counts.bodies) <= client.done.union(client.reset)
    assert abs(counts.published - len(counts.bodies)) <= len(client.reset)
    assert metric(gateway, "gateway_process_restarts_total") == 1

    # When all are replaced under load, then nothing is lost, and nothing is counted twice.
    resets, before = len(client.reset), counts
    os.kill(gateway.pid, signal.SIGHUP)
    while "supervisor: reloaded" not in gateway.output():
        assert "not reloaded" not in gateway.output()
        client.send(SOME)
    client.send(SOME)
    until(lambda: metric(gateway, "gateway_processes") == PROCESSES)
    counts = Counts(gateway, servers)
    assert len(client.reset) == resets
    assert counts.lost(client) == lost
    assert len(counts.bodies) - len(before.bodies) == counts.published - before.published
    assert client.done <= set(counts.bodies)
    assert len(counts.bodies) == len(set(counts.bodies))

    # Nothing is under way any more.
    gauges = ("http_server_active_requests", "gateway_in_flight", "gateway_connections_open")
    until(lambda: not any(metric(gateway, name) for name in gauges))
