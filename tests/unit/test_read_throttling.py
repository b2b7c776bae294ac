"""Reads rest while much is under way, all of them until the same moment."""

from __future__ import annotations

import asyncio

from gateway import read_throttling
from gateway.metrics import Metrics
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


def busy(metrics: Metrics) -> ReadThrottling:
    """Return one that has just been told of a read."""
    throttling = ReadThrottling(metrics)
    throttling.rest(Transport())
    return throttling


async def test_few_requests_are_not_delayed(metrics):
    metrics.add("gateway_in_flight", FEW - 1)
    transport = Transport()
    busy(metrics).rest(transport)
    assert transport.changes == []


async def test_reads_that_are_far_from_each_other_gather_nothing(metrics, monkeypatch):
    monkeypatch.setattr(read_throttling, "SPARSE", -1.0)
    metrics.add("gateway_in_flight", FEW)
    transport = Transport()
    busy(metrics).rest(transport)
    assert transport.changes == []


async def test_all_rest_until_the_same_moment_and_again(metrics, monkeypatch):
    monkeypatch.setattr(read_throttling, "SPARSE", 60.0)  # however slow this machine is
    metrics.add("gateway_in_flight", FEW)
    throttling, first, second = busy(metrics), Transport(), Transport()
    for changes in (["paused"], ["paused", "resumed", "paused"]):
        throttling.rest(first)
        throttling.rest(second)
        assert first.changes == second.changes == changes
        await first.resumed.wait()
        assert second.resumed.is_set()
        first.resumed.clear()
        second.resumed.clear()
