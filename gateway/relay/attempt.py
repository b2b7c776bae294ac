"""Run a step of a request so that its failure becomes the request's answer."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from gateway.errors import RequestError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Steps:
    """Runs steps of requests that wait for something; an error becomes the request's answer."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}

    def run(self, answering: InProgress, step: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run `step` in a task; the request's bytes count until it has ended."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                attempt(answering, _raise, error)
                _forget(error)
            answering.let_go()

        answering.hold()
        task = asyncio.create_task(step)
        self._tasks[task] = None
        task.add_done_callback(ended)
        return task

    async def stop(self) -> None:
        """Cancel the steps that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Answering(Protocol):
    """A request that can be answered with an error."""

    @property
    def path(self) -> str:
        """The route's path; empty where no route is known."""

    def refuse(self, error: RequestError) -> None:
        """Answer with `error`."""

    def release(self) -> None:
        """Stop waiting, and free what the wait holds."""


class InProgress(Answering, Protocol):
    """A request whose bytes count while something holds it."""

    def hold(self) -> None: ...
    def let_go(self) -> None: ...


def _raise(error: BaseException) -> None:
    raise error


def _forget(error: BaseException | None) -> None:
    """Free what the frames of a handled `error` refer to.

    The futures in these frames refer to the error, so all of it is a reference cycle, which would
    keep the request's body in memory until the garbage collector runs.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def attempt(answering: Answering, step: Callable[..., T], *arguments: object) -> T | None:
    """Run `step` and return its result; an error becomes the answer, and None is returned."""
    try:
        try:
            return step(*arguments)
        except RequestError as error:
            answering.refuse(error)
    # Steps are called by connections and sweeps that all requests share. An unexpected error in one
    # request must not end those, because that would end all other requests.
    except Exception:
        log.exception("a request could not be answered (route %s)", answering.path or "none")
        answering.release()
        # Called later by the loop, because this answer may fail in the same way.
        asyncio.get_running_loop().call_soon(answering.refuse, RequestError())
    return None
