"""A line for each row and strategy, a table of all, a file to go on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loadtest.machine import PACKAGES, commit, machine, measured_code
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
    return markdown(head, rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def row_and_strategy(result: Result) -> tuple[int, str]:
    """Return what tells the results of a report apart."""
    return result.row, result.strategy


class Report:
    """The results so far, kept in a file after each of them; `keep` what the file has of others.

    `experiment` is the report's name, `kind` what its rows are made of, `key` what tells them
    apart, and by what they are sorted.
    """

    def __init__(
        self,
        path: Path,
        keep: bool,
        experiment: str = "faults",
        kind: type = Result,
        key: Callable[[Any], tuple[int, str]] = row_and_strategy,
    ):
        self._path, self._experiment, self._key = path, experiment, key
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
        known = [r.holds for r in self.results if self._key(r) == (number, strategy)]
        return bool(known) and all(known)

    def add(self, results: Iterable[Any], versions: Mapping[str, str]) -> None:
        """Put `results` in the place of earlier ones of the same rows, and write the file.

        `versions` are those of the servers.
        """
        new = list(results)
        places = set(map(self._key, new))
        kept = [r for r in self.results if self._key(r) not in places]
        self.results = sorted(kept + new, key=self._key)
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
