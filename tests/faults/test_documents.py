"""docs/reliability.md has every row, under its own title, and the report is of a whole run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gateway.config.strategies import STRATEGIES
from tests.faults.oracle import RowResult
from tests.faults.rows import CLUSTER, ROWS
from tests.faults.test_rows import SHORT_ROWS
from tests.faults.trial import TWO, WHOLE

DOCS = Path(__file__).parents[2] / "docs"


def test_every_row_is_documented_under_its_title():
    text = (DOCS / "reliability.md").read_text()
    documented = re.findall(r"^\| (\d+)(\*?) \| ([^|]+) \|", text, re.M)

    assert {int(number): title for number, _, title in documented} == {
        row.number: row.title for row in ROWS.values()
    }
    assert {int(number) for number, star, _ in documented if star} == SHORT_ROWS


@pytest.mark.parametrize("name", ["faults", "cluster-faults"])
def test_the_senders_column_has_every_status_that_was_seen(name):
    text = (DOCS / "reliability.md").read_text()
    told = dict(re.findall(r"^\| (\d+)\*? \| [^|]+ \| ([^|]+) \|", text, re.M))
    for number, cell in told.items():
        if same := re.fullmatch(r"as (\d+)", cell):
            told[number] = told[same[1]]
    report = json.loads((DOCS / "reports" / f"{name}.json").read_text())
    for row in report["rows"]:
        seen = {status for status in row["statuses"] if not status.startswith("2")}
        cell = told[str(row["row"])]
        assert {status for status in seen if status not in cell} == set(), (row["row"], cell)


def test_in_the_clusters_report_all_holds():
    report = json.loads((DOCS / "reports" / "cluster-faults.json").read_text())
    assert {(row["row"], row["strategy"]) for row in report["rows"]} == {
        (number, strategy) for number in CLUSTER for strategy in TWO
    }
    assert [row for row in report["rows"] if row["problems"] or row["lost"] or row["late"]] == []
    sums = {name: sum(row[name] for row in report["rows"]) for name in RowResult.COLUMNS}
    said = " ".join((DOCS / "reliability.md").read_text().split())
    assert (
        f"{sums['sent']:,} requests, {sums['acknowledged']:,} of them acknowledged, 0 lost, 0 late"
    ) in said


#: They kill a gateway with each of a few requests: there is no load to speak of.
FEW = {22, 23}


def test_the_committed_report_is_of_a_whole_run_in_which_all_holds():
    report = json.loads((DOCS / "reports" / "faults.json").read_text())

    # A strategy or a row that was added since is not in it until the rows have been run again.
    measured = {row["strategy"] for row in report["rows"]}
    numbers = {row["row"] for row in report["rows"]}
    assert measured <= STRATEGIES.keys()
    assert {(row["row"], row["strategy"]) for row in report["rows"]} == {
        (row.number, strategy)
        for row in ROWS.values()
        for strategy in measured.intersection(row.strategies)
        if row.number in numbers
    }
    assert [row for row in report["rows"] if row["problems"] or row["lost"]] == []
    loaded = [row for row in report["rows"] if row["row"] not in FEW]
    assert [row for row in loaded if row["sent"] < WHOLE.requests] == []
    sums = {name: sum(row[name] for row in report["rows"]) for name in RowResult.COLUMNS}
    slowest = max(row["recovery"] for row in report["rows"])
    said = " ".join((DOCS / "reliability.md").read_text().split())
    assert (
        f"{sums['sent']:,} requests, {sums['acknowledged']:,} of them acknowledged, "
        f"{sums['lost']} lost, {sums['late']} late; the slowest recovery took {slowest:.1f} s"
    ) in said
