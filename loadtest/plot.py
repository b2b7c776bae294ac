"""Figures over a quantity as lines: what is drawn, by `picture`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: x, median, least, greatest.
Point = tuple[float, float, float, float]


@dataclass(frozen=True)
class Plot:
    """Lines over a logarithmic x axis, or a `linear` one from zero on; the y axis begins at zero.

    `name` is a file's, without ending. A linear axis is for many points, which get no marks.
    """

    name: str
    title: str
    x: str
    y: str
    lines: dict[str, Sequence[Point]]
    linear: bool = False
