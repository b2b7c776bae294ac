"""Rows 22-26: gateways killed, restarted, rolled over, frozen."""

from __future__ import annotations

import os
import signal
import time
from time import monotonic

from gateway.stack.server import poll
from tests.faults.faults import FROZEN, Fault
from tests.faults.lane import Lane
from tests.faults.trial import Trial, row
from tests.simulation.records import RESET

CRASHES = 5  # at each place
PATIENCE = 20.0  # seconds in which a sender's retries must succeed
RELOADS = 20
ROUNDS = 5  # of restarts of four services in turn
SERVICES = 4
GRACE = 30.0  # seconds: the default
SENDERS = 100  # requests under way at any time
LONG = 2  # seconds
ONCE = "/once?seconds=0.2"  # or its result might come before its confirm


@row(22, "gateway killed after the confirm", (RESET, 503, 504), same=False)
def killed_after_the_confirm(trial: Trial) -> None:
    """kill -9 when the broker has confirmed and nobody has been answered."""
    _crash(trial, "confirmed")


@row(23, "gateway killed before the confirm", (RESET, 503, 504), again=True, same=False)
def killed_before_the_confirm(trial: Trial) -> None:
    """kill -9 when nothing is published, and when nothing is confirmed."""
    _crash(trial, "claimed", "published")


def _crash(trial: Trial, *places: str) -> None:
    for place in places:
        for strategy in trial.strategies:
            trial.lane(strategy, label=place)

    def start(lane: Lane) -> None:
        failpoint = f"{lane.label}:{lane.directory / 'armed'}"
        trial.serve(lane, gateway={"env": {"GATEWAY_FAILPOINT": failpoint}})

    trial.each(start)
    trial.warm()
    with trial.fault():
        for number in trial.times(CRASHES, short=1):
            # A name that no other row has claimed.
            trial.each(lambda lane, n=number: _crash_once(trial, lane, f"{lane.queue}-{n}"))


def _crash_once(trial: Trial, lane: Lane, identity: str) -> None:
    """Send a delivery that kills the gateway; try again until it is answered."""
    (lane.directory / "armed").touch()

    def send():
        return trial.client.run(lane.sender.send(ONCE, body=identity))

    first = send()
    lane.expect(first.status == RESET, f"{identity} did not kill it: {first.status}")
    end = monotonic() + PATIENCE
    while not (again := send()).good and monotonic() < end:
        time.sleep(0.5)
    answered = round(again.answered - first.answered, 1)
    lane.notes["slowest_retry"] = max(lane.notes.get("slowest_retry", 0), answered)
    lane.expect(again.good, f"{identity} was never answered: {again.status}")


@row(24, "gateway restarted, replies for nobody", (RESET, 503), same=False)
def restarted(trial: Trial) -> None:
    """kill -9 of the serving process while it waits for results, which then are nobody's."""
    trial.open(targets=("/echo", "/echo?seconds=0.05"))
    with trial.load(), trial.fault():
        for _ in range(3):
            trial.each(_replace)
            time.sleep(3)
    for lane in trial.lanes:
        left = {one.delivery for one in lane.tries(RESET)}
        lane.notes["outlived"] = len(left & lane.executed())
        lane.expect(left & lane.executed(), "no task outlived its gateway")


def _replace(lane: Lane) -> None:
    """Kill the serving process; wait until another serves."""
    (old,) = [child["pid"] for child in lane.checks()]
    os.kill(old, signal.SIGKILL)

    def another() -> bool:
        return any(child.pop("pid") != old and not any(child.values()) for child in lane.checks())

    lane.expect(poll(another, 15), "no other child serves")


@row(25, "rolling restart behind nginx", same=False)
def rolled(trial: Trial) -> None:
    """Behind nginx: SIGHUP of a parent with four children, SIGTERM of four services in turn."""
    services, seconds = trial.choose(SERVICES, short=2), trial.choose(LONG, short=1)
    parents = [trial.lane(strategy, label="SIGHUP") for strategy in trial.strategies]
    for strategy in trial.strategies:
        trial.lane(strategy, label="SIGTERM in turn")

    def start(lane: Lane) -> None:
        alone = lane in parents
        trial.serve(
            lane,
            *([f"--processes={services}"] if alone else []),
            services=1 if alone else services,
            worker={"pool": "threads", "concurrency": SENDERS + 10},
            nginx={},
            targets=(f"/echo?seconds={seconds}",),
            rate=SENDERS / LONG * trial.size.share,
        )

    def reload(lane: Lane) -> None:
        told = "supervisor: reloaded"
        for number in trial.times(RELOADS, short=1):
            os.kill(lane.gateway.pid, signal.SIGHUP)
            if not poll(lambda n=number: lane.gateway.output().count(told) > n, 60):
                return lane.expect(False, f"reload {number + 1} did not end")

    def restart(lane: Lane) -> None:
        for _ in trial.times(ROUNDS, short=1):
            for gateway in lane.gateways:
                asked = monotonic()
                gateway.stop(timeout=1.5 * GRACE)
                took = round(monotonic() - asked, 1)
                lane.notes["slowest_stop"] = max(lane.notes.get("slowest_stop", 0), took)
                lane.expect(took < GRACE, f"SIGTERM ended a service only after {took} s")
                gateway.restart()

    trial.each(start)
    with trial.load(), trial.fault():
        trial.each(lambda lane: (reload if lane in parents else restart)(lane))


@row(26, "one gateway of four frozen", (504,), deadline=5)
def frozen(trial: Trial) -> None:
    """SIGSTOP of one of four gateways; nginx is told to wait for an answer for 5 s only."""
    trial.open(services=SERVICES, nginx={"proxy_read_timeout": "5s"})
    trial.suffer(Fault(0, "gateway-1", FROZEN, 10))
    for lane in trial.lanes:
        during = lane.tries(since=lane.window.began, until=lane.window.ended)
        timed_out = lane.notes["timed_out"] = sum(one.status == 504 for one in during)
        lane.expect(timed_out, "nobody met the frozen gateway")
        lane.expect(timed_out < len(during) / 4, f"{timed_out} of {len(during)} timed out")
