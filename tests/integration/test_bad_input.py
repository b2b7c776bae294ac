"""Bad input, directly and through nginx: answered, told in no log, never a task not asked for."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.integration import bad_input
from tests.integration.bad_input import NGINX
from tests.integration.recorder import RECORD, records
from tests.support.http_client import Answer, Connection, request
from tests.support.requests import without_refusals
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
BODY_TIMEOUT = 1.0  # seconds, the gateway's and nginx's
TIMEOUT = 10.0  # seconds for any answer
CASES = [
    *bad_input.FRAMING, *bad_input.HEADERS, *bad_input.ENCODINGS, *bad_input.BODIES
]  # fmt: skip


class Servers:
    """A gateway, nginx in front of it, and a worker that notes each execution."""

    def __init__(self, stack: Stack, rabbitmq: RabbitMQ):
        self._records = stack.directory / "bad-input.jsonl"
        config = stack.directory / "bad-input.toml"
        config.write_text(f'[[routes]]\npath = "/"\ntask = "{RECORD}"\n')
        environment = {
            "GATEWAY_BROKER_URL": rabbitmq.url,
            "GATEWAY_RESULT_BACKEND": "",
            "GATEWAY_BODY_TIMEOUT": str(BODY_TIMEOUT),
            "RECORDS": str(self._records),
        }
        self.worker = stack.worker(
            rabbitmq.url, app="tests.integration.recorder", env=environment, cwd=ROOT
        )
        self.gateway = stack.gateway("--strategy=pika", "--config", str(config), env=environment)
        until(lambda: "serving with the strategy" in self.gateway.output())  # its last line
        self.nginx = stack.nginx([port(self.gateway)], client_body_timeout=f"{BODY_TIMEOUT:g}s")
        self._requests = count()

    def records(self) -> list[dict[str, Any]]:
        return records(self._records)

    def executed_since(self, before: int) -> list[bytes]:
        """Serve one more request; return what was executed since there were `before` records.

        The worker takes one after the other: what was sent earlier has been executed then.
        """
        body = b"next request %d" % next(self._requests)
        (answer,) = asyncio.run(answers(self.gateway, request(body)))
        assert (answer.status, answer.body) == (200, body)
        *bodies, last = [record["body"] for record in self.records()[before:]]
        assert last == body
        return bodies

    def stop(self) -> None:
        for server in (self.nginx, self.gateway, self.worker):
            server.stop()


def port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


async def answers(server: Server, data: bytes, most: int = 1, end: bool = False) -> list[Answer]:
    """Send `data`, and the connection's `end`; read `most` answers, fewer where they end."""
    found: list[Answer] = []
    async with asyncio.timeout(TIMEOUT), await Connection.open(port(server)) as connection:
        connection.send(data)
        if end:
            connection.writer.write_eof()
        # What nginx does not read at all ends in a reset.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while len(found) < most:
                found.append(await connection.answer())
    return found


@pytest.fixture(scope="module")
def servers(stack: Stack, rabbitmq: RabbitMQ, start) -> Iterator[Servers]:
    servers = start(lambda: Servers(stack, rabbitmq))
    yield servers
    servers.stop()


@pytest.fixture
def before(servers: Servers) -> Iterator[int]:
    """The number of executions before the test, of which the log only tells why it is refused."""
    log = without_refusals(servers.gateway.output())
    yield len(servers.records())
    assert without_refusals(servers.gateway.output()) == log


@pytest.mark.parametrize("case", CASES, ids=str)
def test_directly(servers, before, case):
    found = asyncio.run(answers(servers.gateway, case.data, max(1, len(case.bodies))))

    assert found[0].status in case.statuses
    if found[0].status >= 400:
        assert found[0].problem["delivery_id"]
    assert [answer.body for answer in found if answer.status == 200] == list(case.bodies)
    assert servers.executed_since(before) == list(case.bodies)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_through_nginx(servers, before, case):
    found = asyncio.run(answers(servers.nginx, case.data, max(1, len(case.bodies))))

    statuses = {answer.status for answer in found}
    if case.put_right and 200 in statuses:
        assert servers.executed_since(before) == list(case.put_right)
    else:
        assert statuses <= ({200} if case.bodies else NGINX.union(case.statuses))
        assert servers.executed_since(before) == list(case.bodies)


@pytest.mark.parametrize("entrance", ["gateway", "nginx"])
@pytest.mark.parametrize(
    "data", [request(b"123").replace(b": 3", b": 4"), bad_input.CHUNKED + b"7\r\n123"]
)
def test_body_that_ends_short_is_no_request(servers, before, entrance, data):
    asyncio.run(answers(getattr(servers, entrance), data, end=True))
    assert servers.executed_since(before) == []


@pytest.mark.parametrize("entrance", ["gateway", "nginx"])
@pytest.mark.parametrize("data", [request(b"123").replace(b": 3", b": 4"), bad_input.CHUNKED])
def test_body_that_stops_is_408(servers, before, entrance, data):
    found = asyncio.run(answers(getattr(servers, entrance), data))
    # nginx closes without a word.
    assert [answer.status for answer in found] == ([408] if entrance == "gateway" else [])
    assert servers.executed_since(before) == []


def test_what_a_sender_says_of_itself_is_not_believed(servers, before):
    lines = [
        *("X-Real-IP: 192.0.2.1", "X-Forwarded-For: 192.0.2.1, 192.0.2.2"),
        *("Forwarded: for=192.0.2.1", "X-Forwarded-Proto: https", "Proxy: http://192.0.2.1"),
    ]
    asyncio.run(answers(servers.nginx, request(b"x", "/", *lines)))
    record = servers.records()[-1]
    assert record["remote"] == "127.0.0.1"
    assert "192.0.2" not in str(record)
    assert record["headers"]["x-forwarded-proto"] == "http"


def test_every_header_that_may_be_comes_through_nginx(servers, before):
    names = ["x_underscore", "x.dot", "x!#$%&'*+^`|~"]
    lines = [f"{name}: 1" for name in names]
    (answer,) = asyncio.run(answers(servers.nginx, request(b"x", "/", *lines)))
    assert answer.status == 200
    assert {servers.records()[-1]["headers"].get(name) for name in names} == {"1"}


def test_compressed_body_comes_to_the_task_as_it_was(servers, before):
    body = gzip.compress(b"hello")
    (answer,) = asyncio.run(
        answers(servers.nginx, request(body, "/", "Content-Encoding: gzip", "X-Other: 1"))
    )
    assert answer.body == b"hello"
    headers = servers.records()[-1]["headers"]
    assert headers["x-other"] == "1"
    assert not {"content-encoding", "content-length"} & headers.keys()
