"""`make loadtest` and `make reports` run all experiments, and go on after one that fails."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest import all as every
from loadtest import cli, figures, machine
from loadtest.experiments import EXPERIMENTS

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


def test_all_well_is_the_exit_code_0(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(every, "EXPERIMENTS", {"right": ""})
    assert every.main([]) == 0


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
