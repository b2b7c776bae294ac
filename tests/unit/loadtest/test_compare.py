"""Two reports are compared by what is beyond the noise of their repeats, or not at all."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest import cli
from loadtest.compare import SAME, differs
from loadtest.report import Report, dump
from loadtest.targets import Target
from tests.support.rows import disturbed, row


@pytest.mark.parametrize(
    ("old", "new", "least", "different"),
    [
        # Repeats that overlap; that do not, but by less than the spread; by more; with few repeats.
        ([100, 101, 102, 103, 104], [104, 105, 106, 107, 108], 0, False),
        ([100, 101, 102, 103, 110], [111, 111, 112, 112, 112], 0, False),
        ([100, 101, 102, 103, 104], [110, 111, 112, 113, 114], 0, True),
        ([100, 101, 102, 103, 104], [90, 91, 92, 93, 94], 0, True),
        ([100, 102, 104], [109, 110, 111], 0, False),
        ([100, 102, 104], [111, 112, 113], 0, True),
        # Steady, but by less than 3 % or by less than can be measured.
        ([100.0] * 5, [102.9] * 5, 0, False),
        ([100.0] * 5, [103.1] * 5, 0, True),
        ([1.0] * 5, [1.4] * 5, 0.5, False),
        ([0.0] * 5, [1.0] * 5, 0, True),
    ],
)
def test_a_difference_is_greater_than_the_spread_of_the_repeats(old, new, least, different):
    assert differs(old, new, least) is different
    assert differs(old, list(old), least) is False


def document(rps: float = 100, cpu: float = 100, **more: Any) -> dict[str, Any]:
    """Return a report of five repeats of two strategies, of which one has these figures."""
    memory = {"gateway": 50}
    rows = [
        row(name, rate + n, repeat=n, cpu_us_per_request={"gateway": us + n}, rss_mb=memory)
        for n in range(5)
        for name, rate, us in (("a", 100, 100), ("b", rps, cpu))
    ]
    report = Report(
        "strategies", rows=rows, machine={"cores": 2, "cpu": "fast"},
        options={"repeats": 5, "connections": [64]}, commit="abc", versions={"celery": "5.7"},
    )  # fmt: skip
    report.judge(Target("CPU, b / a", [cpu / 100] * 5, at_most=2))
    return {**json.loads(dump(report.document())), **more}


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., int]:
    """Write two documents and compare them; return the exit code."""

    def compare(old: dict[str, Any], new: dict[str, Any], *options: str) -> int:
        for name, each in (("old", old), ("new", new)):
            (tmp_path / f"{name}.json").write_text(json.dumps(each))
        return cli.main(["compare", *options, f"{tmp_path}/old.json", f"{tmp_path}/new.json"])

    return compare


def lines(out: str) -> list[list[str]]:
    """Return the cells of the lines of the table."""
    return [re.split(r" {2,}", line.strip()) for line in out.splitlines()]


def test_what_got_worse_is_named_and_fails(compare: Callable, capsys: pytest.CaptureFixture[str]):
    assert compare(document(), document(rps=50, cpu=150)) == 1
    found = lines(capsys.readouterr().out)
    assert ["a", "64 connections", "5 figures", SAME] in found
    (rate,) = (line for line in found if line[:3] == ["b", "64 connections", "req/s"])
    assert rate[3:] == ["102 (100-104)", "52.0 (50.0-54.0)", "-49%", "slower"]
    (cpu,) = (line for line in found if line[:3] == ["b", "64 connections", "gateway us"])
    assert cpu[-1] == "more CPU"
    (ratio,) = (line for line in found if line[0] == "targets")
    assert ratio[-1] == "worse"
    assert found[-1][0].startswith("3 worse, 0 better, 8 of 11: ")


def test_what_got_better_or_stayed_the_same_is_no_failure(compare, capsys):
    assert compare(document(), document(rps=200, cpu=50)) == 0
    out = capsys.readouterr().out
    assert "faster" in out and "less CPU" in out and "\n0 worse, 3 better," in out
    same = document(rps=101)
    same["versions"]["celery"] = "5.8"
    same["options"]["repeats"] = 6
    assert compare(document(), same, "--all") == 0
    out = capsys.readouterr().out
    assert "\n0 worse, 0 better, 11 of 11: " in out
    assert out.count(SAME) == 12  # and the figures are shown one by one
    assert "versions: celery 5.7 -> 5.8" in out


def changed(**parts: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(document())
    for name, values in parts.items():
        made[name].update(values)
    return made


def noisy() -> dict[str, Any]:
    made = document()
    made["rows"] = [{**each, **disturbed(30)} for each in made["rows"]]
    return made


@pytest.mark.parametrize(
    ("old", "new", "code", "why"),
    [
        ({"experiment": "cost"}, {}, 2, "the old one is of cost, the new one of strategies"),
        ({}, changed(machine={"cpu": "slow"}), 2, "their machine differ .* cpu: fast / slow"),
        ({}, changed(options={"connections": [8]}), 2, r"options differ .*: \[64\] / \[8\]"),
        ({}, changed(options={"repeats": 1}), 2, "the new run has 1 repeats, whose spread says"),
        ({"problems": ["b: it broke"]}, {}, 2, "the old run failed: b: it broke"),
        ({"rows": []}, {}, 2, "the old run: it has no measurement"),
        ({}, {"rows": [], "problems": ["no wrk"]}, 1, "the new run: no wrk"),
        ({}, noisy(), 3, "the new run: Other programs had 30.0 % of all cores"),
        ({}, {"rows": [row("c", 1)]}, 2, "they have no measurement in common"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(compare, capsys, old, new, code, why):
    assert compare({**document(), **old}, {**document(), **new}) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.match(f"loadtest: not compared: .*{why}", captured.err)


def test_a_new_run_that_failed_is_worse(compare: Callable, capsys: pytest.CaptureFixture[str]):
    assert compare(document(), document(problems=["b, repeat 1: 3 wrong answers"])) == 1
    assert capsys.readouterr().err == (
        "loadtest: the new run failed: b, repeat 1: 3 wrong answers\n"
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory"),
        ("no", "not a report of loadtest/run.sh"),
        ("[]", "not a report of loadtest/run.sh"),
        ('{"experiment": "cost"}', "not a report of loadtest/run.sh: no commit, machine, options"),
    ],
)
def test_a_file_that_is_no_report_is_told_at_once(tmp_path, capsys, content, says):
    file = tmp_path / "x.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit) as exit:
        cli.main(["compare", str(file), str(file)])
    assert exit.value.code == 2
    assert f"{file}: {says}" in capsys.readouterr().err
