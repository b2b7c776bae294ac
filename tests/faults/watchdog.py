"""Whether the machine itself kept up: a late answer is judged only where it did."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic
from typing import Protocol

PERIOD = 0.25  # seconds between looks


class Process(Protocol):
    """What has a process id, which may be another one after a restart."""

    @property
    def pid(self) -> int: ...


class Watchdog:
    """Notes for how long servers were ready to run and were not run, and how late it is itself.

    The kernel counts the former for each process; see "schedstat" in proc(5). A server that is
    busy waits for a core far longer than who only looks at the clock.
    """

    def __init__(self, servers: Mapping[str, Process]):
        self._servers = servers
        # By server and process id: when it was looked at, and the seconds waited until then.
        self._waited: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(dict)
        self._late: list[tuple[float, float]] = []  # when a look was due, and when it was had
        self._due = inf  # not before it runs

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            for server in self._servers:
                self.look(server)
            self._due = monotonic() + PERIOD
            await asyncio.sleep(PERIOD)
            self._late.append((self._due, monotonic()))

    def look(self, server: str) -> None:
        """Note how long the processes of `server` have waited so far."""
        for pid in _family(self._servers[server].pid):
            with suppress(OSError):  # ended meanwhile, or not counted by this kernel
                waited = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
                self._waited[server].setdefault(pid, []).append((monotonic(), waited))

    def delay(self, server: str, since: float, until: float) -> float:
        """Return for how long the machine held up a request to `server`, in seconds.

        That is the longest wait of one process, from the last look before the moment `since` to
        the first one after `until`, or the longest delay of a look, the one that is due included.
        """
        waits = [_wait(looks, since, until) for looks in self._waited[server].values()]
        looks = [*self._late[-100:], (self._due, monotonic())]
        late = [had - due for due, had in looks if due <= until and since <= had]
        return max([0.0, *waits, *late])


def _family(pid: int) -> list[int]:
    """Return a process id and those of its children."""
    with suppress(OSError):
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return [pid]


def _wait(looks: list[tuple[float, float]], since: float, until: float) -> float:
    """Return the seconds waited between two moments; nothing by who had ended before the first."""
    before = bisect_right(looks, since, key=lambda look: look[0]) - 1
    after = min(bisect_left(looks, until, key=lambda look: look[0]), len(looks) - 1)
    # One that was started meanwhile has waited since.
    first = looks[before][1] if before >= 0 else 0.0
    return looks[after][1] - first
