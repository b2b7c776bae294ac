"""Seeds of the simulator: some, and each one that has ever found a defect."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.simulation.stages import CELLS

pytestmark = pytest.mark.usefixtures("unmeasured")

#: The seeds of defects that were mended: strategy, seed, what was wrong.
FOUND = {
    ("pika", 500031): "the bytes of a try whose task an earlier one has published stayed counted",
    ("redis", 500032): "the same",
    ("pika", 307): "an acceptance that the journal delays came after deadline and half second",
    ("pika", 500157): "a late result was not fetched again soon where Redis had not answered",
    ("pika", 76): "a publisher that stopped while it connected left its connection open",
    ("redis", 543): "a try that had sent a message was told later that nothing runs",
    ("redis", 5073): "a drain took a request on an idle connection, and cut it off at its end",
    ("redis", 44): "a result that another gateway had sent late was listened for",
    ("pika", 5000674): "after an outage of Redis a claim was taken over before its end was written",
    ("redis", 5000758): "a result was given in an answer, and then sent for an earlier try",
    ("redis", 5010053): "what became of a late answer was given up before others decide it",
    ("pika", 18): "what had to be sent late was not written after Redis was back",
    ("redis", 7300108): "a delivery whose sender left before its claim stayed accepted",
    ("redis", 5041107): "a message that came twice failed, then succeeded, and ran again",
    ("redis", 5043714): "the same, where others were told of the failure first",
    ("worker", 406): "known losses were forgotten before the acknowledgement was sent",
    ("worker", 168): "a reply was written to a connection that had ended after its answer",
    ("worker", 485): "results that were held waited for the confirm of a dead letter",
    ("redis", 2000144): "a subscription stayed with a former primary",
    ("redis", 2000446): "the same",
    ("redis", 9100186): "the journal said that a result was not sent late which another try's was",
    ("pika", 5052174): "a try whose sender had left long before took back a late answer",
    ("redis", 6): "a task ran again, as the process that listened for its result was reloaded",
    ("pika", 5053787): "a late answer not written when its process ended was lost without a word",
}


def simulate(*arguments: str) -> str:
    """Run the command in a process of its own, whose clocks are replaced; return what it prints."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def found(strategies: str) -> set[int]:
    return {seed for strategy, seed in FOUND if strategy in strategies.split(",")}


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("strategies", "seeds"),
    [
        ("pika,redis", {*range(500000, 500200), *found("pika,redis")}),
        ("worker", {*range(1, 101), *found("worker")}),
    ],
    ids=["pika,redis", "worker"],
)
def test_no_seed_breaks_a_promise_nor_one_that_has_found_a_defect(strategies, seeds, tmp_path):
    count, file = len(seeds) * len(strategies.split(",")), tmp_path / "summary.json"
    numbers = ",".join(map(str, sorted(seeds)))
    said = simulate("--strategies", strategies, "--seeds", numbers, "--json", str(file))
    assert said.splitlines()[-1].startswith(f"{count} seeds, 0 violations, ")
    # Each event of each stage has happened.
    assert set(json.loads(file.read_text())["stages"]) == (CELLS if "pika" in strategies else set())


@pytest.mark.parametrize(("strategy", "seed"), [("redis", 500001), ("worker", 29)], ids=str)
def test_a_seed_is_the_same_run_whatever_the_hash_seed_is(monkeypatch, strategy, seed):
    digests = set()
    for number in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", number)
        digests.add(simulate("--strategies", strategy, "--trace", str(seed)).splitlines()[-1])
    assert len(digests) == 1 and digests.pop().startswith("digest ")
