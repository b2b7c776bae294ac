"""The documents show the committed reports, and say where these are of other code than ours."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from loadtest import figures
from loadtest.machine import BESIDE, MEASURED, ROOT, measured_code
from tests.docs.test_documents import text

CHANGED = "(the measured code has changed since)"
COMMIT = "<!-- cost commit -->\n<!-- /cost commit -->"


def test_every_table_is_there():
    performance = text("docs/performance.md")
    shown = set(re.findall(r"<!-- (\w+) targets -->", performance))
    assert shown == {
        "cost", "peers", "slow", "waiting", "alone", "growth", "openloop", "soak", "capacity",
        "fair", "separate", "replies", "fronts", "paths",
    }  # fmt: skip
    assert performance.count("<!-- strategies table -->\n| strategy |") == 1


def test_every_committed_report_is_named_with_its_commit():
    link = r"\[Report\]\(reports/([\w-]+)\.json\),\s+commit\s+`(\w+)`"
    named = {
        found
        for path in figures.written()
        if path.suffix == ".md"
        for found in re.findall(link, path.read_text("utf-8"))
    }
    reports = {path.stem: json.loads(path.read_text()) for path in figures.REPORTS.glob("*.json")}
    assert named == {(name, figures.commit_of(each)[:10]) for name, each in reports.items()}


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a committed report as one of other code; return it."""

    def write(name: str, **code: str) -> dict[str, Any]:
        report = json.loads((figures.REPORTS / f"{name}.json").read_text())
        report["versions"].pop("code", None)
        report["versions"] |= code
        (tmp_path / f"{name}.json").write_text(json.dumps(report))
        monkeypatch.setattr(figures, "REPORTS", tmp_path)
        return report

    return write


@pytest.mark.parametrize(
    ("code", "told"), [({"code": measured_code()}, 0), ({"code": "0" * 12}, 1), ({}, 1)]
)
def test_a_report_of_other_code_is_called_so(reported, code: dict[str, str], told: int):
    # Given a report of this code, of another, or from before reports told,
    report = reported("cost", **code)

    # when it is shown,
    shown = figures.fill(COMMIT) + figures.fill(COMMIT.replace("commit", "targets"))

    # then each place where it is says so.
    assert shown.count(f"commit `{report['commit'][:10]}`") == 2
    assert shown.count(CHANGED) == 2 * told


@pytest.mark.parametrize("name", figures.FOREIGN)
def test_a_report_of_no_code_of_ours_is_not_outdated(reported, name: str):
    report = reported(name, code="0" * 12)
    shown = figures.fill(COMMIT.replace("cost", name))

    assert report["commit"][:10] in shown and CHANGED not in shown


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what is measured, without git."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in MEASURED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    return tmp_path


def test_only_the_code_that_a_request_runs_through_counts(tree: Path):
    same = measured_code()
    assert measured_code(tree) == same
    for name in ("gateway/notes.txt", *BESIDE):
        path = tree / name
        (path / "more.py" if path.is_dir() else path).write_text("more\n")
    assert measured_code(tree) == same
    for name in ("gateway/relay/__init__.py", "appserver/more.py"):
        with (tree / name).open("a") as file:
            file.write("# more\n")
        assert measured_code(tree) != same
        same = measured_code(tree)
    (tree / "appserver/more.py").rename(tree / "appserver/other.py")
    assert measured_code(tree) != same
