"""CPU, memory and connections of every process of a server, while something else is measured.

with Watch(worker, {"broker": 5672}) as watch:
    ...
most(watch.series["rss_mb"])
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import psutil

from loadtest.over_time import Sampling
from loadtest.plot import Point, single

#: Seconds between two samples. The clock of a process' CPU time has ticks of 10 ms.
EVERY = 0.25
#: How often the connections are counted for each sample: some are open for a moment only.
_COUNTS = 5
#: Seconds after which the processes are listed again: that reads all of the machine's.
_LISTED = 1.0
_ESTABLISHED = "01"

#: Lists of equal length: ``seconds`` from the beginning on; ``cpu_percent`` of a core since the
#: sample before and ``rss_mb``, of all processes together; ``connections`` to each port, the most
#: since the sample before. ``processes`` has a dict of the same two for each process, which are 0
#: where it was not there.
Series = dict[str, Any]


class Family(Protocol):
    """A server with its descendants."""

    def family(self) -> list[psutil.Process]:
        """Return all processes."""


class Watch(Sampling):
    """Samples `server`, and the connections to `ports`, by name, while it is entered.

    `series` is there when the context is left.
    """

    def __init__(self, server: Family, ports: Mapping[str, int], every: float = EVERY):
        super().__init__()
        self._server, self._ports, self._every = server, ports, every
        self._seconds: list[float] = []
        self._open: list[Counter[str]] = []
        #: Of each process that was seen, its seconds of CPU time and megabytes at each sample.
        self._seen: dict[psutil.Process, dict[int, tuple[float, float]]] = {}

    @property
    def series(self) -> Series:
        processes = [self._of(process) for process in self._seen]
        each = range(len(self._seconds))
        return {
            "seconds": self._seconds,
            **{
                what: [round(sum(one[what][n] for one in processes), 1) for n in each]
                for what in ("cpu_percent", "rss_mb")
            },
            "connections": {name: [open_[name] for open_ in self._open] for name in self._ports},
            "processes": processes,
        }

    def _of(self, process: psutil.Process) -> dict[str, list[float]]:
        found = self._seen[process]
        percents = []
        for n, now in enumerate(self._seconds):
            used, since = 0.0, 1.0
            if n in found and n - 1 in found:
                used, since = found[n][0] - found[n - 1][0], now - self._seconds[n - 1]
            percents.append(round(100 * used / since, 1))
        megabytes = [found[n][1] if n in found else 0.0 for n in range(len(self._seconds))]
        return {"cpu_percent": percents, "rss_mb": megabytes}

    def sample(self) -> None:
        begin = listed = monotonic()
        family = self._server.family()
        over, open_ = False, Counter(connections(self._ports))
        while True:
            self._seconds.append(round(monotonic() - begin, 3))
            self._open.append(open_)
            self._add(family)
            if over:
                return
            open_ = Counter()
            for _ in range(_COUNTS):
                over = self.ended.wait(self._every / _COUNTS)
                open_ |= Counter(connections(self._ports))
                if over:
                    break
            if monotonic() - listed >= _LISTED:
                family, listed = self._server.family(), monotonic()

    def _add(self, family: Sequence[psutil.Process]) -> None:
        n = len(self._seconds) - 1
        for process in family:
            with suppress(psutil.NoSuchProcess):
                cpu, rss = process.cpu_times(), process.memory_info().rss
                megabytes = round(rss / 2**20, 1)
                self._seen.setdefault(process, {})[n] = (cpu.user + cpu.system, megabytes)


def connections(ports: Mapping[str, int]) -> dict[str, int]:
    """Count the TCP connections of this machine's processes to each port, but not our own.

    The kernel's table is read once for all of them; see proc_net_tcp in the kernel's documents.
    """
    own, counts = _own_sockets(), Counter[int]()
    for path in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")):
        if path.exists():
            for line in path.read_text().splitlines()[1:]:
                _, _, remote, state, _, _, _, _, _, inode, *_ = line.split()
                if state == _ESTABLISHED and inode not in own:
                    counts[int(remote.rpartition(":")[2], 16)] += 1
    return {name: counts[port] for name, port in ports.items()}


def _own_sockets() -> set[str]:
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found.add(os.readlink(f"/proc/self/fd/{entry}"))
    return {link.removeprefix("socket:[").removesuffix("]") for link in found}


def shared_once_mb(server: Family) -> float:
    """Return the megabytes of a server's processes; a page that several share counts once."""
    total = 0
    for process in server.family():
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return round(total / 2**20, 1)


def line(series: Series, what: str) -> Sequence[Point]:
    """Return a figure over the seconds, as a plot has it."""
    return single(series["seconds"], series[what])
