"""What performance has to reach: figures of pairs that were measured one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, Self, TypedDict

from loadtest.summary import Row, case_of, figure

#: Strategy and case.
Pair = tuple[str, str]


class Bounds(TypedDict, total=False):
    """What a `Target` is given of its bound."""

    at_most: float | None
    at_least: float | None
    aim: float | None


@dataclass(frozen=True)
class Target:
    """A figure with its bound, one value for each repeat.

    Of `at_most` and `at_least` one is given, or none where the figure is for comparison only.
    """

    name: str
    values: list[float]
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    aim: float | None = None

    def __post_init__(self) -> None:
        # As in the file, so that a page that is drawn from it shows the same.
        object.__setattr__(self, "values", [round(value, 4) for value in self.values])

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def reached(self) -> bool | None:
        """Does the median keep the bound? None where there is none."""
        if self.at_most is not None:
            return self.median <= self.at_most
        return None if self.at_least is None else self.median >= self.at_least

    @property
    def bound(self) -> str:
        """Say what is asked for, in words."""
        if self.reached is None:
            return "-"
        word, value = (
            ("at most", self.at_most) if self.at_most is not None else ("at least", self.at_least)
        )
        text = f"{word} {value:,g}{self.unit}"
        return text if self.aim is None else f"{text}, aim {self.aim:,g}"

    @property
    def verdict(self) -> str:
        return {None: "-", True: "reached", False: "missed"}[self.reached]

    @property
    def said(self) -> str:
        return f"{number(self.median)}{self.unit}"

    def line(self) -> list[str]:
        """Return the texts of the columns `HEAD`."""
        low, high = min(self.values), max(self.values)
        spread = [f"{number(low)}-{number(high)}", str(len(self.values))]
        return [self.name, self.said, *spread, self.bound, self.verdict]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the target whose `document` this is."""
        return cls(**{each.name: document[each.name] for each in fields(cls)})

    def document(self) -> dict[str, Any]:
        """Return what goes into the JSON file."""
        return {
            **vars(self),
            "median": round(self.median, 4),
            "reached": self.reached,
        }


HEAD = ["figure", "median", "min-max", "pairs", "asked", "verdict"]
#: Where each figure was measured once.
HEAD_OF_ONE = ["figure", "measured", "asked", "verdict"]


def lines(targets: Sequence[Target]) -> list[list[str]]:
    """Return the head and a line for each of `targets`."""
    if any(len(target.values) > 1 for target in targets):
        return [HEAD, *(target.line() for target in targets)]
    return [HEAD_OF_ONE, *([t.name, t.said, t.bound, t.verdict] for t in targets)]


def number(value: float) -> str:
    """Write a figure with about three digits."""
    return (
        f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if value >= 20 else f"{value:.2f}"
    )


def figures(rows: Sequence[Row], strategy: str, path: Sequence[str], case: str = "") -> list[float]:
    """Return a figure of each repeat of `strategy`, in any case unless one is named."""
    return list(_by_repeat(rows, strategy, path, case).values())


def ratios(rows: Sequence[Row], path: Sequence[str], of: Pair, to: Pair) -> list[float]:
    """Divide the figure `of` one strategy and case by that of another, repeat by repeat."""
    above, below = (_by_repeat(rows, strategy, path, case) for strategy, case in (of, to))
    return [value / below[repeat] for repeat, value in above.items() if below.get(repeat)]


def differences(rows: Sequence[Row], path: Sequence[str], of: Pair, to: Pair) -> list[float]:
    """Subtract from the figure `of` one strategy and case that of another, repeat by repeat."""
    above, below = (_by_repeat(rows, strategy, path, case) for strategy, case in (of, to))
    return [value - below[repeat] for repeat, value in above.items() if repeat in below]


def _by_repeat(
    rows: Sequence[Row], strategy: str, path: Sequence[str], case: str
) -> dict[int, float]:
    return {
        row["repeat"]: value
        for row in rows
        if row["strategy"] == strategy
        and case in ("", case_of(row))
        and (value := figure(row, path)) is not None
    }
