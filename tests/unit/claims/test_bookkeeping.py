"""What a process keeps of claims: leases, repeated writes, results that are listened for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.claims import store, unattended_tasks
from gateway.claims.claim import MINE, Claim
from gateway.claims.idempotency import share_used
from gateway.claims.result_waiter import ResultWaiter
from gateway.claims.store import Claims
from gateway.claims.unattended_tasks import UnattendedTasks
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.errors import StoreError
from gateway.stores.results import Results

A, B, C = ("a" * 32, "b" * 32, "c" * 32)  # task ids
READING = Route(path="/").reading
CONFIG = Config(result_backend="redis://127.0.0.1:1", max_in_flight=2)


class Redis:
    """Refuses the first `refused` commands."""

    error = ""

    def __init__(self, refused: int = 0):
        self.refused, self.commands = refused, 0

    def run(self, *_: Any) -> asyncio.Future[Any]:
        self.commands += 1
        reply = asyncio.get_running_loop().create_future()
        if self.commands <= self.refused:
            reply.set_exception(StoreError("READONLY"))
        else:
            reply.set_result(None)
        return reply


def claim(name: str) -> Claim:
    return Claim(b"key", name, 0.0, MINE, name, b"")


async def test_a_write_is_repeated_and_a_missed_renewal_is_told(monkeypatch, caplog):
    monkeypatch.setattr(store, "_RENEWAL", 0.0)
    claims = Claims(CONFIG)
    claims.redis = redis = Redis(refused=2)
    claims.hold(claim(A), asyncio.get_running_loop().time() + 60)
    assert claims.leased == 1
    claims.confirm(claim(A))
    while redis.commands < 3:
        await asyncio.sleep(0)
    assert claims.leased == 0 and caplog.text.count("could not be written to Redis: READONLY") == 2

    claims.redis = refuses = Redis(refused=1)
    claims.hold(claim(B), asyncio.get_running_loop().time() + 60)
    renewing = asyncio.create_task(claims._renew())
    while refuses.commands < 2:
        await asyncio.sleep(0)
    renewing.cancel()
    assert caplog.text.count("the lease of a claim could not be renewed: READONLY") == 1


def test_a_waiter_tells_what_is_wrong_with_either_connection():
    config = Config(result_backend="redis://127.0.0.1:1", state_url="redis://127.0.0.1:2")
    results, claims = Results(config), Claims(config)
    waiter = ResultWaiter(config, claims, results)
    claims.redis = Redis()
    for own, other in (("a", ""), ("", "b"), ("", "")):
        claims.redis.error, waiter._claims_subscription.error = own, other
        assert waiter.error == own + other


class Listened:
    """Results that never come, and who listens."""

    prefix = "r:"

    def __init__(self) -> None:
        self.subscription, self.channels = self, list[str]()

    def add(self, channel: str, _: Any) -> None:
        self.channels.append(channel)

    def remove(self, channel: str, _: Any) -> None:
        self.channels.remove(channel)

    async def ready(self, _: str) -> None: ...

    async def stored(self, _: Any) -> AsyncIterator[tuple[str, bytes]]:
        for each in ():
            yield each


class Settled:
    def settle(self, *_: Any) -> None: ...
    async def hand_over(self, _: Any) -> None: ...
    async def take_over(self, *_: Any) -> None: ...


@pytest.fixture
def listening() -> UnattendedTasks:
    return UnattendedTasks(CONFIG, Settled(), Listened())


async def test_no_more_results_are_listened_for_than_requests_may_wait(listening):
    for name in (A, B, C):
        listening.listen(claim(name), READING)
    assert [*listening.awaited] == [B, C]
    assert listening._results.channels == [f"r:{B}", f"r:{C}"]
    await listening.stop()


async def test_what_is_given_up_after_a_failure_is_that_task_and_no_later_one(
    listening, monkeypatch
):
    monkeypatch.setattr(unattended_tasks, "OTHER_RUN", 0.0)
    gone = b'{"status": "FAILURE", "result": {"exc_type": "E", "exc_message": []}}'
    listening.listen(claim(A), READING)
    listening._on_message(A, gone)
    listening._forget(A)
    listening.listen(claim(A), READING)
    await asyncio.sleep(0.001)
    assert [*listening.awaited] == [A]  # the later one
    listening._on_message(A, gone)
    while listening.awaited:
        await asyncio.sleep(0)
    await listening.stop()


@pytest.mark.parametrize(
    ("memory", "share"),
    [
        (b"# Memory\r\nused_memory:25\r\nmaxmemory:100\r\ntotal_system_memory:1000\r\n", 0.25),
        (b"used_memory:25\r\nmaxmemory:0\r\ntotal_system_memory:1000\r\n", 0.025),
        (b"used_memory:25\r\ntotal_system_memory:1000\r\n", 0.025),
        (b"used_memory:25\r\nmaxmemory:-1\r\n", 0.0),
        (b"used_memory:25\r\nmaxmemory:unlimited\r\ntotal_system_memory:\xb2\r\n", 0.0),
        (b"maxmemory:100\r\n", 0.0),
        ("used_memory:25\r\nmaxmemory:100", 0.25),
        ([], 0.0),
    ],
)
def test_the_share_of_memory_is_told_or_is_0(memory, share):
    assert share_used(memory) == share
