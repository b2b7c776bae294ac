"""Experiments that break, one by one or all in a row, leave the others their figures."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from amqp.exceptions import ConnectionForced
from kombu.exceptions import OperationalError
from pika.exceptions import AMQPConnectionError

from gateway.stack import ProgramMissing, StackError
from loadtest import all as every
from loadtest import cli, figures, machine
from loadtest.bench import Front
from loadtest.experiments import EXPERIMENTS, separate
from loadtest.load import Load, see_that_schedules_were_kept
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
        line
        for n in (1, 2)
        for line in (
            f"broken, repeat {n}: gateway: no module named gevent",
            f"hung, repeat {n}: wrk was still running 60 s after its time",
        )
    ]


@pytest.mark.parametrize(
    "fault",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        AMQPConnectionError("the broker is gone"),
        ConnectionForced("CONNECTION_FORCED"),
        OperationalError("[Errno 111] Connection refused"),
        redis.ConnectionError("Connection closed by server."),
        TimeoutError(),
    ],
)
def test_a_server_that_goes_away_in_a_measurement_leaves_the_others_their_figures(fault: Exception):
    report = Report("mine", options={"repeats": 1})
    trials = [trial("good"), trial("gone", fault, in_load=True)]
    assert alternate(trials, argparse.Namespace(repeats=1, checked=1), report) == {"gone"}
    assert [row["strategy"] for row in report.rows] == ["good"]
    (problem,) = report.problems()
    assert problem == f"gone, repeat 1: {type(fault).__name__}: {fault}".removesuffix(": ")


def test_a_mistake_in_the_load_test_is_no_server_that_went_away():
    trials = [trial("wrong", FileNotFoundError(2, "No such file", "x.toml"), in_load=True)]
    with pytest.raises(FileNotFoundError):
        alternate(trials, argparse.Namespace(repeats=1, checked=1), Report("mine"))


def test_a_run_without_a_measurement_has_failed():
    assert Report("capacity").problems() == ["capacity has nothing to measure with these options"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("capacity --strategies blocking", "capacity: --strategies: it measures pika and redis"),
        ("separate --task echo", "separate: --task: the slow route needs one that sleeps"),
        ("pools --task echo", "pools: --task: it compares tasks that wait, as sleep:2"),
        ("consumers --requests 99", "consumers: there are 100 queues: choose at most 100"),
        ("consumers --connections 101", "consumers: there are 100 queues: choose at most 100"),
    ],
)
def test_options_that_an_experiment_cannot_use_are_told_before_anything_is_measured(
    argv, said, tmp_path, monkeypatch, capsys
):
    page = tmp_path / "page.html"
    monkeypatch.setattr(cli.wrk, "program", lambda: "wrk")
    monkeypatch.setattr(cli, "Stack", nullcontext)  # which starts nothing
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert cli.main([*argv.split(), "--html", str(page)]) == 2
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
    assert capsys.readouterr().err.startswith(f"loadtest: {said}")
    assert not page.exists()


def test_code_that_changes_while_it_is_measured_fails_the_run(monkeypatch, tmp_path):
    commits = iter(["1234", "5678"])
    monkeypatch.setattr(cli.machine, "commit", lambda: next(commits))
    stack = SimpleNamespace(directory=tmp_path)
    experiment = SimpleNamespace(
        DEFAULTS={}, run=lambda options, stack: Report("cost", rows=[row("pika", 100)])
    )
    monkeypatch.setattr(cli, "find", lambda name: experiment)
    report = cli.measure(cli.parse(["cost"]), stack)
    assert (report.commit, report.problems()) == (
        "1234", ["a file or a commit was changed meanwhile: measure again"],
    )  # fmt: skip


def test_beside_a_flood_504s_are_forgiven_and_nothing_else():
    kinds = ("connect", "read", "write", "timeout", "status", "expired", "missing")
    errors = dict.fromkeys(kinds, 0)
    schedule = {"rate": 40.0, "sent": 40.0}
    echoes = {**row("pika", 100), "wrong_answers": 1}
    echoes["errors_by_kind"] = {**errors, "expired": 7, "status": 2}
    flood = {
        "requests": 90, "wrong_answers": 0, "schedule": schedule,
        "errors": {**errors, "expired": 80, "missing": 3},
    }  # fmt: skip
    found = separate.flooded(echoes, flood)
    assert (found["unanswered"], found["errors"], found["wrong_answers"]) == (7, 5, 1)
    assert found["flood"] == {"requests": 90, "unanswered": 80, "schedule": schedule}
    report = Report("separate", rows=[found])
    assert report.problems() == [
        "pika, repeat 1, 64 connections: 2 status, 3 missing of the flood, 1 wrong answers"
    ]


def test_a_schedule_that_was_not_kept_fails_the_run():
    def sent(rate: float) -> dict[str, float]:
        return {"rate": 100.0, "sent": rate}

    kept = {**row("pika", 100), "schedule": sent(99), "flood": {"schedule": sent(99)}}
    late = {**row("redis", 98), "schedule": sent(98), "flood": {"schedule": sent(20)}}
    report = Report("openloop", rows=[kept, late])
    see_that_schedules_were_kept(report)
    assert report.problems() == [
        f"redis, repeat 1, 64 connections: {who} sent {rate} a second where 100.0 were due"
        for who, rate in (("the client", 98), ("the flood's client", 20))
    ]


@pytest.mark.parametrize("missing", ["wrk", "rabbitmq-server", "redis-server"])
def test_a_missing_server_is_the_reason_in_the_report(missing, tmp_path, monkeypatch, capsys):
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


#: Writes a report as its name says, or none, or hangs until it is told to stop.
EXPERIMENT = """\
import json, os, signal, sys
from pathlib import Path

name, options = sys.argv[1], sys.argv[2:]
report = {"rows": [{}, {}], "problems": [], "targets": [{"reached": True}, {"reached": None}]}
report["commit"] = "1234"
report["disturbance"] = "Others had half of it." if name == "disturbed" else ""
if name == "hanging":
    signal.sigwait([signal.SIGTERM])
    print("stopped")
    sys.exit(130)
if name == "interrupted":
    os.kill(os.getppid(), signal.SIGINT)
    signal.sigwait([signal.SIGTERM])
    sys.exit(130)
if name == "wrong":
    report["problems"] = ["pika, repeat 1: 3 wrong answers", "another"]
if name == "broken":
    print("loadtest: RabbitMQ is not ready", file=sys.stderr)
elif name != "silent":
    Path(options[options.index("--json") + 1]).write_text(json.dumps(report))
    Path(options[options.index("--html") + 1]).write_text(" ".join(options))
    (Path(options[options.index("--plots") + 1]) / f"{name}-lines.svg").write_text("<svg/>")
if name == "pageless":
    print("Traceback, at the page")
sys.exit({"right": 0, "disturbed": 3}.get(name, 1))
"""
NAMES = ["broken", "silent", "wrong", "pageless", "disturbed", "right"]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where output goes, with experiments that do nothing but what their names say."""
    (tmp_path / "experiment.py").write_text(EXPERIMENT)
    monkeypatch.setattr(every, "COMMAND", [sys.executable, str(tmp_path / "experiment.py")])
    monkeypatch.setattr(every, "DIRECTORY", tmp_path / "output")
    monkeypatch.setattr(every, "EXPERIMENTS", {name: f"what is {name}" for name in NAMES})
    monkeypatch.setattr(every, "SHORT", dict.fromkeys(NAMES, (9, "--repeats 1")))
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path / "output"
    signal.signal(signal.SIGTERM, handler)


def test_a_failure_is_told_and_the_next_experiment_runs(directory, capsys):
    assert every.main([]) == 1
    said = capsys.readouterr().out
    assert said.startswith("6 experiments, about 0:00:54; ")
    assert "broken: what is broken" in said
    assert f"FAILED: RabbitMQ is not ready; see {directory}/broken.log (" in said
    assert f"FAILED: exit code 1; see {directory}/silent.log (" in said
    assert "FAILED: exit code 1: Traceback, at the page; see" in said
    assert "ok: 2 measurements, 1 of 1 bounds reached; other programs have disturbed it (" in said
    assert f"FAILED: pika, repeat 1: 3 wrong answers, and 1 more; see {directory}/wrong.log" in said
    assert "ok: 2 measurements, 1 of 1 bounds reached (" in said
    assert said.endswith("2 well, 4 failed\n")
    assert (directory / "right.html").read_text().startswith("--repeats 1 ")


def test_what_hangs_is_told_to_stop_and_has_failed(directory, monkeypatch, capsys):
    monkeypatch.setattr(every, "EXPERIMENTS", {"hanging": ""})
    monkeypatch.setattr(every, "SHORT", {"hanging": (0, "")})
    monkeypatch.setattr(every, "START", 0.1)
    # It inherits this, and waits for the signal even where that comes before it begins to.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        assert every.main([]) == 1
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert "FAILED: it hung" in capsys.readouterr().out
    assert (directory / "hanging.log").read_text() == "stopped\n"


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        ("right wrong", 1),
        ("right disturbed pageless", 1),
        ("right", 0),
        ("right interrupted wrong", 130),
    ],
)
def test_reports_of_what_went_well_replace_the_committed_ones(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, code: int
):
    # Given committed reports, of which one experiment fails today,
    reports, written = tmp_path / "reports", []
    reports.mkdir()
    (reports / "wrong.json").write_text("old")
    # and what a run before has left,
    directory.mkdir()
    (directory / "right-of-a-short-form.svg").write_text("<svg/>")
    monkeypatch.setattr(figures, "REPORTS", reports)
    monkeypatch.setattr(figures, "main", lambda: written.append(True))
    monkeypatch.setattr(machine, "commit", lambda: "1234")
    names = [*NAMES, "interrupted"]
    monkeypatch.setattr(every, "EXPERIMENTS", dict.fromkeys(names, ""))
    monkeypatch.setattr(every, "FULL", dict.fromkeys(names, (1, "--duration 9")))

    # when they are made again,
    assert every.main(["--reports", *chosen.split()]) == code

    # then the others are replaced, and their figures are in the documents.
    assert {path.name for path in reports.iterdir()} == {"wrong.json", "right.json"}
    assert (reports / "wrong.json").read_text() == "old"
    assert json.loads((reports / "right.json").read_text())["problems"] == []
    assert written == [True]


def test_no_report_is_made_of_code_that_has_no_commit(directory, monkeypatch, capsys):
    monkeypatch.setattr(machine, "commit", lambda: "1234-dirty")
    assert every.main(["--reports"]) == 1
    assert "commit what is changed here" in capsys.readouterr().err
    assert not directory.exists()


def test_every_experiment_has_a_short_form_within_ten_minutes():
    assert every.SHORT.keys() == EXPERIMENTS.keys(), "each needs a line in loadtest/all.py"
    assert sum(seconds for seconds, _ in every.SHORT.values()) <= 600
    for name, (_, options) in every.SHORT.items():
        assert cli.parse([name, *options.split()]).experiment == name


def test_every_committed_report_can_be_made_again():
    reports = {path.stem for path in figures.REPORTS.glob("*.json")}
    # `make faults`, `make simulate`, `loadtest/run.sh capacity --costs`
    others = {"faults", "cluster-faults", "random-faults", "simulation", "deployment"}
    assert every.FULL.keys() >= reports - others, "each needs a line in loadtest/all.py"
    for name, (_, options) in every.FULL.items():
        assert cli.parse([name, *options.split()]).experiment == name
