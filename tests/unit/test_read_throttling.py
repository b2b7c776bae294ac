"""Reads rest while much is under way, all of them until the same moment."""

from __future__ import annotations

import asyncio

from gateway import read_throttling
from gateway.read_throttling import FEW, ReadThrottling


class Transport:
    """Notes down whether it is read."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.resumed = asyncio.Event()

    def pause_reading(self) -> None:
        self.changes.append("paused")

    def resume_reading(self) -> None:
        self.changes.append("resumed")
        self.resumed.set()


def busy(in_flight: int = FEW) -> ReadThrottling:
    """Return one that has just been told of a read."""
    throttling = ReadThrottling(lambda: in_flight)
    throttling.rest(Transport())
    return throttling


async def test_few_requests_are_not_delayed():
    transport = Transport()
    busy(FEW - 1).rest(transport)
    assert transport.changes == []


async def test_reads_that_are_far_from_each_other_gather_nothing(monkeypatch):
    monkeypatch.setattr(read_throttling, "SPARSE", -1.0)
    transport = Transport()
    busy().rest(transport)
    assert transport.changes == []


async def test_all_rest_until_the_same_moment_and_again(monkeypatch):
    monkeypatch.setattr(read_throttling, "SPARSE", 60.0)  # however slow this machine is
    throttling, first, second = busy(), Transport(), Transport()
    for changes in (["paused"], ["paused", "resumed", "paused"]):
        throttling.rest(first)
        throttling.rest(second)
        assert first.changes == second.changes == changes
        await first.resumed.wait()
        assert second.resumed.is_set()
        first.resumed.clear()
        second.resumed.clear()
