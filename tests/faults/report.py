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


def line(result: Result) -> str:
    """Tell in a line what a row or a seed has shown; below it what broke, and what was done."""
    figures = "  ".join(f"{_title(name)} {getattr(result, name):g}" for name in result.COLUMNS)
    statuses = " ".join(f"{status}:{count}" for status, count in result.statuses.items())
    verdict = "holds " if result.holds else "BROKEN"
    text = f"{result.place} {verdict} {result.strategy:10} {figures}  ({statuses})"
    below = [] if result.holds else [*result.problems, *result.faults]
    return "\n".join([f"{text}  {result.label}".rstrip(), *(f"    {each}" for each in below)])


def table(results: Sequence[Result]) -> str:
    """Return all results as a table in Markdown; those of seeds with sums and slowest recovery."""
    rows = [
        (*one.cells, f"`{one.strategy}`", *_figures(one), "" if one.holds else "broken")
        for one in results
    ]
    kind = type(results[0]) if results else RowResult
    if kind is SeedResult:
        sums = {name: sum(getattr(one, name) for one in results) for name in kind.COLUMNS}
        sums["recovery"] = max(one.recovery for one in results)
        total = SeedResult(seed=0, strategy="", seconds=0.0, **sums)
        broken = sum(not one.holds for one in results)
        rows.append(("all", "", *_figures(total), f"{broken} of {len(results)} broken"))
    return markdown((*kind.HEAD, "strategy", *map(_title, kind.COLUMNS), ""), rows)


def _figures(result: Result) -> list[str]:
    return [f"{getattr(result, name):,g}" for name in result.COLUMNS]


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
