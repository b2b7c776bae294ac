"""What is broken fails a run of the load test with its reason in the report."""

from __future__ import annotations

import argparse
import json
import signal
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.stack import ProgramMissing, StackError
from loadtest import cli
from loadtest.bench import Front
from loadtest.load import Load
from loadtest.report import Report
from loadtest.trials import Trial, alternate
from loadtest.wrk import WrkError
from tests.support.rows import row


def measured(front: Front) -> dict:
    found = row("", 100, cores={"others_percent": 0.0})
    return {name: value for name, value in found.items() if name not in ("strategy", "repeat")}


def trial(name: str, fault: Exception | None = None, in_load: bool = False) -> Trial:
    def start() -> AbstractContextManager[Front]:
        if fault and not in_load:
            raise fault
        return nullcontext(Front(""))

    def measure(front: Front) -> dict:
        if fault and in_load:
            raise fault
        return measured(front)

    return Trial(name, start, [Load("64 connections", 1, measure)], checked=False)


def test_a_strategy_that_does_not_start_or_cannot_be_loaded_leaves_the_others_their_figures():
    report = Report("mine", options={"repeats": 2})
    trials = [
        trial("good"),
        trial("broken", StackError("gateway: no module named gevent")),
        trial("hung", WrkError("wrk was still running 60 s after its time"), in_load=True),
    ]
    faulty = alternate(trials, argparse.Namespace(repeats=2, checked=1), report)
    assert faulty == {"broken", "hung"}
    assert [row["strategy"] for row in report.rows] == ["good", "good"]
    assert report.problems() == [
        f"{name}, repeat {n}: {why}"
        for n in (1, 2)
        for name, why in (
            ("broken", "gateway: no module named gevent"),
            ("hung", "wrk was still running 60 s after its time"),
        )
    ]


@pytest.mark.parametrize("missing", ["wrk", "rabbitmq-server", "redis-server"])
def test_a_missing_server_is_the_reason_in_the_report(
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    # Given a machine without one of the programs,
    def start(name: str) -> SimpleNamespace:
        if name == missing:
            raise ProgramMissing(f"{name} is missing: install {name}")
        return SimpleNamespace(url="redis://127.0.0.1:1/0")

    stack = SimpleNamespace(
        rabbitmq=lambda: start("rabbitmq-server"),
        redis=lambda: start("redis-server"),
        directory=tmp_path,
    )
    monkeypatch.setattr(cli, "Stack", lambda: nullcontext(stack))
    monkeypatch.setattr(cli.wrk, "program", lambda: start("wrk"))
    monkeypatch.setattr(cli.machine, "versions", dict)
    monkeypatch.setattr(cli, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(signal, "signal", lambda *args: None)

    # when an experiment is run,
    code = cli.main(["strategies", "--json", str(tmp_path / "report.json")])

    # then it fails with that reason, on the terminal, in the file and on the page.
    said = f"{missing} is missing: install {missing}"
    assert code == 1
    captured = capsys.readouterr()
    assert captured.err == f"loadtest: {said}\n"
    assert "nothing was measured" in captured.out
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["problems"] == [said] and document["rows"] == []
    page = (tmp_path / "pages" / "strategies.html").read_text("utf-8")
    assert f"A failed run:<ul><li>{said}</li>" in page
    assert captured.out.splitlines()[-1] == f"report: {tmp_path / 'pages' / 'strategies.html'}"
