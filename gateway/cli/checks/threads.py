"""An executor whose threads do not keep the process running."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any


class DaemonThreads(ThreadPoolExecutor):
    """Runs each call in a daemon thread of its own, so that the process can end before the call.

    The look-up of a host's name cannot be cancelled, and may take very long.
    """

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        Thread(target=_run, args=(future, call, args, kwargs), daemon=True).start()
        return future


def _run(
    future: Future[Any], call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call(*args, **kwargs)
    except BaseException as exc:  # noqa: BLE001 - the future raises it, as in every executor
        future.set_exception(exc)
    else:
        future.set_result(result)
