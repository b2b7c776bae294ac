"""The admin port takes no more than it needs, and answers probes whatever others do there."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gateway import admin
from tests.support.http_client import Connection, ask, connections, request
from tests.support.requests import fetch
from tests.support.stack import Server, Stack, free_port

FILES = 64  # descriptors of a process


@pytest.fixture(scope="module")
def gateway(stack: Stack) -> Server:
    nobody = f"127.0.0.1:{free_port()}"
    urls = ("--broker", f"amqp://{nobody}//", "--result-backend", f"redis://{nobody}/0")
    few = ("prlimit", f"--nofile={FILES}")
    gateway = stack.gateway(*urls, ready="/healthz", wrapper=few)
    return gateway


async def end_of(connection: Connection) -> None:
    """Wait until the other side has closed."""
    with contextlib.suppress(ConnectionError):
        await connection.reader.read()


@pytest.mark.parametrize(
    "data",
    [
        request(b"", "/metrics").replace(b"Length: 0", b"Length: 100000000"),
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
        request(b"", "/healthz", f"X: {'x' * 20_000}", method="GET"),
    ],
    ids=["body", "chunks", "header"],
)
async def test_bodies_and_large_headers_are_not_read(gateway, data):
    async with await Connection.open(gateway.admin_port) as connection:
        connection.send(data)
        # Before any timeout.
        await asyncio.wait_for(end_of(connection), admin.ARRIVAL / 2)
    assert (await asyncio.to_thread(fetch, f"{gateway.admin_url}/healthz")).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_what_only_tells_says_how_it_is_asked(gateway, path):
    refused = asyncio.run(ask(gateway.admin_port, request(b"", path, host="localhost")))
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics"])
def test_a_probe_may_ask_for_the_header_only(gateway, path):
    async def probe() -> int:
        async with await Connection.open(gateway.admin_port) as connection:
            connection.send(request(b"", path, method="HEAD", host="localhost"))
            answer = await connection.answer(head=True)
            assert await connection.at_end()
            return answer.status

    assert asyncio.run(probe()) == fetch(f"{gateway.admin_url}{path}").status


async def test_connections_end_with_their_answer_or_when_none_is_asked_for(gateway):
    async with connections(gateway.admin_port, 2) as (used, unused):
        assert (await used.ask(request(b"", "/healthz", method="GET"))).status == 200
        await asyncio.wait_for(end_of(used), admin.ARRIVAL / 2)
        unused.send(b"GET /healthz HTTP/1.1\r\n")
        await asyncio.wait_for(end_of(unused), admin.ARRIVAL + 1)


async def test_probes_are_answered_while_others_keep_their_connections(gateway):
    before = gateway.descriptors()

    async with connections(gateway.admin_port, 3 * FILES):
        answer = await asyncio.to_thread(fetch, f"{gateway.admin_url}/healthz")
        assert answer.status == 200
        assert gateway.descriptors() - before <= FILES // 4
    assert "Too many open files" not in gateway.output()


@pytest.mark.parametrize("path", ["/", "/page/style.css", "/readyz", "/metrics"])
@pytest.mark.parametrize(
    ("host", "refused"),
    [("evil.example", True), ("127.0.0.1.evil.example:80", True), ("[::1]:1", False)],
)
def test_another_web_page_reads_nothing_by_a_name_that_leads_here(gateway, path, host, refused):
    answer = asyncio.run(ask(gateway.admin_port, request(b"", path, method="GET", host=host)))
    assert (answer.status == 403) == refused
