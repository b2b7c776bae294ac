"""Services and background tasks, which run as long as their process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Protocol, TypeVar

from gateway.clock import monotonic
from gateway.errors import GatewayError

log = logging.getLogger(__name__)


T = TypeVar("T")

#: What runs in the background, each with a name.
Work = Iterable[tuple[str, Coroutine[None, None, None]]]


class Startable(Protocol):
    """What runs from `start` to `stop`."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Service:
    """Runs from `start` to `stop`.

    The services that it `uses` are started before its own work, and stopped after it.
    """

    uses: Sequence[Startable] = ()
    _tasks: Sequence[asyncio.Task[None]] = ()

    def _work(self) -> Work:
        """Yield what it does in the background."""
        return ()

    async def start(self) -> None:
        for service in self.uses:
            await service.start()
        self._tasks = [start(work, name) for name, work in self._work()]

    async def stop(self) -> None:
        for task in self._tasks:
            await stop(task)
        for service in reversed(self.uses):
            await service.stop()


class Tasks:
    """Tasks that were begun; each is kept until it has ended."""

    def __init__(self) -> None:
        # The keys of a dict, which has an order, as all runs of a simulation need.
        self._running: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def run(
        self,
        work: Coroutine[None, None, T],
        ended: Callable[[asyncio.Task[T]], object] = lambda _: None,
    ) -> asyncio.Task[T]:
        """Begin `work`; `ended` is called with its task when it has ended."""
        task = asyncio.create_task(work)
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        task.add_done_callback(ended)
        return task

    async def stop(self, patience: float | None = 0) -> None:
        """Wait for their end, and after `patience` seconds cancel them; None: wait only."""
        if self._running:
            await asyncio.wait(self._running, timeout=patience)
        while patience is None and self._running:  # they may have begun others
            await asyncio.wait(self._running)
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)


async def keep_on(
    step: Callable[[], Awaitable[bool]],
    pause: float,
    tell: Callable[[str, GatewayError], object],
    problem: str,
) -> None:
    """Take a step again and again: at once where it says that there is more, else after a pause.

    Of an outage, during which the `GatewayError` is the same, the `problem` is told once.
    """
    told = ""
    while True:
        more = False
        try:
            more, told = await step(), ""
        except GatewayError as exc:
            if str(exc) != told:
                tell(f"{problem}: %s", exc)
            told = str(exc)
        if not more:
            await asyncio.sleep(pause)


def start(
    work: Coroutine[None, None, None], name: str, *, needed: bool = True
) -> asyncio.Task[None]:
    """Run `work` until it is cancelled.

    If it ends by itself or fails, the process cannot work without it. The process then drains
    and ends, and its parent starts another. What is not `needed` only gets an error in the log.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_ended if needed else _failed)
    return task


async def stop(task: asyncio.Task[None] | None) -> None:
    """Cancel `task`, if there is one, and wait for its end."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, for `seconds` at most; tell whether it has come."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


#: Seconds after the confirm, or after the deadline, by which an acceptance is answered, whether
#: what is to be written before is, or not: less than the half second that is promised.
LATEST = 0.4


def when_done(future: asyncio.Future[Any], then: Callable[[], object], deadline: float) -> None:
    """Call `then` when `future` has ended, or after `LATEST`; immediately if it has.

    That is from now on, or from `deadline` (monotonic) on where it has passed.
    """
    if future.done():
        then()
        return
    late = max(monotonic() - deadline, 0.0)
    # Emptied at the end: the future may end later, and would keep what `then` refers to until then.
    waiting = [then]

    def end(*_: object) -> None:
        if waiting:
            timer.cancel()
            waiting.pop()()

    timer = asyncio.get_running_loop().call_later(LATEST - late, end)
    future.add_done_callback(end)


async def in_daemon_thread(work: Callable[[], object]) -> None:
    """Run `work` in a thread of its own, which does not hold up the end of the process."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(ended.set)

    Thread(target=run, daemon=True).start()
    await ended.wait()


def _failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("the background task %s has failed", task.get_name(), exc_info=error)


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        log.critical(
            "the background task %s ended: this process drains and ends, and is replaced",
            task.get_name(),
            exc_info=task.exception(),
        )
        os.kill(os.getpid(), signal.SIGTERM)
