"""Settle the message of each task that was begun.

Celery's tracing raises what it cannot record, for example a result. A pool of processes catches
that, and passes it to the request's `on_failure`, which acknowledges the message. The pools of
threads and of greenlets drop it: the message would stay unacknowledged, and keep its place in the
prefetch limit, until the worker ends. With `solo` the worker would end.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated
from celery import bootsteps
from celery.concurrency import solo
from celery.exceptions import WorkerShutdown, WorkerTerminate

from appserver.watch import BEAT, Watch, beat, is_supervised

#: The modules of the pools whose tasks run in the worker's main process, beside its loop.
POOLS = frozenset(f"celery.concurrency.{name}" for name in ("eventlet", "gevent", "thread"))

_PRECEDES = "What precedes a task has failed; the task is begun"
_FOLLOWS = "What follows a task has failed"

log = logging.getLogger(__name__)


class SettledTasks(bootsteps.Step):
    """Let the pool end each task as a pool of processes does, whatever is raised."""

    requires = {"celery.worker.components:Pool"}

    def create(self, worker: Any) -> None:
        pool = worker.pool
        if not isinstance(pool, solo.TaskPool):
            pool.on_stop = partial(_stop, pool.on_stop, worker)
        if isinstance(pool, solo.TaskPool):
            begin = partial(_apply_here, Watch(worker, is_supervised()))
            pool.terminate_job = _go_on
        elif POOLS.intersection(cls.__module__ for cls in type(pool).__mro__):
            lost = _LostConnections()
            pool.flush = lost.add
            begin = partial(_apply, pool.on_apply, partial(_passed, pool), lost)
        else:
            return
        pool.on_apply = partial(_begin, pool.on_apply, begin)


def _begin(
    on_apply: Callable[..., Any],
    begin: Callable[..., Any],
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Begin a task by `begin`, and anything else by the pool's own `on_apply`."""
    if options.get("error_callback") is None:
        return on_apply(target, args, kwargs, **options)
    return begin(target, args, kwargs, **options)


def _stop(on_stop: Callable[[], object], worker: Any) -> None:
    """End the pool after its tasks; meanwhile a thread does what the worker's loop did.

    It sends heartbeats, without which the broker delivers the messages of long tasks again, and
    acknowledges what has ended, which would run again if the worker was killed.
    """
    ended = threading.Event()
    stream = getattr(getattr(worker, "consumer", None), "stream", None)

    def keep() -> None:
        over = False
        while not over:
            over = ended.wait(BEAT)  # then once more, for what ended last
            beat(worker)
            if stream:
                with suppress(OSError):
                    stream.flush()

    thread = threading.Thread(target=keep, name="pool-end", daemon=True)
    thread.start()
    try:
        on_stop()
        if stream:
            stream.write_results()
    finally:
        ended.set()
        thread.join()


def _go_on(pid: int, signal: int | None = None) -> None:
    """Let a task run to its end, as a cold shutdown would have it terminated.

    Celery would raise an error in it, and its message would not run again.
    """
    log.warning("A task of the pool `solo` cannot be terminated; the worker ends after it")


def _apply_here(
    watch: Watch,
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    error_callback: Callable[[ExceptionInfo], object],
    **options: Any,
) -> Any:
    """Run a task in the worker's own thread, as the pool `solo` does, watched by `watch`."""
    if watch.runs:  # what handles a signal has received it: the worker ends
        return
    try:
        options["accept_callback"](os.getpid(), monotonic())
    except Exception:
        log.exception(_PRECEDES)
    callback = options["callback"]
    tell, soft, hard = options["timeout_callback"], options["soft_timeout"], options["timeout"]
    try:
        result = watch.run(partial(target, *args, **(kwargs or {})), tell, soft, hard)
    except (WorkerShutdown, WorkerTerminate):
        raise
    except BaseException:  # noqa: BLE001 - it is passed on
        result, callback = ExceptionInfo(), error_callback
    try:
        callback(result)
    except Exception:
        log.exception(_FOLLOWS)


def _passed(pool: Any, timeout: float | None) -> tuple[type[BaseException], ...]:
    """Return what `pool` itself makes something of, where a task runs; `timeout`: the task's."""
    if not pool.is_green:
        return ()
    from greenlet import GreenletExit  # of a task that is terminated

    if not hasattr(pool, "timeout") or not (timeout or pool.timeout):  # eventlet has no limits
        return (GreenletExit,)
    from gevent import Timeout

    return GreenletExit, Timeout


def _apply(
    on_apply: Callable[..., Any],
    passed: Callable[[float | None], tuple[type[BaseException], ...]],
    lost: _LostConnections,
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    error_callback: Callable[[ExceptionInfo], object],
    **options: Any,
) -> Any:
    """Begin a task by the pool's own `on_apply`."""
    own = options["callback"], error_callback
    begun = _Begun(target, *own, passed(options.get("timeout")), lost)
    options["callback"] = begun.end
    options["accept_callback"] = partial(begun.accept, options["accept_callback"])
    return on_apply(begun.run, args, kwargs, **options)


class _LostConnections:
    """Counts the worker's lost connections, whose messages come again."""

    def __init__(self) -> None:
        self.number = 0

    def add(self) -> None:
        self.number += 1


class _Begun:
    """A task that the pool was given; the pool calls `accept`, `run`, and `end` with the result.

    One that is not begun before its connection is lost is forgotten, as its message comes again.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        callback: Callable[[Any], object],
        error_callback: Callable[[ExceptionInfo], object],
        passed: tuple[type[BaseException], ...],
        lost: _LostConnections,
    ):
        self._target, self._callback, self._error_callback = target, callback, error_callback
        self._passed = passed
        self._lost, self._lost_before = lost, lost.number
        self._killed = self._forgotten = False

    def accept(self, callback: Callable[..., object], *args: Any) -> None:
        self._forgotten = self._lost.number > self._lost_before
        if self._forgotten:
            return
        try:
            callback(*args)
        except Exception:
            log.exception(_PRECEDES)
        except BaseException as exc:
            if type(exc).__name__ != "GreenletExit":  # of a task that is to be terminated
                raise
            self._killed = True

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if self._forgotten:
            return None
        try:
            if self._killed:
                raise Terminated("before it was begun")
            return self._target(*args, **kwargs)
        except BaseException as exc:
            if isinstance(exc, self._passed):
                raise
            return ExceptionInfo()

    def end(self, result: Any) -> None:
        """Pass on what `run` has returned, or the pool has made of an exception."""
        if self._forgotten:
            return
        try:
            if isinstance(result, ExceptionInfo):
                self._error_callback(result)
            else:
                self._callback(result)
        except Exception:
            log.exception(_FOLLOWS)
