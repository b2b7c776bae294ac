"""Run a step of a request so that its failure becomes the request's answer."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from gateway.errors import RequestError, cut_off

log = logging.getLogger(__name__)

T = TypeVar("T")


class Steps:
    """Runs steps of requests that wait for something."""

    def __init__(self) -> None:
        self._tasks: dict[Task[None], None] = {}

    def run(
        self, step: Coroutine[None, None, None], ended: Callable[[Task[None]], None]
    ) -> Task[None]:
        """Run `step` in a task, with which `ended` is called when it has ended."""
        task = asyncio.create_task(step)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(ended)
        return task

    @property
    def running(self) -> int:
        """How many steps are under way."""
        return len(self._tasks)

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


def attempt(answering: Answering, step: Callable[..., T], *arguments: object) -> T | None:
    """Run `step` and return its result; an error becomes the answer, and None is returned."""
    try:
        return step(*arguments)
    # Steps are called by connections and sweeps that all requests share. An unexpected error in one
    # request must not end those, because that would end all other requests.
    except Exception as error:  # noqa: BLE001 - `fail` logs it
        fail(answering, error)
    return None


def fail(answering: Answering, error: BaseException) -> None:
    """Answer with `error`; one that is not a `RequestError` is logged."""
    if not isinstance(error, RequestError):
        _fail_unexpectedly(answering, error)
    else:
        try:
            answering.refuse(error)
        except Exception as failure:  # noqa: BLE001 - it is logged
            _fail_unexpectedly(answering, failure)
    cut_off(error)


def _fail_unexpectedly(answering: Answering, error: BaseException) -> None:
    route = answering.path or "none"
    log.error("a request could not be answered (route %s)", route, exc_info=error)
    answering.release()
    # Called later by the loop, because this answer may fail in the same way.
    asyncio.get_running_loop().call_soon(answering.refuse, RequestError())
