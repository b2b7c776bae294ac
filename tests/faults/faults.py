"""Faults: which ones a seed draws, and how each is done to a server and put right."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic

from redis import Redis

from tests.faults.servers import together
from tests.simulation.records import Injected
from tests.support.stack import RabbitMQ, Server, StackError

CONNECTIONS, ALARM = "connections closed", "memory alarm"
CLIENTS, SUBSCRIBERS = "clients cut", "subscribers cut"
KILLED, FROZEN, CHILD, RELOADED = "killed", "frozen", "child killed", "reloaded"

AT_ONCE = (0.0, 0.0)
#: What may happen to each kind of server, and for how many seconds: the least and the most.
#: A server that is killed is started again after so many.
KINDS = {
    "broker": {KILLED: (0.0, 4.0), FROZEN: (1.0, 9.0), CONNECTIONS: AT_ONCE, ALARM: (1.0, 8.0)},
    "redis": {KILLED: (0.0, 4.0), FROZEN: (1.0, 9.0), CLIENTS: AT_ONCE, SUBSCRIBERS: AT_ONCE},
    "worker": {KILLED: (0.0, 4.0), FROZEN: (1.0, 9.0), CHILD: AT_ONCE},
    "gateway": {KILLED: (0.0, 4.0), FROZEN: (1.0, 9.0), CHILD: AT_ONCE, RELOADED: AT_ONCE},
}
#: The servers, and how often each is drawn beside the others.
TARGETS = {"broker": 2, "redis": 2, "worker-1": 1, "worker-2": 1, "gateway-1": 1, "gateway-2": 1}
MOST = 3  # faults at once
SPREAD = 2.0  # seconds within which those that belong together begin; more if the first lasts
PAUSE = 4.0  # seconds without a fault, at most


@dataclass(frozen=True)
class Fault:
    """What happens to a server; `at` and `length` are seconds, `at` from the first fault's."""

    at: float
    target: str
    kind: str
    length: float

    @property
    def end(self) -> float:
        return self.at + self.length

    def __str__(self) -> str:
        return f"{self.target} {self.kind}" + (f" for {self.length:.1f} s" if self.length else "")

    @property
    def line(self) -> str:
        """The fault with its time."""
        return f"{self.at:6.1f} s  {self}"


def schedule(seed: int, seconds: float) -> list[Fault]:
    """Draw the faults of `seconds` from `seed` and from nothing else, in order of time.

    No server suffers two at the same time.
    """
    rng = random.Random(seed)
    faults: list[Fault] = []
    at = 0.0
    while at < seconds:
        group = [
            replace(fault, length=round(min(fault.length, seconds - fault.at), 1))
            for fault in _group(rng, at)
            if fault.at < seconds
        ]
        faults += group
        at = round(max(fault.end for fault in group) + rng.uniform(0, PAUSE), 1)
    return sorted(faults, key=lambda fault: fault.at)


def _group(rng: random.Random, at: float) -> list[Fault]:
    """Draw one to three faults of different servers, the first of them now."""
    # Who is drawn twice suffers once.
    drawn = rng.choices(list(TARGETS), list(TARGETS.values()), k=rng.randint(1, MOST + 1))
    target, *others = list(dict.fromkeys(drawn))[:MOST]
    first = _fault(rng, at, target)
    span = max(SPREAD, first.length)
    return [first, *(_fault(rng, at + rng.uniform(0, span), other) for other in others)]


def _fault(rng: random.Random, at: float, target: str) -> Fault:
    kinds = KINDS[target.partition("-")[0]]
    kind = rng.choice(list(kinds))
    return Fault(round(at, 1), target, kind, round(rng.uniform(*kinds[kind]), 1))


@dataclass
class Injection:
    """What was done to `servers`, by the targets of faults; several suffer the same."""

    servers: Mapping[str, Sequence[Server]]
    done: list[Injected] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self, faults: Iterable[Fault]) -> None:
        """Do all of it, from now on; return when the last server is put right.

        A server that needs longer for its restart than was planned suffers its next fault later.
        """
        began = monotonic()
        of_each = [[f for f in faults if f.target == target] for target in self.servers]
        with ThreadPoolExecutor(len(of_each)) as threads:
            try:
                for done in [threads.submit(self._suffer, began, each) for each in of_each]:
                    done.result()
            finally:
                self._over.set()  # interrupted: no further fault begins

    def _suffer(self, start: float, faults: list[Fault]) -> None:
        for fault in faults:
            if self._over.wait(max(0.0, start + fault.at - monotonic())):
                return
            began = monotonic()
            try:
                inject, servers = _INJECT[fault.kind], self.servers[fault.target]
                together(*(partial(inject, server, fault.length) for server in servers))
            except StackError as exc:
                # A gateway that never becomes ready again is a finding, and not the end of the run.
                self.problems.append(f"{fault}, at {fault.at:.1f} s: {exc}")
            length = f"for {fault.length:.1f} s" if fault.length else ""
            self.done.append(Injected(fault.kind, fault.target, began, monotonic(), length))
            self.done.sort(key=lambda one: one.began)


def _kill(server: Server, seconds: float) -> None:
    server.kill()
    time.sleep(seconds)
    server.restart()


def _freeze(server: Server, seconds: float) -> None:
    with server.frozen():
        time.sleep(seconds)


def _kill_child(server: Server, _seconds: float) -> None:
    """Kill the child that has served for the longest time."""
    children = [pid for pid in server.pids() if pid != server.pid]
    if children:
        with suppress(ProcessLookupError):  # it was about to end: another serves in its place
            os.kill(min(children), signal.SIGKILL)


def _reload(server: Server, _seconds: float) -> None:
    os.kill(server.pid, signal.SIGHUP)


def _close_connections(broker: RabbitMQ, _seconds: float) -> None:
    broker.ctl("close_all_connections", "a random fault")


def _alarm(broker: RabbitMQ, seconds: float) -> None:
    with broker.alarm():
        time.sleep(seconds)


def _cut(kind: str, server: Server, _seconds: float) -> None:
    with Redis.from_url(server.url) as redis:
        redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


_INJECT = {
    KILLED: _kill,
    FROZEN: _freeze,
    CHILD: _kill_child,
    RELOADED: _reload,
    CONNECTIONS: _close_connections,
    ALARM: _alarm,
    CLIENTS: partial(_cut, "normal"),
    SUBSCRIBERS: partial(_cut, "pubsub"),
}
