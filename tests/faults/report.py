"""A line for each row or seed and strategy, a table of all, a file to go on from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loadtest.machine import PACKAGES, commit, machine, measured_code
from tests.faults.oracle import Result, RowResult, SeedResult

COLUMNS = ("sent", "acknowledged", "executed", "lost", "duplicated", "late", "recovery")
SEED_COLUMNS = (
    "sent",
    "tries",
    "acknowledged",
    "executed",
    "lost",
    "duplicated",
    "second_ids",
    "different_answers",
    "late",
    "errors_500",
    "recovery",
)


def line(result: Result) -> str:
    """Tell in a line what a row or a seed has shown; below it what broke, and what was done."""
    columns = SEED_COLUMNS if isinstance(result, SeedResult) else COLUMNS
    figures = "  ".join(f"{_title(name)} {getattr(result, name):g}" for name in columns)
    statuses = " ".join(f"{status}:{count}" for status, count in result.statuses.items())
    verdict = "holds " if result.holds else "BROKEN"
    told = f"{verdict} {result.strategy:10} {figures}  ({statuses})"
    if isinstance(result, RowResult):
        text = f"{result.row:2} {told}  {result.label}".rstrip()
        return "\n".join([text, *(f"          {problem}" for problem in result.problems)])
    text = f"seed {result.seed:3} {told}"
    if result.holds:
        return text
    faults = result.injected or result.schedule
    return "\n".join([text, *(f"    {each}" for each in (*result.problems, *faults))])


def table(results: Iterable[RowResult]) -> str:
    """Return all results as a table in Markdown."""
    head = ("row", "fault", "strategy", *COLUMNS, "")
    rows = [
        (
            f"{one.row}",
            f"{one.title}, {one.label}" if one.label else one.title,
            f"`{one.strategy}`",
            *_figures(one, COLUMNS),
            "" if one.holds else "broken",
        )
        for one in results
    ]
    return markdown(head, rows)


def table_of_seeds(results: Sequence[SeedResult]) -> str:
    """Return all results as a table in Markdown, with their sums and the slowest recovery."""
    rows = [
        (
            f"{one.seed}",
            f"`{one.strategy}`",
            *_figures(one, SEED_COLUMNS),
            "" if one.holds else "broken",
        )
        for one in results
    ]
    sums = {name: sum(getattr(one, name) for one in results) for name in SEED_COLUMNS}
    sums["recovery"] = max((one.recovery for one in results), default=0.0)
    total = SeedResult(seed=0, strategy="", seconds=0.0, **sums)
    broken = sum(not one.holds for one in results)
    last = ("all", "", *_figures(total, SEED_COLUMNS), f"{broken} of {len(results)} broken")
    return markdown(("seed", "strategy", *map(_title, SEED_COLUMNS), ""), [*rows, last])


def _figures(result: Result, columns: Sequence[str]) -> list[str]:
    return [f"{getattr(result, name):,g}" for name in columns]


def _title(name: str) -> str:
    return {"errors_500": "500s"}.get(name, name.replace("_", " "))


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


class Report:
    """The results so far, kept in a file after each of them; `keep` what the file has of others.

    `experiment` is the report's name, `kind` what its rows are made of.
    """

    def __init__(
        self, path: Path, keep: bool, experiment: str = "faults", kind: type[Result] = RowResult
    ):
        self._path, self._experiment = path, experiment
        self.results: list[Any] = []
        self._versions = {name: version(package) for name, package in PACKAGES.items()}
        self._versions["code"] = measured_code()
        if keep and path.exists():
            earlier = json.loads(path.read_text())
            self.results = [kind(**row) for row in earlier["rows"]]
            if earlier["versions"].get("code") != self._versions["code"]:
                del self._versions["code"]  # the rows are of more than one

    def has(self, number: int, strategy: str) -> bool:
        """Is it known that this row or seed holds for this strategy?"""
        known = [r.holds for r in self.results if r.key == (number, strategy)]
        return bool(known) and all(known)

    def add(self, results: Iterable[Result], versions: Mapping[str, str]) -> None:
        """Put `results` in the place of earlier ones of the same rows, and write the file.

        `versions` are those of the servers.
        """
        new = list(results)
        places = {r.key for r in new}
        kept = [r for r in self.results if r.key not in places]
        self.results = sorted(kept + new, key=lambda r: r.key)
        self._versions |= versions
        document = {
            "experiment": self._experiment,
            "commit": commit(),
            "versions": self._versions,
            "machine": machine(),
            "rows": [asdict(result) for result in self.results],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(document, indent=1) + "\n")
