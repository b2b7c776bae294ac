"""Pictures can be read: on a phone, and where figures differ much."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from loadtest import picture
from loadtest.plot import Plot
from loadtest.summary import summarize
from tests.support.rows import row

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
