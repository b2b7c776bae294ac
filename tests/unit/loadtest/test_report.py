"""A report says what was found, what was wrong, and when nothing follows from it."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from loadtest import cli, picture, render
from loadtest.experiments import paths
from loadtest.plot import Plot
from loadtest.report import Report, dump
from loadtest.table import FAULTS, REQUESTS, Column
from loadtest.targets import Target
from tests.support.rows import disturbed, row

MACHINE = {"cores": 2, "cpu": "R&D", "memory_mb": 2048, "kernel": "Linux"}


def made(repeats: int, **more: object) -> Report:
    rows = [row(name, 9 + n, repeat=n) for n in range(1, repeats + 1) for name in ("a", "b")]
    options = {"repeats": repeats, "connections": [64]}
    # No charts, which take a second.
    report = Report("mine", rows=rows, machine=MACHINE, options=options, charts=[])
    report.judge(Target("a figure", [1.0 + n for n in range(repeats)], " KB", at_most=9, aim=7))
    for name, value in more.items():
        setattr(report, name, value)
    return report


def words(html: str) -> str:
    """Return the text of a page, without its drawings."""
    text = re.sub(r"<style>.*?</style>|<svg.*?</svg>|<[^>]*>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(text).split())


def test_a_page_is_drawn_again_from_the_json_file(tmp_path: Path):
    # Given a report that uses everything that a page shows,
    report = made(
        3,
        heads=("pool", "size"),
        columns=[REQUESTS, Column("all us", ("cpu_us", "all"), spread=True), *FAULTS],
        charts=[("Requests", "longer is better", ("rps",))],
        plots=[Plot("x", "Over time", "s", "MB", {"a": [(0, 1, 1, 1), (1, 2, 2, 2)]}, linear=True)],
        tables={"Theirs": [["what", "s"], ["pool", "9"]]},
        remarks=["Remark."],
        advice="Use it.",
        commit="abc",
        versions={"python": "3.11", "uvloop": None},
        checks=[{"requests": 5, "wrong_answers": 0, "not_2xx": 0, "missing": 0}],
    )
    file = tmp_path / "mine.json"
    file.write_text(dump(report.document()))

    # when it is read and drawn again,
    assert render.main([str(file), "--plots"]) == 0

    # then it is the same page, and the same plots.
    assert file.with_suffix(".html").read_text("utf-8") == render.draw(report)
    assert (tmp_path / "mine-x.svg").read_text("utf-8") == picture.lines(report.plots[0])
    assert dump(render.read(file).document()) == file.read_text()


def test_a_file_that_is_no_report_is_told_in_a_line(tmp_path, capsys):
    file = tmp_path / "other.json"
    file.write_text('{"shown": {}}')
    assert render.main([str(file), str(tmp_path / "none.json")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"{file}: not a report of loadtest/run.sh (KeyError(")
    assert said[1] == f"{tmp_path / 'none.json'}: No such file or directory"


def test_a_list_of_numbers_is_one_line_of_the_json_file():
    document = {
        "values": [1, -2.5, 3e-07], "none": [], "texts": ["1", "[ 2 ]"], "in": [[1, 2], [3]],
    }  # fmt: skip
    text = dump(document)
    assert json.loads(text) == document
    assert '"values": [1, -2.5, 3e-07]' in text
    assert "[1, 2]" in text


def test_errors_and_wrong_answers_are_the_first_figures():
    head, first, *_ = made(2).lines()
    assert head[:5] == ["strategy", "case", "errors", "wrong", "req/s"]
    assert first[:5] == ["a", "64 connections", "0", "0", "10.5 (10.0-11.0)"]


def test_one_run_is_not_called_a_median(capsys: pytest.CaptureFixture[str]):
    one, several = made(1), made(2)
    assert "edian" not in words(render.draw(one)).replace("Median latency", "")
    assert "One run of each" in words(render.draw(one))
    assert one.target_lines() == [
        ["figure", "measured", "asked", "verdict"],
        ["a figure", "1.00 KB", "at most 9 KB, aim 7", "reached"],
    ]
    one.show()
    assert "edian" not in capsys.readouterr().out
    assert "All medians" in words(render.draw(several))
    assert several.target_lines()[0][1:4] == ["median", "min-max", "pairs"]


@pytest.mark.parametrize(
    ("shares", "most", "worthless"),
    [([0, 5, 90], 5, False), ([0, 5.1, 90], 5, True), ([20, 20], 30, False), ([], 5, False)],
)
def test_nothing_follows_where_other_programs_had_the_cores(
    tmp_path, capsys, shares, most, worthless
):
    # Given so much CPU time of others in the measurements,
    report = made(1, advice="Use it.", most_others=most)
    report.rows = [row("a", 9, repeat=n, **disturbed(share)) for n, share in enumerate(shares)]
    report.rows += [row("b", 9)]  # which does not say it
    report.conclude()

    # when it is published,
    options = cli.parse(["--html", str(tmp_path / "a.html"), "--json", str(tmp_path / "a.json")])
    code = cli.publish(report, options)

    # then the page, the file, the terminal and the exit code say so, or else there is advice.
    printed = capsys.readouterr()
    found = words((tmp_path / "a.html").read_text("utf-8"))
    document = json.loads((tmp_path / "a.json").read_text())
    assert code == (3 if worthless else 0)
    for text in (found, printed.err, document["disturbance"]):
        assert ("Other programs had" in text) is worthless
    for text in (found, printed.out, document["advice"]):
        assert ("Use it." in text) is not worthless
    assert "Reached" in found or worthless
    assert printed.out.splitlines()[-1] == f"report: {tmp_path / 'a.html'}"


def test_an_error_weighs_more_than_a_disturbance(tmp_path: Path):
    report = made(1)
    report.rows = [row("a", 9, errors=1, **disturbed(50))]
    assert cli.publish(report, cli.parse(["--html", str(tmp_path / "a.html")])) == 1


def test_a_path_costs_more_if_it_did_in_each_round():
    cpu = {"plain": (500, 510, 490), "signed": (520, 531, 512), "journalled": (499, 512, 495)}
    rows = [
        row("redis", 9, repeat=n, case=case, cpu_us={"all": each})
        for case, values in cpu.items()
        for n, each in enumerate(values)
    ]
    assert paths.conclude(Report("paths", rows=rows), ["redis", "pika"]) == (
        "Beside a plain route with redis, which takes 500 µs of CPU a request in all processes: "
        "signed +21 µs. No difference in each round: journalled."
    )
    assert paths.conclude(Report("paths", rows=rows[::3]), ["redis"]) == ""
