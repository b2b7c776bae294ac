"""Rows 28-30: descriptors, clocks, log pipes."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import struct
import termios
import time
from contextlib import ExitStack

from gateway.sources import find
from gateway.sources.base import Draft
from gateway.stack.server import poll
from loadtest.stack import descriptors
from tests.faults.lane import SECRET, Lane
from tests.faults.servers import port_of
from tests.faults.trial import Trial, row
from tests.simulation.records import Try

STEP = 600  # seconds
PIPE = 4096  # bytes: the smallest there is
CROWD = 300  # connections that are opened and left idle
SPINNING = 0.7  # of a core: what a loop in a spin would be above


@row(28, "file descriptors run out")
def descriptors_run_out(trial: Trial) -> None:
    """prlimit --nofile of the serving process, and more connections than it allows."""
    trial.open()
    with trial.load(), trial.fault(), ExitStack() as crowd:
        limits = {}
        for lane in trial.lanes:
            (child,) = lane.checks()
            pid = child["pid"]
            # The soft limit only: who has lowered a hard one cannot raise it again.
            limits[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            few = descriptors(pid) + 20
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, limits[pid][1]))
        for lane in trial.lanes:
            for _ in range(CROWD):
                address = ("127.0.0.1", port_of(lane.gateway))
                crowd.enter_context(socket.create_connection(address))
        used = {lane: lane.gateway.cpu_seconds() for lane in trial.lanes}
        time.sleep(4)
        for lane in trial.lanes:
            share = (lane.gateway.cpu_seconds() - used[lane]) / 4
            lane.notes["cpu_share"] = round(share, 2)
            lane.expect(share < SPINNING, f"it spins: {share:.2f} of a core")
            told = "cannot accept connections" in lane.gateway.output()
            lane.expect(told, "the limit was not met, or nobody is told of it")
        crowd.close()
        for pid, limit in limits.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


@row(29, "clock stepped by 10 min", (502,))
def clock_stepped(trial: Trial) -> None:
    """The gateway's clock goes 10 min ahead, then 10 min behind; the workers' stays."""
    clock = trial.stack.clock()
    trial.open(gateway={"env": clock.env}, rate=50)
    with trial.load(), trial.fault():
        for step in (STEP, -STEP):
            # A request that is under way when the clock is stepped has its deadline all the same.
            waiting = [
                trial.client.start_soon(lane.sender.send("/echo?seconds=20"))
                for lane in trial.lanes
            ]
            time.sleep(0.5)
            clock.step(step)
            for lane in trial.lanes:
                _expect_verdict(trial, lane, stepped=True)
            for lane, late in zip(trial.lanes, waiting, strict=True):
                one = late()
                lane.excused.add(one.delivery)
                took = one.took
                lane.expect(
                    one.status == 504 and abs(took - trial.deadline) < 0.5,
                    f"a step of {step} s: {one.status} after {took:.2f} s",
                )
            clock.step(0)
            for lane in trial.lanes:
                _expect_verdict(trial, lane, stepped=False)
    # Workers discard what expired before it came: the gateway's clock has to be theirs.
    for lane in trial.lanes:
        unclear = [one.delivery for one in lane.tries(502) if "Revoked" not in one.body]
        lane.expect(not unclear, f"502 that do not say why: {unclear[:5]}")


def _expect_verdict(trial: Trial, lane: Lane, stepped: bool) -> None:
    """Sign with the true time; expect a 401 that says why where the gateway has another."""
    scheme = find("standard")
    options = scheme.options_class(scheme="standard", secrets=[SECRET])
    identity = f"{lane.queue}-{len(lane.tries())}"
    signed = scheme(options).sign(Draft(identity.encode(), "", time.time(), identity=identity))
    headers = [f"{name}: {value}" for name, value in signed.headers.items()]
    one: Try = trial.client.run(lane.sender.send("/signed", *headers, body=identity))
    lane.excused.add(one.delivery)
    lane.expect(one.status == (401 if stepped else 200), f"signed: {one.status} {one.body[:200]}")
    if stepped:
        detail = json.loads(one.body)["detail"]
        lane.expect("time" in detail, f"a 401 that does not say why: {detail}")


@row(30, "log pipe blocked")
def log_blocked(trial: Trial) -> None:
    """Whoever reads the gateway's log stands still, and the pipe fills up."""
    readers, pipes = {}, {}

    def start(lane: Lane) -> None:
        fifo = lane.directory / "log"
        os.mkfifo(fifo)
        # Kept open, so that the pipe keeps its size.
        pipe = pipes[lane] = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        trial.at_exit(lambda: os.close(pipe))
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)
        readers[lane] = trial.stack.spawn(f"{lane.queue}-reader", ["cat", str(fifo)])
        wrapper = ("sh", "-c", 'exec "$@" > "$0" 2>&1', str(fifo))
        trial.serve(lane, gateway={"wrapper": wrapper})

    for strategy in trial.strategies:
        trial.lane(strategy)
    trial.each(start)
    with trial.load(), trial.fault():
        for lane in trial.lanes:
            readers[lane].freeze()
        for _ in range(100):
            for lane in trial.lanes:
                one = trial.client.run(lane.sender.send("/nowhere"))
                lane.excused.add(one.delivery)
                lane.expect(one.status == 503, f"without a queue: {one.status}")
            time.sleep(0.1)
        for lane in trial.lanes:
            lane.expect(_waiting(pipes[lane]) >= PIPE * 3 / 4, "the pipe was not full")
            said = readers[lane].output().count("\n")
            readers[lane].thaw()
            more = poll(lambda lane=lane, n=said: readers[lane].output().count("\n") > n, 5)
            lane.expect(more, "nothing came after")
    for lane in trial.lanes:
        lane.expect("Traceback" not in readers[lane].output(), "a traceback")
        readers[lane].kill()


def _waiting(pipe: int) -> int:
    """Return how many bytes nobody has read yet."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
