"""A request in flight: it is counted, and ends at its deadline at the latest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import Task
from collections.abc import Coroutine

from gateway.answer import Answer
from gateway.errors import RequestError
from gateway.relay.attempt import attempt, fail
from gateway.relay.context import Context
from gateway.relay.limits import SourceLimits
from gateway.relay.reply import Reply


class InFlight(ABC):
    """A request that waits for its result; `deadline` is in monotonic seconds.

    It ends with its answer. If its sender has disconnected, it ends when nothing is under way for
    it, neither a step nor a message that waits for its confirm, and at its deadline at the latest.
    """

    __slots__ = (
        "_counted", "_size", "_source_limits", "_step", "context", "deadline", "reply", "trace",
    )  # fmt: skip

    def __init__(
        self,
        context: Context,
        reply: Reply,
        deadline: float,
        source_limits: SourceLimits | None = None,
    ):
        self.context = context
        self.reply = reply
        self.trace = reply.trace
        self.deadline = deadline
        self._source_limits = source_limits
        self._counted = False
        self._size = 0  # bytes that are counted for it
        self._step: Task[None] | None = None

    @property
    def path(self) -> str:
        return self.reply.path

    def enter(self, size: int) -> None:
        """Count the request and its `size` bytes, and let it end at its deadline."""
        context = self.context
        self._counted, self._size = True, size
        context.limits.in_flight += 1
        context.limits.bytes += size
        if self._source_limits is not None:
            self._source_limits.in_flight += 1
        context.metrics.add("gateway_in_flight")
        context.deadlines.add(self)

    def extend(self, deadline: float) -> None:
        """Change the deadline."""
        if self._counted:
            self.context.deadlines.remove(self)
            self.deadline = deadline
            self.context.deadlines.add(self)

    def run(self, step: Coroutine[None, None, None]) -> None:
        """Run `step` in a task; its error becomes the answer."""
        self._step = self.context.steps.run(step, self._stepped)

    def give(self, given: Answer) -> None:
        """Answer, unless the sender has disconnected."""
        self._finish()
        self.reply.give(given)

    def refuse(self, error: RequestError) -> None:
        """Answer with `error`, unless the sender has disconnected."""
        self._finish()
        self.reply.refuse(error)

    def cancel(self) -> None:
        """Stop waiting, because the sender has disconnected; a published task still runs."""
        if not self.reply.closed:
            self._leave()
            try:
                self.reply.close()
            finally:
                self.release()
                self._finish_if_idle()

    def expire(self) -> None:
        """End the request; called at its deadline."""
        attempt(self, self._expire)

    @abstractmethod
    def _expire(self) -> None:
        """Answer with what is known at the deadline."""

    @abstractmethod
    def release(self) -> None:
        """Stop waiting, and free what the wait holds."""

    def _stepped(self, step: Task[None]) -> None:
        """Handle the end of `step`."""
        if self._step is step:
            self._step = None
        if not step.cancelled() and (error := step.exception()) is not None:
            fail(self, error)
        self._finish_if_idle()

    def _cancel_step(self) -> None:
        """Cancel the step that is under way, as the request ends without it."""
        if self._step is not None:
            self._step.cancel()

    def _finish_if_idle(self) -> None:
        """End the request if its sender has disconnected and nothing is under way for it."""
        if self.reply.closed and self._step is None and not self._busy():
            self._finish()

    def _busy(self) -> bool:
        """Does a message of the request wait for something?"""
        return False

    def _finish(self) -> None:
        """Stop counting the request and its bytes."""
        self._leave()
        self.context.limits.bytes -= self._size
        self._size = 0
        self.context.deadlines.remove(self)

    def _leave(self) -> None:
        """Stop counting the request as in flight."""
        if self._counted:
            self._counted = False
            context = self.context
            context.limits.in_flight -= 1
            if self._source_limits is not None:
                self._source_limits.in_flight -= 1
            context.metrics.add("gateway_in_flight", -1)
