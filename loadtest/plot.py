"""Draw figures over a quantity as lines, in SVG that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: Blue, orange, green and purple of one lightness: told apart by most colour-blind readers too.
#: The second of each is for dark backgrounds.
COLOURS = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#e8893a"),
    ("#009e73", "#2bc49a"),
    ("#a8568a", "#d68fbb"),
]

_STYLE = """\
svg { font: 13px system-ui, sans-serif } svg text { fill: var(--text) }
.axis { stroke: var(--line) } .line { fill: none; stroke-width: 2 } .range { stroke-width: 1.5 }
"""
_LIGHT, _DARK = "--text: #1b1f24; --line: #d5dae0", "--text: #e6e9ed; --line: #3a424c"

# Pixels of the drawing, before it is scaled.
_LEFT, _TOP, _WIDTH, _HEIGHT, _RIGHT, _BOTTOM = 60, 30, 480, 260, 110, 48

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

    def svg(self, standalone: bool = False) -> str:
        """Return the drawing: for a page with `style`, or with all that a file needs."""
        points = [point for points in self.lines.values() for point in points]
        drawing = _Drawing(points, self.linear)
        parts = [
            *drawing.axes(self.x, self.y),
            *(
                part
                for n, (name, points) in enumerate(self.lines.items())
                for part in drawing.line(name, points, n)
            ),
        ]
        size = f"0 0 {_LEFT + _WIDTH + _RIGHT} {_TOP + _HEIGHT + _BOTTOM}"
        label = escape(f"{self.title}: {self.y} over {self.x}", quote=True)
        begin = f'<svg viewBox="{size}" role="img" aria-label="{label}"'
        if standalone:
            begin += ' xmlns="http://www.w3.org/2000/svg"'
        return f"{begin}>{f'<style>{style()}</style>' if standalone else ''}{''.join(parts)}</svg>"


def style() -> str:
    """Return the style of plots and bars: colours for light and dark backgrounds, and classes
    `c0`, `c1`... for areas, `l0`... for lines."""
    light, dark = (
        f":root {{ {first}; {'; '.join(f'--c{n}: {c[i]}' for n, c in enumerate(COLOURS))} }}"
        for i, first in enumerate((_LIGHT, _DARK))
    )
    classes = "".join(
        f".l{n} {{ stroke: var(--c{n}) }} .c{n} {{ fill: var(--c{n}); background: var(--c{n}) }}\n"
        for n in range(len(COLOURS))
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n{_STYLE}{classes}"


class _Drawing:
    """Puts points where they belong."""

    def __init__(self, points: Sequence[Point], linear: bool):
        xs = {x for x, *_ in points} or {1.0}
        right = _round_up(max(xs))
        self._linear = linear
        self._ticks = [right * n / 4 for n in range(5)] if linear else sorted(xs)
        self._top = _round_up(max((high for *_, high in points), default=1))
        self._ends: list[float] = []  # of lines' names, so that they do not lie on each other

    def _x(self, value: float) -> float:
        if self._linear:
            return _LEFT + _WIDTH * value / self._ticks[-1]
        low, high = math.log(self._ticks[0]), math.log(self._ticks[-1])
        return _LEFT + _WIDTH * ((math.log(value) - low) / (high - low) if high > low else 0.5)

    def _y(self, value: float) -> float:
        return _TOP + _HEIGHT * (1 - value / self._top)

    def axes(self, x: str, y: str) -> list[str]:
        right, bottom = _LEFT + _WIDTH, _TOP + _HEIGHT
        parts = [
            f'<text x="{_LEFT - 8}" y="{_TOP - 14}">{escape(y)}</text>',
            f'<text x="{_LEFT + _WIDTH / 2}" y="{bottom + 40}" text-anchor="middle">'
            f"{escape(x)}</text>",
        ]
        for n in range(5):
            value = self._top * n / 4
            at = f"{self._y(value):.1f}"
            parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
            parts.append(
                f'<text x="{_LEFT - 8}" y="{self._y(value) + 4:.1f}" text-anchor="end">'
                f"{value:,g}</text>"
            )
        for value in self._ticks:
            parts.append(
                f'<text x="{self._x(value):.1f}" y="{bottom + 20}" text-anchor="middle">'
                f"{value:,g}</text>"
            )
        return parts

    def line(self, name: str, points: Sequence[Point], n: int) -> list[str]:
        colour = n % len(COLOURS)
        middle = [(self._x(x), self._y(value)) for x, value, _, _ in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in middle)
        parts = [f'<polyline class="line l{colour}" points="{path}"/>']
        marked = [] if self._linear else zip(points, middle, strict=True)
        for (x, value, low, high), (at, height) in marked:
            hint = escape(f"{name}, {x:,g}: {value:,.0f} ({low:,.0f}-{high:,.0f})")
            parts.append(
                f'<g><title>{hint}</title><line class="range l{colour}" x1="{at:.1f}" '
                f'x2="{at:.1f}" y1="{self._y(low):.1f}" y2="{self._y(high):.1f}"/>'
                f'<circle class="c{colour}" cx="{at:.1f}" cy="{height:.1f}" r="3.5"/></g>'
            )
        at, height = middle[-1]
        while any(abs(height - other) < 15 for other in self._ends):
            height -= 1
        self._ends.append(height)
        parts.append(f'<text x="{at + 10:.1f}" y="{height + 4:.1f}">{escape(name)}</text>')
        return parts


def _round_up(value: float) -> float:
    """Return the next number that can be divided by four and read at a glance."""
    unit = 10 ** math.floor(math.log10(value)) if value > 0 else 1
    return next(unit * n for n in (1, 1.2, 1.6, 2, 4, 6, 8, 10) if unit * n >= value)
