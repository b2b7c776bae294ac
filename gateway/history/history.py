"""The history of a gateway: its parent adds up each second what its processes have counted.

So it outlasts the processes. Where there is a file for it, it outlasts the gateway, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import add
from pathlib import Path
from statistics import median
from typing import Any

from gateway import __version__
from gateway.clock import monotonic, time
from gateway.config.route import RESULTS
from gateway.history.ring import LATER, STATUSES, WIDTH, Ring, Slot, row, total
from gateway.metric_table import BUCKETS, LATE, METRICS, REQUESTS
from gateway.process.counters import Growth, Labels

log = logging.getLogger(__name__)

#: By the name of a range: the seconds of a slot, and the number of slots.
RANGES = {"10m": (1, 600), "6h": (10, 2_160), "14d": (300, 4_032)}
#: How many routes are counted apart. `OTHERS` are all further ones, look-ups of results, and what
#: no route takes; `ALL` is the sum of all routes.
ROUTES = 20
ALL, OTHERS = "", "others"
_STARTS = 100  # of the gateway, that are kept
SAVE = 60.0  # seconds between two writes of the file
#: A usual value is the median of this hour (seconds) of earlier days, if so many are known.
HOUR, DAYS = 3_600, 3

#: What a file has to begin with, to be read.
_FORM = [1, list(map(list, RANGES.values())), STATUSES, BUCKETS]
_LARGEST = 16 * 1024 * 1024  # bytes of it, unpacked

#: How many labels an answer has, and how many values.
_SHAPE = len(METRICS[REQUESTS].labels), len(BUCKETS) + 2
#: What stands for a route where there is none: for requests that no route takes, and look-ups.
_NONE = ("", RESULTS)


class History:
    """Counts by route.

    `grown` returns what the gateway's processes have counted since it was last called, and `paths`
    those of the present routes.
    """

    def __init__(self, grown: Callable[[], Iterable[Growth]], paths: Callable[[], Collection[str]]):
        self._grown = grown
        self._paths = paths
        self._rings = {name: Ring(*size) for name, size in RANGES.items()}
        #: Those that are counted apart.
        self.routes: list[str] = []
        #: When the gateway has started (epoch), and as which version; the last time last.
        self.starts: list[tuple[float, str]] = []

    @property
    def known_routes(self) -> list[str]:
        """The paths of the present routes, and of those that are counted apart still."""
        return list(dict.fromkeys([*self._paths(), *self.routes]))

    async def run(self, file: Callable[[], Path | None]) -> None:
        """Count each second, and write the file each minute, until cancelled."""
        self.starts = [*self.starts, (time(), __version__)][-_STARTS:]
        before = saved = monotonic()
        while True:
            await asyncio.sleep(1 - time() % 1)
            now = monotonic()
            self.tick(time(), now - before)
            before = now
            if now - saved >= SAVE:
                saved = now
                await asyncio.to_thread(self.saving(file()))

    def tick(self, now: float, seconds: float) -> None:
        """Count what has come in the `seconds` that end `now` (epoch)."""
        grown: dict[Labels, list[float]] = {}
        later = 0.0
        for metric, labels, more in self._grown():
            if metric == REQUESTS and (len(labels), len(more)) == _SHAPE:  # as in this version
                before = grown.get(labels)
                grown[labels] = [*map(add, before, more)] if before else more
            elif metric == LATE and labels[-1] == "accepted" and labels[0] != "succeeded":
                later += more[0]
        rows, paths = {ALL: [0.0] * WIDTH}, self._paths()
        rows[ALL][LATER] = later
        for (route, _, status), values in grown.items():
            counts = row(status, values)
            for name in (OTHERS,) if route in _NONE else (self._kept(route, paths), ALL):
                rows[name] = [*map(add, rows[name], counts)] if name in rows else counts
        for ring in self._rings.values():
            # The middle of the time: it may be the first moment of the next slot.
            ring.add(now - seconds / 2, seconds, rows)

    def read(self, name: str, route: str = ALL, group: int = 1) -> list[Slot]:
        """Return the slots of a range, the oldest first; each stands for `group` slots."""
        # The present second is known when it has ended.
        return list(self._rings[name].read(route, time() - 1, group))

    def usual(self, value: Callable[[Slot], float | None]) -> float | None:
        """Return what a value was in this hour of earlier days; None: too few are known."""
        slots, step = self.read("14d"), RANGES["14d"][0]
        values = []
        for days in range(1, 14):
            end = len(slots) - (days * 86_400 - HOUR // 2) // step
            whole = total(slots[max(end - HOUR // step, 0) : end])
            if whole.seconds > HOUR / 2 and (was := value(whole)) is not None:
                values.append(was)
        return median(values) if len(values) >= DAYS else None

    def saving(self, path: Path | None) -> Callable[[], None]:
        """Return what writes the file; without a path it does nothing."""
        rings = [ring.newest for ring in self._rings.values()]
        about = {"form": _FORM, "newest": rings, "routes": self.routes, "starts": self.starts}
        parts: list[bytes | memoryview[Any]] = [json.dumps(about).encode() + b"\n", *self._memory()]

        def save() -> None:
            if path is None:
                return
            packing, new = zlib.compressobj(1), path.with_name(f"{path.name}.new")
            try:
                with new.open("wb") as file:
                    for part in parts:
                        file.write(packing.compress(part))
                    file.write(packing.flush())
                os.replace(new, path)
            except OSError as exc:
                log.warning("the history is not kept over a restart: %s", exc)

        return save

    def load(self, path: Path) -> None:
        """Read the file, if there is one; a corrupt one, or one of another form, is not used."""
        try:
            unpacking = zlib.decompressobj()
            data = unpacking.decompress(path.read_bytes(), _LARGEST)
            head, _, counts = data.partition(b"\n")
            about = json.loads(head)
            form = about.get("form") if isinstance(about, dict) else None
            if not unpacking.eof or form != json.loads(json.dumps(_FORM)):
                raise ValueError("it is of another form")
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError, zlib.error) as exc:
            log.warning("the history in %s is not used, and begins anew: %s", path, exc)
            return
        self.routes = about["routes"]
        self.starts = [(at, version) for at, version in about.get("starts", ())]
        for ring, newest in zip(self._rings.values(), about["newest"], strict=True):
            ring.newest = newest
        at = 0
        for part in self._memory():
            part[:] = counts[at : at + len(part)]
            at += len(part)

    def _memory(self) -> Iterator[memoryview[Any]]:
        """Yield all that the rings have, always in the same order."""
        for ring in self._rings.values():
            yield memoryview(ring.watched).cast("B")
            for route in (ALL, OTHERS, *self.routes):
                yield memoryview(ring.of(route)).cast("B")

    def _kept(self, route: str, paths: Collection[str]) -> str:
        """Return as what a route is counted."""
        if route not in paths:  # any more; or a process had no room for it
            return OTHERS
        if route in self.routes:
            return route
        if len(self.routes) == ROUTES:
            gone = next((each for each in self.routes if each not in paths), None)
            if gone is None:
                return OTHERS
            self.routes.remove(gone)
            for ring in self._rings.values():
                ring.fold(gone, OTHERS)
        self.routes.append(route)
        return route
