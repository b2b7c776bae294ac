"""A request in flight: it is counted, and ends at its deadline at the latest."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gateway.answer import Answer
from gateway.errors import RequestError
from gateway.relay.attempt import attempt
from gateway.relay.context import Context
from gateway.relay.limits import SourceLimits
from gateway.relay.reply import Reply


class InFlight(ABC):
    """A request that waits for its result; `deadline` is in monotonic seconds.

    Its bytes count until it is answered, or its sender has disconnected, and none of its steps
    runs or is awaited any more: each of these is a `hold`.
    """

    __slots__ = ("_counted", "_holds", "_size", "_source_limits", "context", "deadline", "reply")

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
        self._holds = self._size = 0

    @property
    def path(self) -> str:
        return self.reply.path

    def enter(self, size: int) -> None:
        """Count the request as in flight, with `size` bytes, until its answer or its deadline."""
        context = self.context
        self._counted = True
        self.hold()
        self._size = size
        context.limits.bytes += size
        context.limits.in_flight += 1
        if self._source_limits is not None:
            self._source_limits.in_flight += 1
        context.metrics.add("gateway_in_flight")
        context.deadlines.add(self)

    def hold(self) -> None:
        """Keep its bytes counted until `let_go` is called as often as this."""
        self._holds += 1

    def let_go(self) -> None:
        self._holds -= 1
        if not self._holds:
            self.context.limits.bytes -= self._size
            self._size = 0

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
            self.hold()
            self._leave()
            try:
                self.reply.close()
            finally:
                self.release()
                self.let_go()

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
            context.limits.in_flight -= 1
            if self._source_limits is not None:
                self._source_limits.in_flight -= 1
            context.metrics.add("gateway_in_flight", -1)
            context.deadlines.remove(self)
            self.let_go()
