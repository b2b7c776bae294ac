"""A request in flight: it is counted, and ends at its deadline at the latest."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gateway.answer import Answer
from gateway.errors import RequestError
from gateway.relay.attempt import attempt
from gateway.relay.context import Context
from gateway.relay.limits import Held, SourceLimits
from gateway.relay.reply import Reply


class InFlight(ABC):
    """A request that waits for its result; `deadline` is in monotonic seconds."""

    __slots__ = ("_counted", "_held", "_source_limits", "context", "deadline", "reply")

    def __init__(
        self,
        context: Context,
        reply: Reply,
        deadline: float,
        source_limits: SourceLimits | None = None,
    ):
        self.context = context
        self.reply = reply
        self.deadline = deadline
        self._source_limits = source_limits
        self._counted = False
        self._held: Held | None = None

    @property
    def path(self) -> str:
        return self.reply.path

    def enter(self, size: int) -> None:
        """Count the request as in flight, with `size` bytes, until its answer or its deadline."""
        context = self.context
        self._counted = True
        self._held = context.limits.enter(size)
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

    def give(self, given: Answer) -> None:
        """Answer, unless the sender has disconnected."""
        self._leave()
        self.reply.give(given)

    def refuse(self, error: RequestError) -> None:
        """Answer with `error`, unless the sender has disconnected."""
        self._leave()
        self.reply.refuse(error)

    def cancel(self) -> None:
        """Stop waiting, because the sender has disconnected; a published task still runs."""
        if not self.reply.closed:
            self._leave()
            try:
                self.reply.close()
            finally:
                self.release()

    def expire(self) -> None:
        """End the request; called at its deadline."""
        attempt(self, self._expire)

    @abstractmethod
    def _expire(self) -> None:
        """Answer with what is known at the deadline."""

    @abstractmethod
    def release(self) -> None:
        """Stop waiting, and free what the wait holds."""

    def _leave(self) -> None:
        if self._counted:
            self._counted = False
            context = self.context
            context.limits.leave()
            if self._source_limits is not None:
                self._source_limits.in_flight -= 1
            context.metrics.add("gateway_in_flight", -1)
            context.deadlines.remove(self)
