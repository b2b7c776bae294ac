"""How the faults of a schedule are done to servers, and put right."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from redis import Redis

from tests.faults.combined import schedule
from tests.faults.combined.schedule import Fault
from tests.support.stack import RabbitMQ, Server, StackError

log = logging.getLogger("faults")


@dataclass(frozen=True)
class Injected:
    """A fault as it was: `began`, and `ended` when the server was put right; monotonic seconds."""

    fault: Fault
    began: float
    ended: float

    def overlaps(self, since: float, until: float) -> bool:
        return self.began <= until and since <= self.ended

    def show(self, start: float) -> str:
        """Show it in a line, with the seconds since `start` (monotonic)."""
        return f"{self.began - start:6.1f} to {self.ended - start:6.1f} s  {self.fault}"


@dataclass
class Injection:
    """What was done to `servers`, which have the names of the schedule's targets."""

    servers: Mapping[str, Server]
    done: list[Injected] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self, faults: list[Fault]) -> None:
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
                _INJECT[fault.kind](self.servers[fault.target], fault.length)
            except StackError as exc:
                # A gateway that never becomes ready again is a finding, and not the end of the run.
                self.problems.append(f"{fault}, at {fault.at:.1f} s: {exc}")
            self.done.append(Injected(fault, began, monotonic()))
            self.done.sort(key=lambda one: one.began)


def _kill(server: Server, seconds: float) -> None:
    server.kill()
    time.sleep(seconds)
    server.restart()


def _freeze(server: Server, seconds: float) -> None:
    server.freeze()
    try:
        time.sleep(seconds)
    finally:
        server.thaw()


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
    broker.ctl("set_vm_memory_high_watermark", "0")
    try:
        time.sleep(seconds)
    finally:
        broker.ctl("set_vm_memory_high_watermark", "0.4")


def _cut(kind: str, server: Server, _seconds: float) -> None:
    with Redis.from_url(server.url) as redis:
        redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


_INJECT = {
    schedule.KILLED: _kill,
    schedule.FROZEN: _freeze,
    schedule.CHILD: _kill_child,
    schedule.RELOADED: _reload,
    schedule.CONNECTIONS: _close_connections,
    schedule.ALARM: _alarm,
    schedule.CLIENTS: partial(_cut, "normal"),
    schedule.SUBSCRIBERS: partial(_cut, "pubsub"),
}
