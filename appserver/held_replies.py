"""Replies that are held for a moment, so that one write sends several.

Only the pool `solo` holds replies: there tasks run in the turn of the worker's loop, and their
replies are written when the turn ends, before the messages are acknowledged. A slow task must not
delay the replies of the tasks before it, so a thread looks every `HELD` seconds, and writes what it
finds the second time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable

from appserver.reply_connection import Reply, ReplyConnection

HELD = 0.002  # seconds
LONG = 8_192  # bytes; a longer reply is not held
#: How often the thread finds nothing before it waits to be woken up, which costs more than looking.
IDLE = 25

log = logging.getLogger(__name__)


class HeldReplies:
    """The replies of one turn of the loop."""

    _replies: list[tuple[Reply, Callable[[], object]]]
    _thread: threading.Thread | None

    def __init__(self, connection: ReplyConnection):
        self._connection = connection
        self._turn = 0  # how often they were written
        self._forget()
        forget = weakref.WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def begin(self, more: bool) -> None:
        """Begin a task; its reply may be held where `more` tasks follow or others are held."""
        self._may_hold = more or bool(self._replies)

    def hold(self, reply: Reply, otherwise: Callable[[], object]) -> bool:
        """Hold a reply until `flush`; False: it is to be written now.

        `otherwise` is called if it cannot be written then; it stores the result.
        """
        if not self._may_hold or len(reply.body) > LONG:
            return False
        with self._lock:
            self._replies.append((reply, otherwise))
        if not self._watching.is_set():
            self._watch()
        return True

    def flush(self) -> None:
        """Write what is held; it is written when this returns, also if the thread writes it."""
        self._may_hold = False
        with self._lock:
            held, self._replies = self._replies, []
            self._turn += 1
            if not held or self._connection.publish_all([reply for reply, _ in held]):
                return
            for reply, otherwise in held:
                try:
                    otherwise()
                except Exception:
                    log.exception("The result of task %s is lost", reply.correlation_id)

    def _watch(self) -> None:
        self._watching.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="held-replies", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        idle, seen = 0, -1
        while self._watching.wait():
            time.sleep(HELD)
            with self._lock:
                idle = 0 if self._replies else idle + 1
                lasts, seen = self._replies and self._turn == seen, self._turn
                if idle >= IDLE:
                    self._watching.clear()
            if lasts:
                self.flush()

    def _forget(self) -> None:
        # In a child after a fork, the replies are the parent's, and there is no thread.
        self._replies = []
        self._may_hold = False
        self._lock = threading.Lock()
        self._watching = threading.Event()
        self._thread = None
