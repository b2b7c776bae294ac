"""What a gateway remembers outlasts its processes, a reload, and a restart."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from gateway.stack.server import poll
from tests.support.config import route, source
from tests.support.http_client import Connection, request
from tests.support.requests import fetch
from tests.support.stack import Server

CONFIG = route("/signed", None, source="us") + source(
    "us", "standard", secrets=["whsec_ZmF1bHRzZmF1bHRzZmF1bHRz"]
)


@pytest.fixture
def gateway(start_gateway, tmp_path: Path) -> Server:
    return start_gateway(f'history = "{tmp_path}/history"\n{CONFIG}', "--processes", "2")


def past(gateway: Server, **query: str) -> dict:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return json.loads(fetch(f"{gateway.admin_url}/api/history?{asked}").body)


def received(gateway: Server, name: str) -> int:
    return sum(number or 0 for number in past(gateway, range=name, route="/signed")["received"])


def page(gateway: Server, range_: str = "6h") -> str:
    return fetch(f"{gateway.admin_url}/?range={range_}").body.decode()


def refuse(gateway: Server, number: int = 10) -> None:
    async def send() -> None:
        async with await Connection.open(gateway.port) as connection:
            for _ in range(number):
                assert (await connection.ask(request(b"", "/signed"))).status == 401

    asyncio.run(send())


def pids(gateway: Server) -> set[int]:
    ready = json.loads(fetch(f"{gateway.admin_url}/readyz").body)
    return {child["pid"] for child in ready["children"]}


def test_it_outlasts_processes_a_reload_and_a_restart(gateway):
    def counted(number: int) -> bool:
        return poll(lambda: received(gateway, "10m") == number, 20)

    assert "No route has had a request" in page(gateway)
    refuse(gateway)
    before = pids(gateway)
    refuse(gateway)
    for pid in before:  # with what was counted since the last second
        os.kill(pid, signal.SIGKILL)
    assert counted(20)
    assert poll(lambda: len(pids(gateway) - before) == 2, 20)
    refuse(gateway)
    before = pids(gateway)
    gateway.signal(signal.SIGHUP)
    assert poll(lambda: len(pids(gateway)) == 2 and not pids(gateway) & before, 30)
    refuse(gateway)
    assert counted(40)
    gateway.restart()
    refuse(gateway)
    assert counted(50)
    for name in ("6h", "14d"):
        assert received(gateway, name) == 50
        assert "50 of 50 in the last 10 minutes" in page(gateway, name)
    told = past(gateway, range="6h")
    assert told["routes"] == ["/signed"] and told["step"] == 10
    assert sum(number or 0 for number in told["statuses"]["4xx"]) == 50
    assert [each for each in told["p99"] if each is not None]
    wrong = fetch(f"{gateway.admin_url}/api/history?route=/none")
    assert wrong.status == 404 and "/signed" in json.loads(wrong.body)["detail"]
    assert fetch(f"{gateway.admin_url}/api/history?range=1y").status == 400
