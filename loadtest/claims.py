"""Judge what the original investigations claimed by the rows of a run; no I/O but `claims.toml`.

A claim's value is the product of a figure `of` some settings, `over` that of others or `minus` it,
repeat by repeat. It is confirmed where the median keeps `at_least` and `at_most`, or where it does
not, if it is to lie `outside`. A setting is picked by what its rows have: a text is a pattern of
the whole, a number the same number, ``{ from = 2 }`` as much or more. Of several settings it is the
one with the `most` or the `least` of a figure. Only those without an error count, unless `faulty`
says that errors are what is asked for.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.summary import Row, case_of, figure, summarize
from loadtest.targets import number

CONFIRMED, REFUTED, UNMEASURED = "confirmed", "refuted", "not measured"
HEAD = ["what was said", "verdict", "figure", "confirmed if", "the figure is"]
#: A difference below this share is none.
SAME = 0.03
_NAMED = 3  # pairs whose order differs

Side = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """What was said; `because` gives the reason for a verdict, where one is known."""

    text: str
    what: str
    figure: str
    of: Sequence[Side]
    over: Sequence[Side] = ()
    minus: Sequence[Side] = ()
    at_least: float | None = None
    at_most: float | None = None
    outside: bool = False
    because: Mapping[str, str] = field(default_factory=dict)

    def judge(self, rows: Sequence[Row]) -> Judged:
        """Return the claim with its value in each repeat; with none where a setting is missing."""
        of, over, minus = (
            [self._picked(rows, side) for side in sides]
            for sides in (self.of, self.over, self.minus)
        )
        picked = [*of, *over, *minus]
        if not all(values for _, values in picked):
            return Judged(self, [], "")
        repeats = sorted(set.intersection(*(set(values) for _, values in picked)))
        found = [
            prod(values[n] for _, values in of)
            / prod(values[n] for _, values in over)
            - sum(values[n] for _, values in minus)
            for n in repeats
            if all(values[n] for _, values in over)
        ]  # fmt: skip
        sides = [(" x ", of), (" / ", over), (" - ", minus)]
        named = "".join(
            (sign if n or sign != " x " else "") + name
            for sign, side in sides
            for n, (name, _) in enumerate(side)
        )
        return Judged(self, found, f"{self.what}: {named}")

    def _picked(self, rows: Sequence[Row], side: Side) -> tuple[str, dict[int, float]]:
        """Return the name of a setting, and its figure in each repeat."""
        fields = side.keys() - {"figure", "most", "least", "faulty"}
        matching = [row for row in rows if all(_fits(row, name, side[name]) for name in fields)]
        found = [s for s in summarize(matching) if side.get("faulty") or s.clean]
        if by := side.get("most") or side.get("least"):
            path = by.split(".")
            found = [s for s in found if s.values(*path)]
            found.sort(key=lambda s: s.median(*path), reverse="most" in side)
        if not found:
            return "", {}
        parts = [part.split(".") for part in side.get("figure", self.figure).split(" + ")]
        values = {row["repeat"]: [figure(row, part) for part in parts] for row in found[0].rows}
        return f"{found[0].strategy}, {found[0].case}", {
            repeat: sum(each) for repeat, each in values.items() if None not in each
        }


def _fits(row: Row, name: str, wanted: Any) -> bool:
    """Has `row` what a setting asks for in the field `name`?"""
    value = case_of(row) if name == "case" else row.get(name)
    if isinstance(wanted, str):
        return re.fullmatch(wanted, str(value)) is not None
    if isinstance(wanted, Mapping):
        return value is not None and bool(value >= wanted["from"])
    return bool(value == wanted)


@dataclass(frozen=True)
class Judged:
    """A claim, its `values`, one for each repeat, and what was compared."""

    claim: Claim
    values: list[float]
    shown: str

    @property
    def verdict(self) -> str:
        if not self.values:
            return UNMEASURED
        least, most = self.claim.at_least, self.claim.at_most
        value = median(self.values)
        kept = (least is None or value >= least) and (most is None or value <= most)
        return CONFIRMED if kept is not self.claim.outside else REFUTED

    def line(self) -> list[str]:
        """Return the texts of the columns `HEAD`."""
        outside = self.claim.outside
        bounds = [
            ("below" if outside else "at least", self.claim.at_least),
            ("or above" if outside else "at most", self.claim.at_most),
        ]
        asked = ", ".join(f"{word} {value:.3g}" for word, value in bounds if value is not None)
        spread = ""
        if self.values:
            spread = number(median(self.values))
        if len(self.values) > 1:
            spread += f" ({number(min(self.values))}-{number(max(self.values))})"
        return [self.claim.text, self.verdict, spread or "-", asked, self.shown or "-"]


@cache
def _investigations() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def judge(experiment: str, rows: Sequence[Row]) -> list[Judged]:
    """Judge all that was said of what `experiment` measures."""
    return [Claim(**each).judge(rows) for each in _investigations()[experiment]["claims"]]


def tables(
    experiment: str, rows: Sequence[Row], scale: Mapping[str, float] | None = None
) -> dict[str, list[list[str]]]:
    """Return the verdicts as a table, and the original's figures beside ours.

    `scale`: by what our figures are multiplied first, by their paths.
    """
    found = {"What was said, and what this run shows": [HEAD, *(
        judged.line() for judged in judge(experiment, rows)
    )]}  # fmt: skip
    original = _investigations()[experiment].get("original")
    if original:
        found["The original's figures beside ours"] = list(_beside(original, rows, scale or {}))
    return found


def reasons(experiment: str, rows: Sequence[Row]) -> list[str]:
    """Return the reasons for the verdicts, and of what differs in order from the original."""
    found = [judged.claim.because.get(judged.verdict, "") for judged in judge(experiment, rows)] + [
        _order(named, then, rows)
        for named, then in _columns(_investigations()[experiment].get("original", {}))
        if "why" in named
    ]
    return list(dict.fromkeys(filter(None, found)))


#: Strategy and case.
_Setting = tuple[str, str]


def _columns(
    original: Mapping[str, Any],
) -> Iterator[tuple[Side, dict[_Setting, tuple[str, float]]]]:
    """Yield each figure, with what was measured then: what it is compared within, and the value."""
    for n, named in enumerate(original.get("figures", ())):
        yield (
            named,
            {
                (strategy, case): (within, values[n])
                for strategy, case, within, *values in original["rows"]
                if n < len(values) and values[n] != ""
            },
        )


def _beside(
    original: Mapping[str, Any], rows: Sequence[Row], scale: Mapping[str, float]
) -> Iterator[list[str]]:
    columns = list(_columns(original))
    heads = ([f"{named['name']} then", "now"] for named, _ in columns)
    yield ["setting", *(head for pair in heads for head in pair)]
    ours = {(s.strategy, s.case): s for s in summarize(rows)}
    for strategy, case, *_ in original["rows"]:
        line = [f"{strategy}, {case}"]
        for named, then in columns:
            path, setting = named["figure"], (strategy, case)
            found = ours[setting].values(*path.split(".")) if setting in ours else []
            now = number(median(found) * scale.get(path, 1)) if found else "-"
            line += [f"{then[setting][1]:,}" if setting in then else "-", now]
        yield line


def _order(named: Side, then: dict[_Setting, tuple[str, float]], rows: Sequence[Row]) -> str:
    """Say in what order a figure differs from the original's; empty where nothing can be compared.

    Settings are compared that were compared then; where a difference is clear in both.
    """
    ours = {
        (s.strategy, s.case): s.median(*path)
        for s in summarize(rows)
        if s.values(*(path := named["figure"].split(".")))
    }
    pairs = [
        sorted(pair, key=lambda setting: ours[setting])
        for pair in combinations(ours.keys() & then.keys(), 2)
        if then[pair[0]][0] == then[pair[1]][0]
    ]
    if not pairs:
        return ""
    changed = sorted(
        (ours[low] / ours[high], low, high)
        for low, high in pairs
        if ours[low] < ours[high] * (1 - SAME) and then[high][1] < then[low][1] * (1 - SAME)
    )
    if not changed:
        return f"By {named['name']} the order is the original's."
    some = "; ".join(
        f"{', '.join(low)} below {', '.join(high)}" for _, low, high in changed[:_NAMED]
    )
    more = f" and {len(changed) - _NAMED} more pairs" if len(changed) > _NAMED else ""
    return f"By {named['name']} the order differs: here {some}{more}, as {named['why']}."
