"""A published message whose confirm and result are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.celery_message import Message
from gateway.clock import monotonic
from gateway.errors import NotConfirmed, RequestError, cut_off
from gateway.outcome import Outcome


class PendingTask:
    """A message that was sent and whose result is awaited.

    It ends once: with an ``outcome``, with an ``error``, or abandoned. ``confirmed`` means
    that the broker has acknowledged the message and routed it to a queue. A result that
    comes before the confirm is used as well.
    """

    __slots__ = (
        "_changed", "confirmed", "deadline", "ended", "error", "on_release", "message", "outcome",
        "sent",
    )  # fmt: skip

    def __init__(
        self,
        message: Message,
        deadline: float,
        on_release: Callable[[PendingTask], object] | None = None,
    ):
        self.message = message
        #: Monotonic seconds: the wait ends then at the latest.
        self.deadline = deadline
        self.confirmed = False
        self.ended = False
        self.outcome: Outcome | None = None
        self.error: RequestError | None = None
        #: Monotonic seconds at which the message went to the broker, or is about to.
        self.sent = monotonic()
        self._changed: Callable[[PendingTask], object] | None = None
        #: Called once, when the wait ends or is abandoned: frees what the strategy holds.
        self.on_release = on_release

    def also_release(self, release: Callable[[PendingTask], object]) -> None:
        """Call `release` as well when the wait ends or is abandoned."""
        before = self.on_release
        self.on_release = release if before is None else lambda p: (before(p), release(p))

    def watch(self, changed: Callable[[PendingTask], object]) -> None:
        """Call `changed` at the confirm and at the end; immediately if either has come already."""
        if not self.ended:
            self._changed = changed
        if self.confirmed or self.ended:
            changed(self)

    def confirm(self) -> None:
        if not self.confirmed and not self.ended:
            self.confirmed = True
            if self._changed is not None:
                self._changed(self)

    def settle(self, outcome: Outcome | None) -> None:
        """End with `outcome`; None (a state that is not final) is ignored."""
        if outcome is not None and not self.ended:
            self.outcome = outcome
            self._end()

    def fail(self, error: RequestError) -> None:
        if not self.ended:
            cut_off(error)
            self.error = error
            self._end()

    def abandon(self) -> None:
        """Stop waiting and free its resources; the watcher is not called any more."""
        # The watcher refers to this object. Such a reference cycle would keep the bodies in memory
        # until the garbage collector runs.
        self._changed = None
        self.ended = True
        on_release, self.on_release = self.on_release, None
        if on_release is not None:
            on_release(self)

    async def until_confirmed(self) -> RequestError | None:
        """Wait for the confirm, until the deadline at the latest; for a message without a reader.

        Returns the error with which it ended, or `NotConfirmed`; None: it is confirmed.
        """
        ended: asyncio.Future[RequestError | None] = asyncio.get_running_loop().create_future()

        def changed(_: PendingTask) -> None:
            if not ended.done():
                ended.set_result(self.error)

        self.watch(changed)
        try:
            async with asyncio.timeout(self.deadline - monotonic()):
                return await ended
        except TimeoutError:
            return NotConfirmed()
        finally:
            self.abandon()

    def _end(self) -> None:
        changed = self._changed
        self.abandon()
        if changed is not None:
            changed(self)
