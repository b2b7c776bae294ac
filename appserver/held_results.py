"""Results that are held for a moment, so that one write replies or stores several.

They are written when a turn of the worker's loop ends, before the messages are acknowledged; in a
process of a pool, when it has no more to do. A slow task must not delay the results of the tasks
before it, so a thread looks every `HELD` seconds, and writes what it finds the second time.

Only a success is held, and only where no code of the app runs between the result and the end of the
turn that may look for it: what follows a task, such as a signal or a link, finds its result stored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

from celery import Task, signals
from celery.app.task import Context
from celery.worker import state

from appserver.singletons import call_after_fork

HELD = 0.002  # seconds
LONG = 8_192  # bytes; a longer result is not held
AGAIN = 1.0  # seconds until what could not be written is tried again
#: How often the thread finds nothing before it waits to be woken up, which costs more than looking.
IDLE = 25

log = logging.getLogger(__name__)

T = TypeVar("T")


class Reply(NamedTuple):
    """A message to the queue `reply_to`."""

    reply_to: str
    correlation_id: str
    body: bytes


class Stored(NamedTuple):
    """A result to store under `key` for `seconds`; 0: without an end."""

    key: bytes
    value: str | bytes
    seconds: int


class HeldResults:
    """The results of one turn of the loop.

    `publish_all` writes all of several replies or none, and tells which. `store_all` stores several
    results at once, and tells for each whether it was stored; None: there is no store for that.
    `tell` takes the ends of tasks, after their results were written.
    """

    _held: list[tuple[Reply | Stored, Callable[[], object]]]
    _ended: list[Any]
    _lock: Any  # of who writes; an RLock: what is stored by itself may look for what is held
    _mutex: threading.Lock  # of what is held
    _thread: threading.Thread | None

    def __init__(
        self,
        publish_all: Callable[[Sequence[Reply]], bool],
        store_all: Callable[[Sequence[Stored]], list[bool]] | None,
        tell: Callable[[Sequence[Any]], object] | None = None,
    ):
        self._publish_all, self._store_all, self._tell = publish_all, store_all, tell
        self._turn = 0  # how often they were written
        self._forget()
        call_after_fork(self._forget)

    def begin(self, more: bool, tells: bool = False) -> None:
        """Begin a task; its result may be held where `more` tasks follow or others are held.

        `tells`: an event of its end is sent, and whoever gets it may look for the result.
        """
        self._more = (more and not tells) or bool(self._held)

    def end(self, store: Callable[[], T]) -> T:
        """End a task whose result nothing follows: `store` may hold it, in this thread."""
        self._here.ends = self._may_hold()
        try:
            return store()
        finally:
            self._here.ends = False

    def _may_hold(self) -> bool:
        return self._more

    def hold_reply(self, reply: Reply, otherwise: Callable[[], object]) -> bool:
        """Hold a reply until `flush`; False: it is to be written now.

        `otherwise` is called if it cannot be written then; it stores the result.
        """
        return len(reply.body) <= LONG and self._hold(reply, otherwise)

    def hold_stored(self, result: Stored, otherwise: Callable[[], object]) -> bool:
        """The same for a result that is to be stored; `otherwise` stores it by itself."""
        return len(result.value) <= LONG and self._hold(result, otherwise)

    def _hold(self, result: Reply | Stored, otherwise: Callable[[], object]) -> bool:
        if not getattr(self._here, "ends", False):
            return False
        with self._mutex:
            self._held.append((result, otherwise))
            self._watch()
        return True

    def hold_end(self, end: object) -> None:
        """Hold what `tell` gets of a task."""
        with self._mutex:
            self._ended.append(end)
            self._watch()

    def follow(self, call: Callable[[], object]) -> bool:
        """Call something after what this thread holds; False: it holds nothing."""
        return False

    def after(self, call: Callable[[], object]) -> None:
        """Call something after all that is held, or before `end_turn`, which writes it."""
        call()

    def end_turn(self) -> None:
        """Write what is held, as the loop's turn ends."""
        self.flush()

    def flush(self) -> None:
        """Write what is held; it is written when this returns, also if the thread writes it."""
        self._more = False
        with self._lock:
            with self._mutex:
                held, self._held = self._held, []
                ended, self._ended = self._ended, []
                self._turn += 1
            try:
                if held:
                    self._write(held)
            except BaseException:  # of a task that looks for a result, and reached its time limit
                with self._mutex:
                    self._held, self._ended = held + self._held, ended + self._ended
                    self._watch()
                raise
            if ended and self._tell:
                self._tell(ended)

    def _write(self, held: list[tuple[Reply | Stored, Callable[[], object]]]) -> None:
        replies = [(one, otherwise) for one, otherwise in held if isinstance(one, Reply)]
        results = [(one, otherwise) for one, otherwise in held if isinstance(one, Stored)]
        # The senders of these wait, and those of stored results may.
        if replies and not self._publish_all([reply for reply, _ in replies]):
            for reply, otherwise in replies:
                _try(otherwise, reply.correlation_id)
        if results and self._store_all:
            stored = self._store_all([result for result, _ in results])
            for (result, otherwise), done in zip(results, stored, strict=True):
                if not done:
                    _try(otherwise, result.key.decode())

    def _watch(self) -> None:
        if self._watching.is_set():
            return
        self._watching.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="held-results", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        idle, seen = 0, -1
        while self._watching.wait():
            time.sleep(HELD)
            with self._mutex:
                holds = self._held or self._ended
                idle = 0 if holds else idle + 1
                lasts, seen = holds and self._turn == seen, self._turn
                if idle >= IDLE:
                    self._watching.clear()
            if lasts:
                self._flush_here()

    def _flush_here(self) -> None:
        """Write what is held, in this object's own thread, which an error must not end."""
        try:
            self.flush()
        except Exception:  # it is held again; without this thread it would be held for ever
            log.exception("Results could not be written; this is tried again")
            time.sleep(AGAIN)

    def _forget(self) -> None:
        # In a child after a fork, the results are the parent's, and there is no thread.
        self._held, self._ended = [], []
        self._more = False
        self._here = threading.local()  # `ends`: a task ends in this thread, and may be held
        self._lock, self._mutex = threading.RLock(), threading.Lock()
        self._watching = threading.Event()
        self._thread = None


class ThreadsResults(HeldResults):
    """Those of tasks that run in threads or greenlets.

    The loop writes the replies. What is to be stored another thread stores, as a store that does
    not answer is not to hold up the loop; it has the messages acknowledged then. A task that is
    alone in the worker has its result written at once.
    """

    def __init__(
        self,
        publish_all: Callable[[Sequence[Reply]], bool],
        store_all: Callable[[Sequence[Stored]], list[bool]] | None,
        tell: Callable[[Sequence[Any]], object] | None = None,
    ):
        super().__init__(publish_all, None)
        self._stores = _Stores(publish_all, store_all, _call_all)
        self._tells = False

    def begin(self, more: bool, tells: bool = False) -> None:
        self._tells = tells

    def _may_hold(self) -> bool:
        return not self._tells and len(state.reserved_requests) > 1

    def hold_stored(self, result: Stored, otherwise: Callable[[], object]) -> bool:
        may_hold = getattr(self._here, "ends", False)
        return may_hold and self._stores.end(partial(self._stores.hold_stored, result, otherwise))

    def follow(self, call: Callable[[], object]) -> bool:
        return self._stores.follow(call)

    def after(self, call: Callable[[], object]) -> None:
        self._stores.hold_end(call)

    def end_turn(self) -> None:
        super().flush()

    def flush(self) -> None:
        super().flush()
        self._stores.flush()


class _Stores(HeldResults):
    """Stored by a thread, which takes whatever there is when it comes to it."""

    def _may_hold(self) -> bool:
        return True

    def _hold(self, result: Reply | Stored, otherwise: Callable[[], object]) -> bool:
        self._here.holds = super()._hold(result, otherwise)
        return bool(self._here.holds)

    def follow(self, call: Callable[[], object]) -> bool:
        if not getattr(self._here, "holds", False):
            return False
        self._here.holds = False
        self.hold_end(call)
        return True

    def _run(self) -> None:
        while self._watching.wait():
            self._watching.clear()
            self._flush_here()


def _call_all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


def _try(otherwise: Callable[[], object], name: str) -> None:
    try:
        otherwise()
    except Exception:
        log.exception("The result of task %s is lost", name)


def is_followed(app: Any, request: Any) -> bool:
    """Tell whether code that may look for the result of `request` runs after its task.

    It is the app's own, or a further task. Nor is a result to be held whose message was
    acknowledged when its task began: if it is lost, the task does not run again.
    """
    if not isinstance(request, Context):
        return True
    task = app.tasks.get(getattr(request, "task", None))
    cls: Any = type(task)
    return bool(
        request.callbacks
        or request.chain
        or request.chord
        or signals.task_success.receivers
        or signals.task_postrun.receivers
        or not issubclass(cls, Task)
        or not task.acks_late
        or _has_own(cls)
    )


@lru_cache(maxsize=1024)
def _has_own(cls: Any) -> bool:
    """Tell whether a task's class has methods of its own that are called after the result."""
    methods = (getattr(cls, name) for name in ("on_success", "after_return"))
    return any(getattr(method, "__module__", "") != Task.__module__ for method in methods)
