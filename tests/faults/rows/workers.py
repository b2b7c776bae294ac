"""Rows 12-17: what workers may do, and what may be done to them."""

from __future__ import annotations

import os
import random
import signal
import time
from time import monotonic

from gateway.stack.server import poll
from tests.faults.lane import Lane, ask
from tests.faults.rows.brokers import BOTH
from tests.faults.servers import channel, port_of
from tests.faults.trial import Trial

BUSY = "/echo?seconds=0.025"
LIMIT = 20  # deliveries of a message of a quorum queue, after the first


def child_killed(trial: Trial) -> None:
    """kill -9 of one pool process after the other, every half second."""
    trial.open(targets=(BUSY,))
    with trial.load(), trial.fault():
        for _ in trial.times(20, short=5):
            for lane in trial.lanes:
                children = [pid for pid in lane.worker.pids() if pid != lane.worker.pid]
                os.kill(random.choice(children), signal.SIGKILL)
            time.sleep(0.5)
    for lane in trial.lanes:
        again = sum(one.redelivered for one in lane.executions())
        lane.notes["redelivered"] = again
        lane.expect(again, "no task was hit")


def whole_killed(trial: Trial) -> None:
    """kill -9 of the main process and all children; another starts."""
    trial.open(targets=BOTH)
    with trial.load(), trial.fault():
        for _ in range(2):
            trial.each(lambda lane: lane.worker.kill())
            trial.each(lambda lane: lane.worker.restart())


def killed_after_the_effect(trial: Trial) -> None:
    """Each hundredth task kills its process when it has taken effect, before it is acknowledged."""
    trial.open(targets=("/echo?die=once", *[BUSY] * 99))
    with trial.load(), trial.fault():
        time.sleep(10)
    for lane in trial.lanes:
        # The load before and after is part of the fault.
        marked = {one.id for one in lane.sender.sent if "die" in one.target}
        again = {one.id for one in lane.executions() if one.attempt == 2}
        lane.expect(marked and marked <= again, f"not run again: {sorted(marked - again)[:5]}")


def poison(trial: Trial) -> None:
    """A task that kills its process each time, on a classic queue and on a quorum queue."""
    for strategy in trial.strategies:
        for quorum in (False, True):
            label = "quorum queue" if quorum else "classic queue"
            lane = trial.lane(strategy, quorum=quorum, label=label)
            lane.start_worker()
            lane.start_gateway()
            trial.send_to(lane, port_of(lane.gateway), rate=50)
    with trial.load(), trial.fault():
        # A task that somebody waits for is not begun again after the deadline.
        answers = [
            trial.client.start_soon(
                lane.sender.send("/accept?die=always" if lane.quorum else "/echo?die=always")
            )
            for lane in trial.lanes
        ]
        for lane, answer in zip(trial.lanes, answers, strict=True):
            poisoned = answer()
            lane.excused.add(poisoned.id)
            wanted, attempts = (202, LIMIT + 1) if lane.quorum else (502, 2)
            lane.expect(poisoned.status == wanted, f"poison: {poisoned.status}, not {wanted}")
            poll(lambda lane=lane, n=attempts, p=poisoned: _attempts(lane, p.id) >= n, 60)
    dead: list[bytes] = []
    for lane in trial.lanes:
        (poisoned,) = lane.excused
        attempts, wanted = _attempts(lane, poisoned), LIMIT + 1 if lane.quorum else 2
        lane.expect(attempts == wanted, f"poison ran {attempts} times, not {wanted}")
        if lane.quorum:
            buried = poll(lambda p=poisoned: _is_buried(trial, p, dead), 10)
            lane.expect(buried, "no dead letter")


def _is_buried(trial: Trial, identity: str, dead: list[bytes]) -> bool:
    """Add the next dead letter to `dead`, and look for the request's among all."""
    with channel(trial.broker) as amqp:
        message = amqp.basic_get("gateway.dead", no_ack=True)
    if message is not None:
        dead.append(message.body.encode() if isinstance(message.body, str) else message.body)
    return any(b'"%b"' % identity.encode() in body for body in dead)


def _attempts(lane: Lane, identity: str) -> int:
    return sum(one.id == identity for one in lane.executions())


def stopped(trial: Trial) -> None:
    """SIGSTOP of all workers for 10 s, past the requests' deadline of 4 s."""
    trial.open(targets=("/echo", "/echo", "/echo", "/accept"))
    with trial.load(), trial.fault():
        for lane in trial.lanes:
            lane.worker.freeze()
        frozen = monotonic()
        time.sleep(10)
        thawed = monotonic()
        for lane in trial.lanes:
            lane.worker.thaw()
    for lane in trial.lanes:
        lane.drain()
        sent = [s for s in lane.sender.sent if frozen + 0.5 < s.at < thawed - trial.deadline - 1.5]
        expired = {one.id for one in sent if one.path == "/echo"}
        begun = expired & lane.executed()
        lane.expect(expired, "nothing has expired")
        lane.expect(not begun, f"{len(begun)} expired tasks were begun")
        later = [one for one in sent if one.status == 202]
        unread = [one for one in later if ask(_local(lane, one.location)) != one.id]
        lane.expect(later, "nothing was accepted")
        lane.expect(not unread, f"{len(unread)} of {len(later)} late results cannot be read")


def _local(lane: Lane, location: str) -> str:
    """Return where the gateway itself has what senders find below ``public_url``."""
    return f"{lane.gateway.url}/results/{location.rpartition('/results/')[2]}"


def redeployed(trial: Trial) -> None:
    """SIGTERM under load while the next one is there already, three times."""
    trial.open(targets=(BUSY,))

    def redeploy(lane: Lane) -> None:
        lane.start_worker()
        lane.workers.pop(0).stop(timeout=60)

    with trial.load(), trial.fault():
        for _ in range(3):
            trial.each(redeploy)
