"""Pictures can be read, on a phone and where figures differ much; samples are taken over time."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from gateway.stack import StackError
from loadtest import picture
from loadtest.over_time import OverTime, plots
from loadtest.plot import Plot
from loadtest.summary import summarize
from tests.support.rows import row
from tests.support.waiting import until

#: What a picture has on a phone of 390 pixels, without the margins of the page.
PHONE = 358


def texts(svg: str) -> list[str]:
    return [each.text for each in ElementTree.fromstring(svg).iter() if each.text]


def bars() -> str:
    return picture.bars(summarize([row("a", 9), row("b", 8)]), ("rps",), "Rates")


def lines() -> str:
    return picture.lines(Plot("x", "X", "s", "MB", {"a": [(1, 2, 2, 2)], "b": [(1, 1, 1, 1)]}))


@pytest.mark.parametrize("draw", [bars, lines])
def test_text_has_11_pixels_on_a_phone(draw: Callable[[], str]):
    svg = draw()
    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', svg)[1])
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", svg)]
    assert sizes and min(sizes) * PHONE / width >= 11


def test_bars_that_could_not_be_compared_are_dots_on_a_logarithmic_scale():
    rates = {"fast": 100_000, "slow": 10}
    summaries = summarize([row(name, rate) for name, rate in rates.items()])
    assert picture.logarithmic(summaries, ("rps",))
    found = texts(picture.bars(summaries, ("rps",), "Rates"))
    assert {"fast", "slow", "100,000", "10.0"} <= set(found)
    assert "1,000" in found  # of the scale
    assert not picture.logarithmic(summaries[:1], ("rps",))


def test_lines_that_are_far_apart_have_a_logarithmic_axis():
    points = {"cheap": [(50, 150, 140, 160), (800, 60, 50, 70)], "dear": [(50, 3_000, 2e3, 4e3)]}
    found = texts(picture.lines(Plot("x", "X", "rate", "µs", points, log=True)))
    assert {"50", "100", "1,000", "cheap", "dear"} <= set(found)
    assert "0" not in found


def test_labels_that_would_overlap_are_left_out():
    points = [(float(x), 1.0, 1.0, 1.0) for x in (1, 1_000, 1_001, 1_002)]
    found = texts(picture.lines(Plot("x", "X", "n", "s", {"a": points})))
    assert {"1", "1,000"} <= set(found) and "1,001" not in found and "1,002" not in found


# What servers use over time -----------------------------------------------------------------------


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
        until(lambda: watch.sampling.done())
