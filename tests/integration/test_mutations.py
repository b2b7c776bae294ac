"""Valid requests mutated at random, thousands of them: nothing breaks, hangs or is made up.

MUTATIONS is how many connections are opened, MUTATION_SEED what they are made from:

    MUTATIONS=200000 python -m pytest tests/integration/test_mutations.py --log-cli-level=INFO
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from tests.integration.deliveries import Servers
from tests.integration.mutations import MARKER, Call, calls, message, mutate
from tests.integration.tasks import RECORD, records
from tests.support.config import route
from tests.support.http_client import Connection, ask, request
from tests.support.requests import without_refusals
from tests.support.stack import Server

log = logging.getLogger(__name__)

MUTATIONS = int(os.environ.get("MUTATIONS", "3000"))
SEED = os.environ.get("MUTATION_SEED", "1")
AT_ONCE = 200
WORKER = {"concurrency": 1}
#: Seconds that the gateway has: for a header or a body, and between requests.
TIMEOUT = 0.5
#: Seconds after which a connection that still lives hangs: those twice, and the gateway's own
#: two for a refusal to be seen.
HANGS = 10.0
#: What may answer a request that nobody could have meant.
STATUSES = {100, 200, 400, 404, 405, 408, 413, 414, 415, 431}
MEMORY = 8 * 1024 * 1024  # bytes that it may grow by, once it is warm


class Fuzzer:
    """Opens connections and counts what it was answered, and what it may have asked for."""

    def __init__(self, port: int):
        self._port = port
        self.statuses: Counter[int] = Counter()
        self.asked: Counter[Call] = Counter()
        self.ended = 0

    async def run(self, numbers: Iterator[int]) -> None:
        async def work() -> None:
            for number in numbers:
                await self._connect(number)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def _connect(self, number: int) -> None:
        random = Random(f"{SEED} {number}")
        data = b"".join(
            message(random, f"{number}.{n}") for n in range(random.choice((1, 1, 2, 3)))
        )
        for _ in range(random.choice((0, 1, 1, 2, 4))):
            data = mutate(random, data)
        self.asked.update(calls(data))
        try:
            async with asyncio.timeout(HANGS), await Connection.open(self._port) as connection:
                await self._exchange(random, connection, data)
        except TimeoutError:
            pytest.fail(f"connection {number} hangs; it was sent {data!r}")
        self.ended += 1

    async def _exchange(self, random: Random, connection: Connection, data: bytes) -> None:
        """Send `data` at once or in two parts, and often the end; read all that is answered."""
        cut = random.randint(0, len(data)) if random.random() < 0.3 else len(data)
        # Who hangs up, or is hung up on, in mid-sentence gets a reset.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            connection.send(data[:cut])
            await connection.writer.drain()
            if data[cut:]:
                await asyncio.sleep(0.01)
                connection.send(data[cut:])
            if random.random() < 0.7:
                await asyncio.sleep(0.02)
                connection.writer.write_eof()
            while True:
                self.statuses[(await connection.answer()).status] += 1


@pytest.fixture
def gateway(servers: Servers) -> Server:
    timeouts = f"body_timeout = {TIMEOUT}\nidle_timeout = {TIMEOUT}\n"
    return servers.gateway("pika", timeouts + route("/", RECORD))


async def fuzz(gateway: Server, fuzzer: Fuzzer) -> int:
    """Send all mutations; return the bytes that the gateway has grown by after the first third."""
    warm = MUTATIONS // 3
    await fuzzer.run(iter(range(warm)))
    before = gateway.rss_bytes()
    await fuzzer.run(iter(range(warm, MUTATIONS)))
    return gateway.rss_bytes() - before


def test_mutated_requests(servers, gateway):
    assert asyncio.run(ask(gateway.port, request(b"first"))).body == b"first"
    told = without_refusals(gateway.output())
    fuzzer = Fuzzer(gateway.port)
    start = time.monotonic()

    grown = asyncio.run(fuzz(gateway, fuzzer))

    # Nothing broke, nothing was told but why requests were refused,
    rate = MUTATIONS / (time.monotonic() - start)
    log.info("%.0f connections/s, %s, grown by %d bytes", rate, fuzzer.statuses, grown)
    assert fuzzer.ended == MUTATIONS
    assert set(fuzzer.statuses) <= STATUSES
    assert without_refusals(gateway.output()) == told
    assert grown < MEMORY
    # it serves on,
    last = asyncio.run(ask(gateway.port, request(b"last")))
    assert (last.status, last.body) == (200, b"last")
    # and whatever was executed somebody else reads from the same bytes.
    executed = Counter(
        (call["headers"].get(MARKER, ""), call["body"]) for call in records(servers.directory)
    )
    assert executed.pop(("", b"first")) and executed.pop(("", b"last"))
    assert executed - fuzzer.asked == Counter()
    assert fuzzer.statuses[200] <= executed.total()
    assert executed.total() > MUTATIONS / 10
