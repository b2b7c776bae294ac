"""Results that are held for a moment, so that one write replies or stores several.

Only the pool `solo` holds results: there tasks run in the turn of the worker's loop, and their
results are written when the turn ends, before the messages are acknowledged. A slow task must not
delay the results of the tasks before it, so a thread looks every `HELD` seconds, and writes what it
finds the second time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from appserver.reply_connection import Reply, ReplyConnection

HELD = 0.002  # seconds
LONG = 8_192  # bytes; a longer result is not held
#: How often the thread finds nothing before it waits to be woken up, which costs more than looking.
IDLE = 25

log = logging.getLogger(__name__)


class Stored(NamedTuple):
    """A result to store under `key` for `seconds`; 0: without an end."""

    key: bytes
    value: str
    seconds: int


class Store(Protocol):
    """The backend, which stores several results at once."""

    def store_all(self, results: Sequence[Stored]) -> list[bool]:
        """Tell for each result whether it was stored."""
        ...


class HeldResults:
    """The results of one turn of the loop."""

    _held: list[tuple[Reply | Stored, Callable[[], object]]]
    _lock: threading.Lock
    _thread: threading.Thread | None

    def __init__(self, connection: ReplyConnection, store: Store | None):
        self._connection = connection
        self._store = store
        self._turn = 0  # how often they were written
        self._forget()
        forget = weakref.WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def begin(self, more: bool) -> None:
        """Begin a task; its result may be held where `more` tasks follow or others are held."""
        self._may_hold = more or bool(self._held)

    def hold_reply(self, reply: Reply, otherwise: Callable[[], object]) -> bool:
        """Hold a reply until `flush`; False: it is to be written now.

        `otherwise` is called if it cannot be written then; it stores the result.
        """
        return len(reply.body) <= LONG and self._hold(reply, otherwise)

    def hold_stored(self, result: Stored, otherwise: Callable[[], object]) -> bool:
        """The same for a result that is to be stored; `otherwise` stores it by itself."""
        return len(result.value) <= LONG and self._hold(result, otherwise)

    def _hold(self, result: Reply | Stored, otherwise: Callable[[], object]) -> bool:
        # What `flush` itself stores is not held again.
        if not self._may_hold or self._flushing == threading.get_ident():
            return False
        with self._lock:
            self._held.append((result, otherwise))
        if not self._watching.is_set():
            self._watch()
        return True

    def flush(self) -> None:
        """Write what is held; it is written when this returns, also if the thread writes it."""
        self._may_hold = False
        with self._lock:
            held, self._held = self._held, []
            self._turn += 1
            if held:
                self._flushing = threading.get_ident()
                try:
                    self._write(held)
                finally:
                    self._flushing = 0

    def _write(self, held: list[tuple[Reply | Stored, Callable[[], object]]]) -> None:
        replies = [(one, otherwise) for one, otherwise in held if isinstance(one, Reply)]
        results = [(one, otherwise) for one, otherwise in held if isinstance(one, Stored)]
        # The senders of these wait, and those of stored results may.
        if replies and not self._connection.publish_all([reply for reply, _ in replies]):
            for reply, otherwise in replies:
                _try(otherwise, reply.correlation_id)
        if results and self._store:
            stored = self._store.store_all([result for result, _ in results])
            for (result, otherwise), done in zip(results, stored, strict=True):
                if not done:
                    _try(otherwise, result.key.decode())

    def _watch(self) -> None:
        self._watching.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="held-results", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        idle, seen = 0, -1
        while self._watching.wait():
            time.sleep(HELD)
            with self._lock:
                idle = 0 if self._held else idle + 1
                lasts, seen = self._held and self._turn == seen, self._turn
                if idle >= IDLE:
                    self._watching.clear()
            if lasts:
                self.flush()

    def _forget(self) -> None:
        # In a child after a fork, the results are the parent's, and there is no thread.
        self._held = []
        self._flushing = 0  # the thread that writes
        self._may_hold = False
        self._lock = threading.Lock()
        self._watching = threading.Event()
        self._thread = None


def _try(otherwise: Callable[[], object], name: str) -> None:
    try:
        otherwise()
    except Exception:
        log.exception("The result of task %s is lost", name)
