"""What servers use is sampled while they are loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.stack import StackError
from loadtest.over_time import OverTime, plots
from tests.support.rows import row
from tests.support.waiting import until


def test_samples_are_of_cpu_memory_and_connections():
    used = iter(range(1_000))
    server: Any = SimpleNamespace(cpu_seconds=lambda: next(used), rss_bytes=lambda: 3 * 2**20)
    with OverTime({"gateway": server}, 0.01, lambda: {"broker": 4}) as watch:
        until(lambda: len(watch.series["seconds"]) >= 2)
    series = watch.series
    assert series["seconds"] == sorted(series["seconds"])
    length = len(series["seconds"])
    assert series["rss_mb"] == {"gateway": [3.0] * length}
    assert series["connections"] == {"broker": [4] * length}
    # A second of CPU in a hundredth of one.
    assert len(series["cpu_percent"]["gateway"]) == length
    assert all(percent > 100 for percent in series["cpu_percent"]["gateway"])

    rows = [row("a", 1, over_time=series), row("b", 1)]
    (amqp,) = (plot for plot in plots(rows, "64 connections") if plot.name == "amqp")
    assert list(amqp.lines) == ["a"]
    assert amqp.lines["a"][0] == (series["seconds"][0], 4, 4, 4)


def test_what_cannot_be_sampled_fails_the_measurement():
    def fail() -> dict[str, int]:
        raise StackError("Redis: gone")

    server: Any = SimpleNamespace(cpu_seconds=lambda: 0.0, rss_bytes=lambda: 0)
    with (
        pytest.raises(StackError, match="Redis: gone"),
        OverTime({"gateway": server}, 0.01, fail) as watch,
    ):
        until(lambda: watch._sampling.done())
