"""Figures over a quantity as lines: what is drawn, by `picture`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.summary import Summary

#: x, median, least, greatest.
Point = tuple[float, float, float, float]


@dataclass(frozen=True)
class Plot:
    """Lines over a logarithmic x axis, or a `linear` one from zero on.

    `name` is a file's, without ending. A linear axis is for many points, which get no marks. The y
    axis begins at zero; with `log` it is logarithmic, for lines of which some have figures that are
    many times those of the others. All figures have to be above 0 then.
    """

    name: str
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[Point]]
    linear: bool = False
    log: bool = False


def medians(
    summaries: Iterable[Summary], path: Sequence[str], x: Callable[[Summary], float | None]
) -> dict[str, list[Point]]:
    """Return a line for each strategy: a figure over `x`, which is None where there is no point."""
    lines: dict[str, list[Point]] = {}
    for s in summaries:
        if (at := x(s)) is not None:
            lines.setdefault(s.strategy, []).append((at, s.median(*path), *s.range(*path)))
    return {name: sorted(points) for name, points in lines.items()}


def single(xs: Iterable[float], ys: Iterable[float]) -> list[Point]:
    """Return a line of figures of which there is one each."""
    return [(x, y, y, y) for x, y in zip(xs, ys, strict=True)]
