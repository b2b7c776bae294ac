"""The trace of one request: its ids, and when its steps began; W3C Trace Context.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

from gateway.celery_message import Message
from gateway.clock import monotonic_ns

#: The header with the ids of a trace, of requests and of messages.
TRACEPARENT = "traceparent"
#: That of answers; https://w3c.github.io/trace-context/#traceresponse-header
TRACERESPONSE = "traceresponse"

# The steps of a request. Each is a span, which ends where the next one begins.
VERIFY = "verify"
CLAIM = "claim"
FURTHER = "publish further tasks"
PUBLISH = "publish"
CONFIRM = "confirm"
WAIT = "wait"
ANSWER = "answer"
#: Between two steps.
NOTHING = ""


class Trace:
    """What is known of the trace of a request while it is relayed.

    ``trace_id`` and ``span_id``, which is the request's own, are hexadecimal, as is ``parent_id``,
    which is the sender's, or "". ``traceparent`` has them as its message and its answer do.
    ``steps`` has what began when, in monotonic nanoseconds; it stays empty unless ``sampled``.
    """

    __slots__ = ("parent_id", "sampled", "span_id", "steps", "trace_id", "traceparent")

    def __init__(self, trace_id: str, span_id: str, parent_id: str, sampled: bool):
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.sampled = sampled
        self.traceparent = f"00-{trace_id}-{span_id}-{'01' if sampled else '00'}" * bool(trace_id)
        self.steps: list[tuple[str, int]] = []

    def begin(self, step: str) -> None:
        """Note that `step` begins now; nothing, where it is under way already."""
        if self.sampled and (not self.steps or self.steps[-1][0] != step):
            self.steps.append((step, monotonic_ns()))

    def carry(self, message: Message) -> None:
        """Let `message` carry the ids where instrumented workers look for them."""
        if self.traceparent:
            message.extra = {**(message.extra or {}), TRACEPARENT: self.traceparent}


#: That of all requests where none is traced: it has no ids, and notes nothing.
UNTRACED = Trace("", "", "", sampled=False)
