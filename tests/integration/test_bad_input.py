"""Bad input, directly and through nginx: answered, told in no log, never a task not asked for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.integration import bad_input
from tests.integration.bad_input import NGINX
from tests.integration.deliveries import Servers
from tests.integration.tasks import RECORD, records
from tests.support.config import route
from tests.support.http_client import Answer, Connection, request
from tests.support.requests import without_refusals
from tests.support.stack import Server, Stack
from tests.support.waiting import until

BODY_TIMEOUT = 1.0  # seconds, the gateway's and nginx's
TIMEOUT = 10.0  # seconds for any answer
CONFIG = f"body_timeout = {BODY_TIMEOUT}\n" + route("/", RECORD)
WORKER = {"concurrency": 1}


async def answers(server: Server, data: bytes, most: int = 1, end: bool = False) -> list[Answer]:
    """Send `data`, and the connection's `end`; read `most` answers, fewer where they end."""
    found: list[Answer] = []
    async with asyncio.timeout(TIMEOUT), await Connection.open(server.port) as connection:
        connection.send(data)
        if end:
            connection.writer.write_eof()
        # What nginx does not read at all ends in a reset.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while len(found) < most:
                found.append(await connection.answer())
    return found


@pytest.fixture(scope="module")
def gateway(servers: Servers) -> Server:
    gateway = servers.gateway("pika", CONFIG)
    until(lambda: "serving with the strategy" in gateway.output())  # its last line
    return gateway


@pytest.fixture(scope="module")
def nginx(stack: Stack, start, gateway: Server) -> Server:
    return start(lambda: stack.nginx([gateway.port], client_body_timeout=f"{BODY_TIMEOUT:g}s"))


@pytest.fixture(params=["gateway", "nginx"])
def entrance(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)


@pytest.fixture
def executed(servers: Servers, gateway: Server) -> Iterator[Callable[[], list[bytes]]]:
    """Return what the test has had executed; the log may only tell why requests were refused."""
    log, before = without_refusals(gateway.output()), len(records(servers.directory))

    def executed() -> list[bytes]:
        # The worker takes one after the other: what was sent before this one has been executed.
        (answer,) = asyncio.run(answers(gateway, request(b"the last one")))
        assert (answer.status, answer.body) == (200, b"the last one")
        *bodies, last = [record["body"] for record in records(servers.directory)[before:]]
        assert last == b"the last one"
        return bodies

    yield executed
    assert without_refusals(gateway.output()) == log


# What is refused directly is refused in test_http.py, where tasks are in memory.
@pytest.mark.parametrize("case", [bad_input.CONNECT, *bad_input.TAKEN], ids=str)
def test_directly(gateway, executed, case):
    found = asyncio.run(answers(gateway, case.data, max(1, len(case.bodies))))

    assert found[0].status in case.statuses
    if found[0].status >= 400:
        assert found[0].problem["delivery_id"]
    assert [answer.body for answer in found if answer.status == 200] == list(case.bodies)
    assert executed() == list(case.bodies)


@pytest.mark.parametrize("case", bad_input.CASES, ids=str)
def test_through_nginx(nginx, executed, case):
    found = asyncio.run(answers(nginx, case.data, max(1, len(case.bodies))))

    statuses = {answer.status for answer in found}
    if case.put_right and 200 in statuses:
        assert executed() == list(case.put_right)
    else:
        assert statuses <= ({200} if case.bodies else NGINX.union(case.statuses))
        assert executed() == list(case.bodies)


@pytest.mark.parametrize(
    "data", [request(b"123").replace(b": 3", b": 4"), bad_input.CHUNKED + b"7\r\n123"]
)
def test_body_that_ends_short_is_no_request(executed, entrance, data):
    asyncio.run(answers(entrance, data, end=True))
    assert executed() == []


@pytest.mark.parametrize("data", [request(b"123").replace(b": 3", b": 4"), bad_input.CHUNKED])
def test_body_that_stops_is_408(executed, entrance, nginx, data):
    found = asyncio.run(answers(entrance, data))
    # nginx closes without a word.
    assert [answer.status for answer in found] == ([] if entrance is nginx else [408])
    assert executed() == []


def test_what_a_sender_says_of_itself_is_not_believed(servers, nginx, executed):
    lines = [
        *("X-Real-IP: 192.0.2.1", "X-Forwarded-For: 192.0.2.1, 192.0.2.2"),
        *("Forwarded: for=192.0.2.1", "X-Forwarded-Proto: https", "Proxy: http://192.0.2.1"),
    ]
    asyncio.run(answers(nginx, request(b"x", "/", *lines)))
    record = records(servers.directory)[-1]
    assert record["remote"] == "127.0.0.1"
    assert "192.0.2" not in str(record)
    assert record["headers"]["x-forwarded-proto"] == "http"


def test_every_header_that_may_be_comes_through_nginx(servers, nginx, executed):
    names = ["x_underscore", "x.dot", "x!#$%&'*+^`|~"]
    lines = [f"{name}: 1" for name in names]
    (answer,) = asyncio.run(answers(nginx, request(b"x", "/", *lines)))
    assert answer.status == 200
    assert {records(servers.directory)[-1]["headers"].get(name) for name in names} == {"1"}
