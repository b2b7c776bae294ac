"""The report of all runs, docs/reports/simulation.json, which each run with `--report` adds to.

``runs`` has an entry for each run, ``defects`` those of `FOUND`, ``mutants`` the last result of
each mutant. Sums are computed where they are shown: `loadtest.figures` writes them into
docs/simulation.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loadtest.machine import commit, measured_code
from tests.simulation.test_seeds import FOUND

PATH = Path(__file__).parents[2] / "docs" / "reports" / "simulation.json"

Row = dict[str, Any]


def defects() -> list[Row]:
    """Return the defects that were found, as the report has them."""
    return [{"strategy": s, "seed": seed, "what": what} for (s, seed), what in FOUND.items()]


def add_run(figures: Row, path: Path = PATH) -> None:
    """Add what a run has shown, with the commit that has run."""
    report = _read(path)
    report["runs"].append({"commit": commit(), "code": measured_code(), **figures})
    _write(report, path)


def set_mutants(results: Iterable[Row], names: Iterable[str], path: Path = PATH) -> None:
    """Replace the results of those mutants that were tried; `names` are all that there are."""
    report = _read(path)
    known = {row["name"]: row for row in (*report["mutants"], *results)}
    untried = {"found": "", "rules": [], "by": "not tried yet"}
    report["mutants"] = [known.get(name, {"name": name, **untried}) for name in names]
    _write(report, path)


def _read(path: Path) -> Row:
    empty = {"experiment": "simulation", "runs": [], "mutants": []}
    report: Row = json.loads(path.read_text("utf-8")) if path.exists() else empty
    return report


def _write(report: Row, path: Path) -> None:
    report["defects"] = defects()
    new = path.with_suffix(".new")
    new.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    new.replace(path)
