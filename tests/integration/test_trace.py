"""The calls of a request are those that ARCHITECTURE.md lists."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import gateway
from tests.docs.test_documents import text
from tests.support.http_client import request
from tests.support.in_memory import connected

PACKAGE = Path(gateway.__file__).parent


def documented() -> list[list[tuple[str, str]]]:
    """Return the calls of each way: file and name."""
    ways = re.findall(
        r"(?:^    \S+\.py +\S+\n)+",
        text("ARCHITECTURE.md").split("### Call by call\n")[1].split("\n## ")[0],
        re.MULTILINE,
    )
    return [[tuple(line.split()) for line in way.splitlines()] for way in ways]


async def test_a_request_goes_the_way_that_is_written_down(rabbitmq, worker):
    calls: list[tuple[str, str]] = []

    def called(frame: FrameType, event: str, _argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            calls.append((str(path.relative_to(PACKAGE)), frame.f_code.co_qualname))

    settings = {"broker_url": rabbitmq.url, "result_backend": ""}
    settings["routes"] = [{"path": "/", "task": "appserver.tasks.echo"}]
    async with connected("pika", settings) as one, await one.open() as connection:
        sys.setprofile(called)
        try:
            answer = await connection.ask(request(b"hello"))
        finally:
            sys.setprofile(None)
        assert (answer.status, answer.body) == (200, b"hello")

    ways = documented()
    assert [len(way) for way in ways] == [17, 5, 7]
    for way in ways:
        rest = iter(calls)
        missing = [call for call in way if call not in rest]
        assert missing == []
