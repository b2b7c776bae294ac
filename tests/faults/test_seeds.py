"""The short form of the random faults, and what becomes of lanes side by side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.stack.server import poll
from tests.faults import options, seeds
from tests.faults.oracle import SeedResult
from tests.faults.report import Report, line, table
from tests.faults.seeds import SHORT, Job, Size
from tests.support.stack import RabbitMQ

pytestmark = pytest.mark.usefixtures("unmeasured")

ROOT = Path(__file__).parents[2]
#: It breaks each kind of server, some together: broker, Redis, worker and gateways.
SEED = 7


def test_nothing_that_was_acknowledged_is_lost(broker: RabbitMQ, start, tmp_path: Path):
    result, versions = start(lambda: seeds.run(Job(SEED, "pika", SHORT, tmp_path), broker))

    assert result.holds, line(result)
    assert result.acknowledged > 100
    assert versions.keys() in ({"rabbitmq", "redis"}, {"rabbitmq", "valkey"})


def test_a_lane_that_cannot_be_run_holds_for_nobody_and_stops_no_other(tmp_path: Path, capfd):
    jobs = [Job(seed, "pika", Size(seconds="no number"), tmp_path) for seed in (1, 2)]

    found = list(seeds.run_all(jobs, at_once=2))

    assert sorted(result.seed for result, _ in found) == [1, 2]
    for result, _ in found:
        assert result.problems == ["could not be run: its process ended with 1"]
    assert "TypeError" in capfd.readouterr().err


@pytest.mark.long
def test_who_interrupts_it_waits_until_all_is_stopped(tmp_path: Path):
    argv = [sys.executable, "-m", "tests.faults", "--random", "--seeds", "1,2", "--at-once", "2"]
    argv += ["--strategies", "pika", "--json", str(tmp_path / "random.json")]
    log, env = tmp_path / "log", os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=output, stderr=output)
    try:
        # One is being started when all is over.
        assert poll(lambda: len(list(tmp_path.glob("gateway-stack-*/*.log"))) >= 2, 60)
        process.send_signal(signal.SIGTERM)

        assert process.wait(60) == 130
    finally:
        process.kill()
    assert "interrupted" in log.read_text()
    assert list(tmp_path.glob("gateway-stack-*")) == []


RESULT = SeedResult(
    seed=7, strategy="redis", seconds=120.0, **dict.fromkeys(SeedResult.COLUMNS, 3),
    statuses={"200": 2}, schedule=["   0.0 s  redis killed for 1.0 s"],
    injected=["   0.0 to    1.4 s  redis killed for 1.0 s"],
)  # fmt: skip


def test_a_result_is_a_line_and_one_that_does_not_hold_shows_the_faults():
    broken = replace(RESULT, problems=["lost: 1 (...)"])

    assert line(RESULT).count("\n") == 0
    assert "seed   7 holds  redis" in line(RESULT)
    assert "second ids 3" in line(RESULT)
    assert line(broken).splitlines()[1:] == [
        "    lost: 1 (...)",
        "       0.0 to    1.4 s  redis killed for 1.0 s",
    ]


def test_the_table_ends_with_the_sums_and_the_slowest_recovery():
    broken = replace(RESULT, seed=8, recovery=4.5, problems=["late: 1"])

    *_, last = table([RESULT, broken]).splitlines()
    cells = [cell.strip() for cell in last.strip("|").split("|")]
    assert cells == ["all", "", *["6"] * (len(SeedResult.COLUMNS) - 1), "4.5", "1 of 2 broken"]


def test_what_is_known_to_hold_is_left_out(tmp_path: Path):
    path = tmp_path / "random.json"
    report = Report(path, False, "random-faults", SeedResult)
    report.add([RESULT], {"redis": "7.0.15"})
    before = path.read_text()

    asked = {"seeds": [7], "strategies": ["redis"], "seconds": 120.0, "resume": True}
    assert seeds.run_seeds(Namespace(json=path, logs=False, at_once=1, **asked))

    assert path.read_text() == before
    assert json.loads(before)["experiment"] == "random-faults"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("", {"rows": options.ALONE, "minutes": 42, "json": Path("build/faults.json")}),
        ("--rows cluster", {"rows": options.CLUSTER}),
        ("--random",
         {"strategies": ["pika", "redis", "ioloop"], "seconds": 120, "seeds": [*range(1, 21)],
          "json": Path("build/random-faults.json")}),
        ("--random --minutes 0.5 --seeds 3,5-6", {"seconds": 30, "seeds": [3, 5, 6]}),
        ("--random --seconds 20 --json x.json", {"seconds": 20, "json": Path("x.json")}),
    ],
)  # fmt: skip
def test_options_have_the_values_that_go_with_rows_or_seeds(monkeypatch, given: str, meant: dict):
    monkeypatch.setattr(sys, "argv", ["faults", *given.split()])

    chosen = vars(options.parse(None))
    assert {name: chosen[name] for name in meant} == meant


@pytest.mark.parametrize(
    "given",
    ["--random --strategies blocking", "--random --seconds 0", "--at-once 0", "--seeds x"],
)
def test_options_that_cannot_be_meant_are_refused(monkeypatch, capsys, given: str):
    monkeypatch.setattr(sys, "argv", ["faults", *given.split()])

    with pytest.raises(SystemExit, match="2"):
        options.parse(None)
