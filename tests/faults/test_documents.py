"""docs/reliability.md has every row, under its own title, and the last report is of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.faults.rows import ROWS
from tests.faults.test_rows import SHORT_ROWS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_row_is_documented_under_its_title():
    text = (DOCS / "reliability.md").read_text()
    documented = re.findall(r"^\| (\d+)(\*?) \| ([^|]+) \|", text, re.M)

    assert {int(number): title for number, _, title in documented} == {
        row.number: row.title for row in ROWS.values()
    }
    assert {int(number) for number, star, _ in documented if star} == SHORT_ROWS


def test_the_committed_report_has_every_row_and_strategy_and_all_hold():
    report = json.loads((DOCS / "reports" / "faults.json").read_text())

    assert {(row["row"], row["strategy"]) for row in report["rows"]} == {
        (row.number, strategy) for row in ROWS.values() for strategy in row.strategies
    }
    assert [row for row in report["rows"] if row["problems"] or row["lost"]] == []
