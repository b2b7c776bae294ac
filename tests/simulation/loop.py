"""An event loop in virtual time, which several simulated processes share.

Its clock stands still while callbacks run, and then jumps to the next timer. A `Party` stands for a
process: each callback belongs to the party that was running when it was scheduled. The callbacks of
a dead party are dropped, those of a frozen one are kept until it is thawed.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any
from weakref import ref

RUNNING, FROZEN, DEAD = 0, 1, 2
#: So many callbacks at one moment are an endless loop.
LIVELOCK = 200_000


class Killed(BaseException):
    """Ends the callback in which a party has killed itself."""


class Livelock(Exception):
    """The clock does not advance any more."""


class Party:
    """A process: its callbacks, its tasks, its connections, and how wrong its clock is."""

    def __init__(self, name: str):
        #: Networks know a process that was started again by the same name.
        self.name = name
        self.state = RUNNING
        self.skew = 0.0  # seconds that its wall clock is ahead
        self.held: deque[Handle] = deque()
        self.tasks: set[ref[asyncio.Task[Any]]] = set()
        self.ends: dict[Any, None] = {}  # its connections
        self.signals: dict[int, Callable[[], object]] = {}
        #: Keeps what a dead process had: nothing of it runs, not even a `finally`.
        self.grave: list[Any] = []

    def living_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are in memory."""
        return [task for each in list(self.tasks) if (task := each()) is not None]


class Handle:
    """A scheduled callback; asyncio's own copies a context each time, which nothing here needs."""

    __slots__ = ("args", "callback", "party")

    def __init__(self, callback: Callable[..., Any] | None, args: tuple[Any, ...], party: Party):
        self.callback, self.args, self.party = callback, args, party

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None


class Loop(asyncio.BaseEventLoop):
    """The loop of all parties; `failed` is told what `asyncio` reports to exception handlers."""

    def __init__(self, random: Random, failed: Callable[[Party, dict[str, Any]], None]):
        super().__init__()
        self.random = random
        self.kernel = Party("kernel")
        self.current = self.kernel
        self.steps = 0
        self._now = 1000.0 + random.random()
        self._failed = failed
        self._soon: deque[Handle] = deque()
        self._heap: list[tuple[float, float, Handle]] = []
        self._count = 0
        self._dead: list[Party] = []
        self._stop = False

    def time(self) -> float:
        return self._now

    # Scheduling -------------------------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args, self.current)
        self._soon.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._now + delay, callback, *args)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args, self.current)
        self._count = count = self._count + 1
        heappush(self._heap, (when, count, handle))
        return handle

    def soon_in(self, party: Party, callback: Callable[..., Any], *args: Any) -> None:
        """Schedule a callback of `party`."""
        self._soon.append(Handle(callback, args, party))

    def at_in(self, party: Party, when: float, callback: Callable[..., Any], *args: Any) -> Handle:
        """Schedule a callback of `party`, in any order with others at the same moment."""
        handle = Handle(callback, args, party)
        self._count = count = self._count + 1
        heappush(self._heap, (when, self.random.random() * count, handle))
        return handle

    def create_task(self, coro: Any, **options: Any) -> Any:
        task = asyncio.Task(coro, loop=self, **options)
        tasks = self.current.tasks
        tasks.add(ref(task, tasks.discard))
        return task

    #: Each future and task asks; without Python's code it takes the least time to say False.
    get_debug = bool

    def start(self, party: Party, coro: Any) -> asyncio.Task[Any]:
        """Make a task of `party`."""
        before, self.current = self.current, party
        try:
            task: asyncio.Task[Any] = self.create_task(coro)
            return task
        finally:
            self.current = before

    # Parties ----------------------------------------------------------------------------------

    def freeze(self, party: Party) -> None:
        if party.state == RUNNING:
            party.state = FROZEN

    def thaw(self, party: Party) -> None:
        if party.state == FROZEN:
            party.state = RUNNING
            self._soon.extend(party.held)
            party.held.clear()

    def kill(self, party: Party) -> None:
        """End a process as SIGKILL does; the system closes its connections."""
        party.state = DEAD
        self._dead.append(party)
        party.grave += [*party.living_tasks(), *party.held]
        party.held.clear()
        for end in list(party.ends):
            end.process_ended()

    # Running ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until `halt` is called or nothing is left to do; raises `Livelock`."""
        soon, heap, steps = self._soon, self._heap, self.steps
        events._set_running_loop(self)
        self._stop = False
        try:
            while not self._stop:
                most = steps + LIVELOCK
                while soon:
                    handle = soon.popleft()
                    callback = handle.callback
                    if callback is None:
                        continue
                    party = handle.party
                    if party.state:
                        (party.held if party.state == FROZEN else party.grave).append(handle)
                        continue
                    self.current = party
                    steps += 1
                    try:
                        callback(*handle.args)
                    except Killed:
                        pass
                    except (KeyboardInterrupt, SystemExit):
                        raise
                    except BaseException as exc:  # noqa: BLE001 # as asyncio's loops do
                        self._failed(party, {"message": f"in {callback}", "exception": exc})
                    if steps > most:
                        raise Livelock(f"{party.name}: {callback}")
                self.current = self.kernel
                if self._stop:
                    break
                while heap and heap[0][2].callback is None:
                    heappop(heap)
                if not heap:
                    break
                now = heap[0][0]
                if now > self._now:
                    self._now = now
                else:
                    now = self._now
                while heap and heap[0][0] <= now:
                    soon.append(heappop(heap)[2])
        finally:
            self.steps = steps
            self.current = self.kernel
            events._set_running_loop(None)

    def halt(self) -> None:
        self._stop = True
        self._soon.append(Handle(None, (), self.kernel))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._failed(self.current, context)

    # What asyncio's own loops do --------------------------------------------------------------

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        self.current.signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.current.signals.pop(sig, None) is not None
