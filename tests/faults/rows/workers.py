"""Rows 12-17: what workers may do, and what may be done to them."""

from __future__ import annotations

import os
import random
import signal
import time

from appserver.poison import BEGUN_AGAIN
from gateway.stack.server import poll
from tests.faults.faults import FROZEN, KILLED, Fault
from tests.faults.lane import Lane, ask
from tests.faults.rows.brokers import BOTH
from tests.faults.servers import channel
from tests.faults.trial import ALL, Trial, row

BUSY = 2.5  # tasks under way at any time
HITS = 20  # pool processes killed at a task
LIMIT = 20  # deliveries of a message of a quorum queue, after the first


@row(12, "worker's children killed", again=True)
def child_killed(trial: Trial) -> None:
    """kill -9 of one pool process after the other."""
    trial.open(targets=(_busy(trial),))

    def hit(lane: Lane) -> None:
        for _ in trial.times(HITS, short=3):
            lane.expect(poll(lambda: _hit(lane), 15), "no task was hit")
            # Killed with the same message again and again, it would be poison.
            again = poll(lambda: _redelivered(lane) >= _lost(lane), 10)
            lane.expect(again, "what was hit did not run again")

    with trial.load(), trial.fault():
        trial.each(hit)
    for lane in trial.lanes:
        lane.notes["redelivered"] = _redelivered(lane)


def _busy(trial: Trial) -> str:
    return f"/echo?seconds={BUSY / trial.rate:g}"


def _hit(lane: Lane) -> bool:
    """Kill one of the pool's processes; was it at a task?"""
    before = _lost(lane)
    children = [pid for pid in lane.worker.pids() if pid != lane.worker.pid]
    if children:
        os.kill(random.choice(children), signal.SIGKILL)
    return poll(lambda: _lost(lane) > before, 1)


def _lost(lane: Lane) -> int:
    return lane.worker.output().count("raised error: WorkerLostError")


def _redelivered(lane: Lane) -> int:
    return sum(one.redelivered for one in lane.executions())


@row(13, "worker killed whole", (504,), again=True)
def whole_killed(trial: Trial) -> None:
    """kill -9 of the main process and all children; another starts."""
    trial.open(targets=BOTH)
    trial.suffer(*[Fault(0, "worker-1", KILLED, 0)] * 2)
    for lane in trial.lanes:
        lane.expect(_redelivered(lane), "nothing was under way")


@row(14, "killed before the ack", again=True)
def killed_after_the_effect(trial: Trial) -> None:
    """Each hundredth task kills its process when it has taken effect, before it is acknowledged."""
    trial.open(targets=("/echo?die=once", *[_busy(trial)] * 99))
    with trial.load(), trial.fault():
        time.sleep(10)
    for lane in trial.lanes:
        # The load before and after is part of the fault.
        marked = {one.delivery for one in lane.tries() if "die" in one.query}
        again = {one.id for one in lane.executions() if one.attempt == 2}
        lane.expect(marked and marked <= again, f"not run again: {sorted(marked - again)[:5]}")


@row(15, "poison task", again=True)
def poison(trial: Trial) -> None:
    """A task that kills its process each time, on a classic queue and on a quorum queue."""
    for strategy in trial.strategies:
        trial.lane(strategy, label="classic queue")
        trial.lane(strategy, label="quorum queue", quorum=True)
    # Each of a poison's deaths costs a new process, on both cores' account.
    trial.each(lambda lane: trial.serve(lane, rate=30))
    with trial.load(), trial.fault():
        # A task that somebody waits for is not begun again after the deadline.
        answers = [
            trial.client.start_soon(lane.sender.send("/accept?die=always")) for lane in trial.lanes
        ]
        poisoned = {lane: answer() for lane, answer in zip(trial.lanes, answers, strict=True)}
        for lane, one in poisoned.items():
            lane.excused.add(one.delivery)
            lane.expect(one.status == 202, f"poison: {one.status}, not 202")
            poll(lambda lane=lane, one=one: _attempts(lane, one.delivery) >= _limit(lane), 90)
    dead: list[bytes] = []
    for lane, one in poisoned.items():
        found = poll(lambda one=one: _is_dead_letter(trial, one.delivery, dead), 20)
        lane.expect(found, "no dead letter")
        attempts = _attempts(lane, one.delivery)
        lane.expect(attempts == _limit(lane), f"poison ran {attempts} times, not {_limit(lane)}")
        if not lane.quorum:
            outcome = lane.result_url(one)
            failed = poll(lambda url=outcome: "WorkerLostError" in ask(url), 10)
            lane.expect(failed, "the outcome cannot be read")


def _limit(lane: Lane) -> int:
    return (LIMIT if lane.quorum else BEGUN_AGAIN) + 1


def _is_dead_letter(trial: Trial, identity: str, dead: list[bytes]) -> bool:
    """Add the next dead letter to `dead`, and look for the request's among all."""
    with channel(trial.broker) as amqp:
        message = amqp.basic_get("gateway.dead", no_ack=True)
    if message is not None:
        dead.append(message.body.encode() if isinstance(message.body, str) else message.body)
    return any(b'"%b"' % identity.encode() in body for body in dead)


def _attempts(lane: Lane, identity: str) -> int:
    return sum(one.id == identity for one in lane.executions())


@row(16, "worker stopped", (504,), ALL, deadline=4)
def stopped(trial: Trial) -> None:
    """SIGSTOP of all workers for 12 s, past the requests' deadline of 4 s."""
    # In turn, as `blocking` comes to three or four meanwhile.
    trial.open(targets=("/echo", "/accept"))
    (frozen,) = trial.suffer(Fault(0, "worker-1", FROZEN, 12))
    for lane in trial.lanes:
        lane.drain()
        sent = lane.tries(since=frozen.began + 0.5, until=frozen.ended - trial.deadline - 1.5)
        expired = {one.delivery for one in sent if one.route == "/echo"}
        begun = expired & lane.executed()
        lane.expect(expired, "nothing has expired")
        lane.expect(not begun, f"{len(begun)} expired tasks were begun")
        later = [one for one in sent if one.status == 202]
        unread = [one for one in later if ask(lane.result_url(one)) != one.delivery]
        lane.expect(later, "nothing was accepted")
        lane.expect(not unread, f"{len(unread)} of {len(later)} late results cannot be read")


@row(17, "worker redeployed")
def redeployed(trial: Trial) -> None:
    """SIGTERM under load while the next one is there already, three times."""
    trial.open(targets=(_busy(trial),))

    def redeploy(lane: Lane) -> None:
        lane.start_worker()
        lane.workers.pop(0).stop(timeout=60)

    with trial.load(), trial.fault():
        for _ in range(3):
            trial.each(redeploy)
