"""Figures over a quantity as lines: what is drawn, by `picture`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
