"""The sender offers what it is told to, and blames nobody for a connection that was idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.client import Sender
from tests.simulation.records import RESET
from tests.support.stack import free_port

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def served(directory: Path, answers: list[bytes]) -> AsyncIterator[Sender]:
    """Give a sender to a server that writes these answers on each connection and closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        writer.close()

    port = free_port()
    async with asyncio.timeout(20), await asyncio.start_server(serve, "127.0.0.1", port):
        sender = Sender("sender", {"gateway": port}, directory / "sent.jsonl", rate=1000)
        yield sender
        await sender.close()


@pytest.mark.gen_test
async def test_a_connection_that_was_closed_while_idle_is_not_used_again(tmp_path, io_loop):
    async with served(tmp_path, [ANSWER]) as sender:
        assert (await sender.send("/")).good
        (idle,) = sender._idle
        while not idle.reader.at_eof():
            await asyncio.sleep(0.01)

        assert (await sender.send("/")).good


@pytest.mark.gen_test
async def test_a_connection_that_is_closed_on_a_request_is_a_reset(tmp_path, io_loop):
    async with served(tmp_path, [ANSWER, b""]) as sender:
        assert (await sender.send("/")).good
        assert (await sender.send("/")).status == RESET


@pytest.mark.gen_test
async def test_an_offer_ends_at_its_limit(tmp_path, io_loop):
    async with served(tmp_path, [ANSWER]) as sender:
        sender.limit = 5
        await sender.offer(asyncio.Event())

        assert len(sender.tries) == 5
        assert all(one.good for one in sender.tries)
