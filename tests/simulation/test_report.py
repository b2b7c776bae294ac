"""The report grows by each run, its sums are shown, and mutants change text that is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest import figures
from tests.simulation import report
from tests.simulation.mutants import _ROOT, MUTANTS, copy_to

RUN = {
    "strategies": {"pika": 10, "redis": 10}, "first": 1, "last": 10, "seeds": 20, "violations": 0,
    "virtual_hours": 0.7, "faults": {"redis killed": 30},
    "means": {
        "seconds": 130, "gateways": 3, "deliveries": 170, "identified": 100, "callbacks": 60_000,
        "cpu": 0.5,
    },
}  # fmt: skip


def test_each_run_is_added_with_its_commit_and_mutants_are_replaced(tmp_path):
    path = tmp_path / "simulation.json"
    report.add_run(RUN, path)
    report.add_run(RUN | {"first": 11, "last": 20}, path)
    report.set_mutants([{"name": "a", "found": ""}, {"name": "gone", "found": ""}], ["a"], path)
    report.set_mutants([{"name": "b", "found": "seed 2 pika"}], ["a", "b", "c"], path)

    written = json.loads(path.read_text())
    assert [run["first"] for run in written["runs"]] == [1, 11]
    assert all(run["commit"] and run["code"] for run in written["runs"])
    assert written["defects"] == report.defects() != []
    assert [mutant["name"] for mutant in written["mutants"]] == ["a", "b", "c"]
    assert [mutant["found"] for mutant in written["mutants"]] == ["", "seed 2 pika", ""]


def test_the_sums_of_all_runs_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(figures, "REPORTS", tmp_path)
    path = tmp_path / "simulation.json"
    report.add_run(RUN, path)
    report.add_run(RUN | {"seeds": 60, "violations": 2, "faults": {"redis killed": 50}}, path)
    report.set_mutants([{"name": "a", "found": ""}, {"name": "b", "found": "seed 1"}], "ab", path)

    shown = figures.fill("<!-- simulation totals -->\n<!-- /simulation totals -->")

    assert "| violations | 2 |" in shown
    assert "| faults | redis killed 80 |" in shown
    assert "1.0 faults" in shown and "120,000" in shown
    assert "| mutants found | 1 of 2 |" in shown
    assert f"commit `{figures.commit_of(json.loads(path.read_text()))[:10]}`" in shown


def test_the_committed_report_has_all_defects():
    assert json.loads(report.PATH.read_text())["defects"] == report.defects(), "--report again"


def test_each_mutant_changes_a_text_that_is_there_once():
    counts = {each.name: (_ROOT / each.file).read_text().count(each.old) for each in MUTANTS}
    assert counts == dict.fromkeys(counts, 1)
    assert len(counts) == len(MUTANTS)


def test_the_copy_of_which_mutants_are_made_can_simulate(tmp_path: Path):
    copy_to(tmp_path)
    argv = [sys.executable, "-m", "tests.simulation", "--strategies", "pika", "--seeds", "1-1"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("1 seeds, 0 violations")
