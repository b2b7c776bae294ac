"""A line for each row and strategy, a table of all, a file to go on from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from loadtest.machine import PACKAGES, commit, machine
from tests.faults.oracle import Result

COLUMNS = ("sent", "acknowledged", "executed", "lost", "duplicated", "late", "recovery")


def line(result: Result) -> str:
    """Tell in a line what a row has shown of a strategy, and below it what broke."""
    figures = "  ".join(f"{name} {getattr(result, name):g}" for name in COLUMNS)
    statuses = " ".join(f"{status}:{count}" for status, count in result.statuses.items())
    verdict = "holds " if result.holds else "BROKEN"
    text = f"{result.row:2} {verdict} {result.strategy:10} {figures}  ({statuses})"
    if result.label:
        text += f"  {result.label}"
    return "\n".join([text, *(f"          {problem}" for problem in result.problems)])


def table(results: Iterable[Result]) -> str:
    """Return all results as a table in Markdown."""
    head = ("row", "fault", "strategy", *COLUMNS, "")
    rows = [
        (
            f"{result.row}",
            f"{result.title}, {result.label}" if result.label else result.title,
            f"`{result.strategy}`",
            *(f"{getattr(result, name):,g}" for name in COLUMNS),
            "" if result.holds else "broken",
        )
        for result in results
    ]
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


class Report:
    """The results so far, kept in a file after each row; `keep` what the file has of others."""

    def __init__(self, path: Path, keep: bool):
        self._path = path
        self.results: list[Result] = []
        if keep and path.exists():
            self.results = [Result(**row) for row in json.loads(path.read_text())["rows"]]

    def has(self, row: int, strategy: str) -> bool:
        """Is it known that this row holds for this strategy?"""
        known = [r.holds for r in self.results if (r.row, r.strategy) == (row, strategy)]
        return bool(known) and all(known)

    def add(self, results: Iterable[Result]) -> None:
        """Put `results` in the place of earlier ones of the same rows, and write the file."""
        new = list(results)
        places = {(r.row, r.strategy) for r in new}
        kept = [r for r in self.results if (r.row, r.strategy) not in places]
        self.results = sorted(kept + new, key=lambda r: (r.row, r.strategy))
        document = {
            "experiment": "faults",
            "commit": commit(),
            "versions": {name: version(package) for name, package in PACKAGES.items()},
            "machine": machine(),
            "rows": [asdict(result) for result in self.results],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(document, indent=1) + "\n")
