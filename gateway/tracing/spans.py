"""Make the spans of a request, when it has ended, from the times that were noted.

https://opentelemetry.io/docs/specs/semconv/http/http-spans/ and messaging/rabbitmq/
"""

from __future__ import annotations

from typing import Protocol

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from gateway.celery_message import Message
from gateway.config.route import RESULTS
from gateway.delivery import Request
from gateway.tracing.trace import PUBLISH, WAIT, Trace

_KNOWN = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
_OTHER = "_OTHER"
_MOST = 255  # characters of a text that a sender has chosen
_GONE = "client-gone"


class Traced(Protocol):
    """A request that has ended; ``path`` is its route's, ``joined``: its task is another try's."""

    request: Request
    path: str
    delivery_id: str
    task_id: str
    joined: bool


class Ids(RandomIdGenerator):
    """Gives the next span the ids that the message and the answer of its request have."""

    def __init__(self) -> None:
        self._trace_id = self._span_id = 0

    def choose(self, trace: Trace) -> None:
        self._trace_id, self._span_id = int(trace.trace_id, 16), int(trace.span_id, 16)

    def generate_trace_id(self) -> int:
        return self._trace_id

    def generate_span_id(self) -> int:
        chosen, self._span_id = self._span_id, 0
        return chosen or super().generate_span_id()


class Spans:
    """Makes spans with `tracer`, whose ids are from `ids`; `system` is the kind of the broker."""

    def __init__(self, tracer: Tracer, ids: Ids, system: str):
        self._tracer = tracer
        self._ids = ids
        self._system = system

    def make(self, traced: Traced, trace: Trace, status: int, start: int, end: int) -> None:
        """Make the span of a request, and one for each of its steps.

        Times are in nanoseconds since the epoch; `status` is as in `Tracer.end`.
        """
        self._ids.choose(trace)
        method = traced.request.method if traced.request.method in _KNOWN else _OTHER
        span = self._tracer.start_span(
            f"{'HTTP' if method == _OTHER else method} {traced.path}".rstrip(),
            _parent(trace),
            SpanKind.SERVER,
            _attributes(traced, trace, method, status),
            start_time=start,
        )
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        within = set_span_in_context(span, Context())
        ends = [*(began for _, began in trace.steps[1:]), end]
        for (step, began), ended in zip(trace.steps, ends, strict=False):
            if step:
                kind = SpanKind.PRODUCER if step == PUBLISH else SpanKind.INTERNAL
                about = self._of_step(step, traced, trace.message)
                self._tracer.start_span(step, within, kind, about, start_time=began).end(ended)
        span.end(end)

    def _of_step(
        self, step: str, traced: Traced, message: Message | None
    ) -> dict[str, AttributeValue]:
        """Return the attributes of a step's span."""
        if step == WAIT:
            return {"gateway.task.id": traced.task_id, "gateway.joined": traced.joined}
        if step != PUBLISH or message is None:
            return {}
        return {
            "messaging.system": self._system,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": _text(message.options.exchange or message.queue),
            "messaging.rabbitmq.destination.routing_key": _text(message.queue),
            "messaging.message.id": traced.task_id or message.task_id,
            "messaging.message.body.size": len(message.body),
            "celery.task_name": message.task,
        }


def _parent(trace: Trace) -> Context:
    """Return the context of the sender's span; an empty one where it has sent none."""
    if not trace.parent_id:
        return Context()
    ids = int(trace.trace_id, 16), int(trace.parent_id, 16)
    sender = SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(sender), Context())


def _attributes(
    traced: Traced, trace: Trace, method: str, status: int
) -> dict[str, AttributeValue]:
    request = traced.request
    # The rest of a result's URL is a secret, and any query may have one.
    path = f"{RESULTS}-" if request.path.startswith(RESULTS) else request.path
    found: dict[str, AttributeValue] = {
        "http.request.method": method,
        "url.path": _text(path),
        "client.address": request.remote,
    }
    if method == _OTHER:
        found["http.request.method_original"] = _text(request.method)
    if traced.path:
        found["http.route"] = traced.path
    if status:
        found["http.response.status_code"] = status
    if status >= 400:
        found["error.type"] = trace.error or str(status)
    elif not status:
        found["error.type"] = _GONE
    ids = {"gateway.delivery.id": traced.delivery_id, "gateway.task.id": traced.task_id}
    found |= {name: value for name, value in ids.items() if value}
    if traced.joined:
        found["gateway.joined"] = True
    if trace.message is not None:
        delivery = trace.message.delivery
        found |= {
            f"gateway.{name}": _text(delivery[name])
            for name in ("source", "event")
            if delivery[name]
        }
    return found


def _text(text: str) -> str:
    """Return the beginning of `text` without half surrogates, which no span can have."""
    return text[:_MOST].encode(errors="replace").decode()
