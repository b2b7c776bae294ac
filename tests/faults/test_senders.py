"""Senders offer what they are told to, some until it is taken; a watchdog notes delays."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

import pytest

from tests.faults.client import PersistentSender, Sender
from tests.faults.watchdog import PERIOD, Watchdog
from tests.simulation.records import REFUSED, RESET
from tests.support.stack import free_port

DELIVERIES = 60


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have senders try again soon."""
    monkeypatch.setattr(PersistentSender, "PAUSE", (0.05, 0.1))
    monkeypatch.setattr(PersistentSender, "WITHIN", 0.1)


class Process:
    """This process, in a gateway's place."""

    pid = os.getpid()


WATCHDOG = Watchdog({"gateway-1": Process(), "gateway-2": Process()})


def answer(status: int, kind: str, body: dict | str) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body)
    head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n\r\n"
    return (head + text).encode()


def problem(status: int, name: str) -> bytes:
    named = {"type": f"urn:celery-gateway:{name}", "title": "a", "detail": "the detail"}
    ids = {"delivery_id": "the delivery", "task_id": "the task"}
    body = {**named, **ids, "status": status}
    return answer(status, "application/problem+json", body)


@asynccontextmanager
async def served(give: Callable[[str, str], bytes], requests: int = 1) -> AsyncIterator[int]:
    """Serve `give(delivery, try)` on a port, so many requests on each connection.

    An empty answer is none.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(requests):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(headers["Content-Length"]))
            assert body.decode() == headers["X-Delivery"]
            writer.write(give(headers["X-Delivery"], headers["X-Try"]))
        writer.close()

    port = free_port()
    async with asyncio.timeout(30), await asyncio.start_server(serve, "127.0.0.1", port):
        yield port


OK = answer(200, "text/plain", "ok")


@asynccontextmanager
async def sending(log: Path, *answers: bytes) -> AsyncIterator[Sender]:
    """Give a sender to a server that closes each connection after these answers."""
    given = cycle(answers)
    async with served(lambda *_: next(given), len(answers)) as port:
        sender = Sender("sender", {"gateway": port}, log, rate=1000)
        yield sender
        await sender.close()


@pytest.mark.gen_test
async def test_a_connection_that_was_closed_while_idle_is_not_used_again(tmp_path, io_loop):
    async with sending(tmp_path / "sent.jsonl", OK) as sender:
        assert (await sender.send("/")).good
        (idle,) = sender._idle
        while not idle.reader.at_eof():
            await asyncio.sleep(0.01)

        assert (await sender.send("/")).good


@pytest.mark.gen_test
async def test_a_connection_that_is_closed_on_a_request_is_a_reset(tmp_path, io_loop):
    async with sending(tmp_path / "sent.jsonl", OK, b"") as sender:
        assert (await sender.send("/")).good
        assert (await sender.send("/")).status == RESET


@pytest.mark.gen_test
async def test_an_offer_ends_at_its_limit(tmp_path, io_loop):
    async with sending(tmp_path / "sent.jsonl", OK) as sender:
        sender.limit = 5
        await sender.offer(asyncio.Event())

        assert len(sender.tries) == 5
        assert all(one.good for one in sender.tries)


def persistent(seed: int, log: Path, *ports: int) -> PersistentSender:
    named = {f"gateway-{n}": port for n, port in enumerate(ports, 1)}
    return PersistentSender(seed, named, log, rate=200, watchdog=WATCHDOG)


async def offer(senders: PersistentSender) -> None:
    """Have a number of senders begin, and wait until all have ended."""
    stopping = asyncio.Event()
    offering = asyncio.create_task(senders.offer(stopping))
    while senders.offered < DELIVERIES:
        await asyncio.sleep(0.01)
    stopping.set()
    await offering


@pytest.mark.gen_test(timeout=30)
async def test_each_tries_until_a_2xx_and_some_once_more(tmp_path: Path, hasty, io_loop):
    seen = defaultdict(list)

    def give(delivery: str, name: str) -> bytes:
        seen[delivery].append(name)
        given = {1: problem(503, "full"), 2: b""}
        return given.get(len(seen[delivery]), answer(200, "text/plain", f"{delivery} nonce"))

    async with served(give) as port:
        senders = persistent(1, log := tmp_path / "sent.jsonl", port)
        await offer(senders)

    numbers = {len(names) for names in seen.values()}
    assert numbers == {3, 4}
    for delivery, names in seen.items():
        assert names == [f"{delivery}.{n}" for n in range(1, len(names) + 1)]
    first, second, third = (next(t for t in senders.tries if t.number == n) for n in (1, 2, 3))
    assert (first.status, first.type, first.detail) == (503, "full", "the detail")
    assert first.task == "the task"
    assert (second.status, third.status) == (RESET, 200)
    assert third.body == f"{third.delivery} nonce"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == len(senders.tries)


@pytest.mark.gen_test(timeout=30)
async def test_what_a_sender_does_depends_on_the_seed_only(tmp_path: Path, hasty, io_loop):
    drawn = []
    for _ in range(2):
        async with served(lambda *_: answer(200, "text/plain", "x")) as port:
            senders = persistent(7, tmp_path / "sent.jsonl", port, port)
            await offer(senders)
        drawn.append(sorted((t.id, t.route, t.gateway) for t in senders.tries))

    count = min(map(len, drawn))
    assert {t[1] for t in drawn[0]} == {"/wait", "/accept", "/wait-then-accept"}
    assert {t[2] for t in drawn[0]} == {"gateway-1", "gateway-2"}
    # More deliveries may have begun in the one run than in the other.
    known = {t for t in drawn[0] if int(t[0][1:].partition(".")[0]) < DELIVERIES}
    assert known <= set(drawn[1]) and count >= DELIVERIES


@pytest.mark.gen_test(timeout=30)
async def test_senders_give_up_when_told(tmp_path: Path, io_loop):
    senders = persistent(1, tmp_path / "sent.jsonl", free_port())
    senders.until = 0
    await offer(senders)

    assert {(one.number, one.status) for one in senders.tries} == {(1, REFUSED)}


@pytest.mark.gen_test
async def test_the_watchdog_notes_how_late_it_is_itself(io_loop):
    watchdog = Watchdog({"gateway-1": Process()})
    watching = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0)
    before = time.monotonic()
    time.sleep(PERIOD + 0.4)
    # Also while it has not been run since:
    during = watchdog.delay("gateway-1", before, time.monotonic())
    await asyncio.sleep(PERIOD / 2)

    assert during >= 0.4
    assert watchdog.delay("gateway-1", before, time.monotonic()) >= 0.4
    watching.cancel()


def test_the_watchdog_notes_how_long_a_server_was_not_run():
    # Given two processes that have one core to share,
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}]); print(flush=True)\nwhile True: pass"
    busy = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for process in busy:
            process.stdout.readline()
        watchdog = Watchdog({"gateway-1": busy[0]})
        watchdog.look("gateway-1")
        before = time.monotonic()
        time.sleep(1.5)
        after = time.monotonic()
        watchdog.look("gateway-1")

        # then each waits for about half of the time, and nobody waits afterwards.
        assert watchdog.delay("gateway-1", before, after) > 0.4
        assert watchdog.delay("gateway-1", after + 1, after + 2) == 0
    finally:
        for process in busy:
            process.kill()
            process.communicate()
