"""A client beside wrk, which knows for each single request what its answer has to be."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

#: A connection that is refused or ends, and what is no HTTP.
_BROKEN = (OSError, EOFError, ValueError, LookupError, asyncio.LimitOverrunError)

_length = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE).search


def check(url: str, requests: int, at_once: int, timeout: float) -> dict[str, int]:
    """Send `requests` POSTs over `at_once` connections and compare each answer with its request.

    The task has to answer with the body it was given. Returns the number of `requests`,
    `wrong_answers`, those `not_2xx`, and those `missing`: not answered when their connection
    ended, or after `timeout` seconds for all.
    """
    return asyncio.run(_check(url, requests, at_once, timeout))


async def _check(url: str, requests: int, at_once: int, timeout: float) -> dict[str, int]:
    # Characters of every width in UTF-8, so that a change of encoding would show.
    bodies = iter([f'{{"n": {n}, "ä€😀": "{secrets.token_hex(100)}"}}' for n in range(requests)])
    found: Counter[str] = Counter()
    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as connections:
            for _ in range(at_once):
                connections.create_task(_converse(url, bodies, found))
    except TimeoutError:
        pass  # what was not found is missing
    return {
        "requests": requests,
        "wrong_answers": found["wrong"],
        "not_2xx": found["not 2xx"],
        "missing": requests - found.total(),
    }


async def _converse(url: str, bodies: Iterator[str], found: Counter[str]) -> None:
    """Send one body after the other; open another connection where one ends."""
    target = urlsplit(url)
    for first in bodies:
        body: str | None = first
        try:
            reader, writer = await asyncio.open_connection(target.hostname, target.port)
        except OSError:
            continue
        try:
            while body is not None:
                status, answer = await _exchange(reader, writer, url, body.encode())
                good = 200 <= status <= 299
                right = answer == body.encode()
                found["right" if good and right else "wrong" if good else "not 2xx"] += 1
                body = next(bodies, None)
        except _BROKEN:
            continue
        finally:
            writer.close()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str, body: bytes
) -> tuple[int, bytes]:
    target = urlsplit(url)
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    head = f"POST {path} HTTP/1.1\r\nHost: {target.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = _length(head)
    return int(head.split(None, 2)[1]), await reader.readexactly(int(length[1]) if length else 0)
