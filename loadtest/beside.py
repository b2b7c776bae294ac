"""Run functions beside the main thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

_T = TypeVar("_T")


def beside(work: Callable[[], _T]) -> Future[_T]:
    """Run `work` in a thread of its own; the future has what it returns or raises.

    A daemon thread, as Python waits at its end for all others: one of a ThreadPoolExecutor is
    never told to end if the user interrupts the program just while it is started.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as exc:  # noqa: BLE001  # whoever waits for the result gets it
            future.set_exception(exc)

    Thread(target=run, daemon=True).start()
    return future
