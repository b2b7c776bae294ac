"""Clients beside wrk, which know for each single request what its answer has to be."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterator
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from loadtest.connection import Connection, Tally
from loadtest.envelope import PLAIN, Envelope

_RECEIVE = 65_536  # bytes


def check(
    url: str, requests: int, at_once: int, timeout: float, envelope: Envelope = PLAIN
) -> dict[str, int]:
    """Send `requests` POSTs over `at_once` connections and compare each answer with its request.

    The task has to answer with the body it was given. Returns the number of `requests`,
    `wrong_answers`, those `not_2xx`, and those `missing`: not answered when their connection
    ended, or after `timeout` seconds for all.
    """
    tally = asyncio.run(_check(url, requests, at_once, timeout, envelope))
    return {
        "requests": requests,
        "wrong_answers": tally.wrong,
        "not_2xx": tally.errors["status"],
        "missing": requests - tally.answered,
    }


async def _check(
    url: str, requests: int, at_once: int, timeout: float, envelope: Envelope
) -> Tally:
    # Characters of every width in UTF-8, so that a change of encoding would show.
    texts = (f'{{"n": {n}, "ä€😀": "{secrets.token_hex(100)}"}}' for n in range(requests))
    bodies = map(str.encode, texts)
    tally = Tally(envelope)
    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as connections:
            for _ in range(at_once):
                connections.create_task(_converse(url, bodies, tally, envelope))
    except TimeoutError:
        pass  # what was not found is missing
    return tally


async def _converse(url: str, bodies: Iterator[bytes], tally: Tally, envelope: Envelope) -> None:
    """Send one body after the other; open another connection where one ends."""
    connection: Connection | None = None
    try:
        for body in bodies:
            if connection is None or connection.closed:
                try:
                    connection = await Connection.open(url)
                except OSError:
                    continue
            since = monotonic()
            answer = await connection.ask(envelope.wrap(body), envelope.head(body))
            tally.count(since, body, *answer)
    finally:
        if connection is not None:
            connection.close()


def one_by_one(url: str, requests: int, timeout: float) -> dict[str, Any]:
    """Send `requests` POSTs over one connection, each after the other's answer.

    Returns what `wrk.run` does. There is no loop in between: what it costs to send and to
    receive is what `amqp.Requester` pays for its round trips, too. An answer that does not come
    within `timeout` seconds ends the run.
    """
    target = urlsplit(url)
    tally, begin = Tally(), monotonic()
    padding = "x" * 200
    with socket.create_connection((target.hostname, target.port), timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {target.path or '/'} HTTP/1.1\r\nHost: {target.netloc}\r\n"
        for n in range(requests):
            body = f'{{"padding":"{padding}","n":{n:010}}}'.encode()
            message = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
            tally.sent += 1
            since = monotonic()
            try:
                connection.sendall(message)
                status, answer = _read_answer(connection)
            except TimeoutError:
                break
            tally.count(since, body, status, answer)
            if not status:
                break
    return tally.figures(monotonic() - begin)


def _read_answer(connection: socket.socket) -> tuple[int, bytes]:
    received = b""
    while True:
        some = connection.recv(_RECEIVE)
        if not some:
            return 0, b""
        received += some
        head, found, answer = received.partition(b"\r\n\r\n")
        if found:
            length = int(head.lower().partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0] or 0)
            if len(answer) >= length:
                return int(head[9:12]), answer[:length]
