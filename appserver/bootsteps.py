"""Steps of the worker's start: a loop without delays, no log line for each task, parameters."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from celery import bootsteps

from appserver.private_parts import PrivateParts

#: The attribute with the parameters of a task, for which `gateway check` asks.
PARAMETERS = "gateway_parameters"

TIMERS = 1_000  # that are called in one turn of the loop, at most

_PARTS = PrivateParts(
    "the worker may wait up to a second between messages", "kombu.asynchronous.hub:Hub._ready"
)


class PromptHub(bootsteps.StartStopStep):
    """Make kombu's loop react without delay to ready callbacks, and to signals.

    After each message a callback continues reading, and acknowledgements are callbacks as well.
    What such a callback schedules runs only after the next poll, in which kombu 5.7 waits until
    something else happens, for up to a second. This delays the third of three messages that arrive
    in one segment, and acknowledgements that would bring more messages.

    A signal interrupts the poll, but Python continues it (PEP 475) until the next timer is due: a
    worker that is told to end goes on for a few seconds.
    """

    requires = {"celery.worker.components:Hub"}

    _signals: socket.socket | None = None

    def create(self, worker: Any) -> None:
        hub = worker.hub
        if hub is None:  # pools without an event loop, for example gevent's
            return
        if threading.current_thread() is threading.main_thread():  # only it receives signals
            self._signals = _signal_socket()
        if not _PARTS.there:
            return
        fire_timers = hub.fire_timers

        def poll_timeout(**kwargs: Any) -> float:
            # kombu calls ten by itself, and waits for a second then, also if more are due.
            delay: float = fire_timers(**kwargs, max_timers=TIMERS)
            return 0 if hub._ready else delay

        hub.fire_timers = poll_timeout

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Let the loop wake up at each signal; called whenever the loop begins."""
        if self._signals is not None:
            hub.add_reader(self._signals, _empty, self._signals)

    def stop(self, worker: Any) -> None:
        if self._signals is not None:
            worker.hub.remove_reader(self._signals)
            self._signals.close()
            os.close(signal.set_wakeup_fd(-1))


def _signal_socket() -> socket.socket:
    """Return a socket that gets a byte for each signal of this process, and not of its forks."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    # A child may close the descriptor and use its number for something else.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    return reader


def _empty(signals: socket.socket) -> None:
    with suppress(BlockingIOError):
        signals.recv(4096)


class PromptEvents(bootsteps.Step):
    """Keep the worker from waiting on the connection of its events.

    Where the loop is not kombu's, as with gevent and eventlet, Celery 5.7 reads this connection
    after each message of a task, because the broker sends heartbeats, and waits 0.1 s for them.

    Events are not confirmed. A greenlet that waits for a confirm would not get one that the loop
    has read; it would keep the lock for events, for which the worker's end waits. And a loop that
    waits for a confirm stands still as long as the broker blocks publishers.
    """

    def create(self, parent: Any) -> None:
        # A consumer connects by this method for its events only.
        parent.connection_for_write = partial(_connect_for_events, parent)


def _connect_for_events(consumer: Any, url: str | None = None, heartbeat: Any = None) -> Any:
    connection = consumer.app.connection_for_write(
        url=url, heartbeat=heartbeat, transport_options={"confirm_publish": False}
    )
    if consumer.hub is None:
        connection.drain_events = partial(_drain_without_waiting, connection.drain_events)
    return consumer.ensure_connected(connection)


def _drain_without_waiting(drain_events: Callable[..., Any], timeout: float | None = None) -> Any:
    """Read what has come, whatever the `timeout`. Raises TimeoutError when that was all."""
    return drain_events(timeout=0)


class QuietTasks(bootsteps.Step):
    """Log no lines for single tasks, except at the level DEBUG.

    Celery's two lines for each task cost more time than a small task, and the second one contains
    the result, which may be confidential.
    """

    def create(self, worker: Any) -> None:
        level = logging.INFO if logging.root.isEnabledFor(logging.DEBUG) else logging.WARNING
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).setLevel(level)


class TellParameters(bootsteps.Step):
    """Note the parameters of each task, as ``(order, currency=..., *, note=...)``.

    `gateway check` compares them. Celery's command ``registered`` answers with attributes of the
    tasks that the question names; a worker without this has no such attribute.
    """

    def create(self, worker: Any) -> None:
        for task in worker.app.tasks.values():
            # Some callables, such as those written in C, have no signature.
            try:
                # Its own function, and not what retries it; and what its decorators call it with.
                run = getattr(task, "_orig_run", task.run)
                found = inspect.signature(run, follow_wrapped=False)
            except (TypeError, ValueError):
                continue
            setattr(task, PARAMETERS, str(_plain(found)).replace("=Ellipsis", "=..."))


def _plain(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature without annotations, and without the values of defaults."""
    empty = inspect.Parameter.empty
    parameters = [
        each.replace(annotation=empty, default=empty if each.default is empty else ...)
        for each in signature.parameters.values()
    ]
    return inspect.Signature(parameters)
