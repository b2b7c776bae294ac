"""Make the spans of a request, when it has ended, from the times that were noted.

https://opentelemetry.io/docs/specs/semconv/http/http-spans/ and messaging/rabbitmq/
"""

from __future__ import annotations

from collections.abc import Iterator
from random import getrandbits
from typing import Protocol

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from gateway.celery_message import Message
from gateway.config.route import RESULTS
from gateway.delivery import Request
from gateway.tracing.trace import PUBLISH, WAIT, Trace

_KNOWN = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
_OTHER = "_OTHER"
_MOST = 255  # characters of a text that a sender has chosen
_GONE = "client-gone"
_SCOPE = InstrumentationScope("gateway")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


class Traced(Protocol):
    """A request that has ended.

    ``status`` is that of its answer; 0 means that its sender had disconnected. ``error`` is the
    type of the error that was the answer, or "". ``path`` is its route's, ``message`` that of its
    own task, if there is one. ``joined``: its task is another try's. ``kept_request`` is without
    what is not to be kept.
    """

    trace: Trace
    request: Request
    status: int
    error: str
    delivery_id: str
    task_id: str
    message: Message | None
    joined: bool

    @property
    def path(self) -> str: ...

    @property
    def kept_request(self) -> Request: ...

    def recorded(self, message: Message) -> Message: ...


class Spans:
    """Makes spans of the service `resource`; `system` is the kind of the broker.

    They are made when all is known about them. The SDK's tracer, which makes them step by step,
    takes five times as much CPU time.
    """

    def __init__(self, resource: Resource, system: str):
        self._resource = resource
        self._system = system

    def make(self, traced: Traced, end: int, epoch: int) -> Iterator[ReadableSpan]:
        """Yield the span of a request, and one for each of its steps.

        `end` is in monotonic nanoseconds; with `epoch` more, these are nanoseconds since the epoch.
        """
        trace = traced.trace
        method = traced.request.method if traced.request.method in _KNOWN else _OTHER
        own = _context(trace.trace_id, int(trace.span_id, 16))
        sender = None
        if trace.parent_id:
            sender = _context(trace.trace_id, int(trace.parent_id, 16), is_remote=True)
        yield ReadableSpan(
            name=f"{'HTTP' if method == _OTHER else method} {traced.path}".rstrip(),
            context=own,
            parent=sender,
            resource=self._resource,
            attributes=_attributes(traced, method),
            kind=SpanKind.SERVER,
            status=_ERROR if traced.status >= 500 else _UNSET,
            start_time=epoch + int(traced.request.arrived * 1e9),
            end_time=epoch + end,
            instrumentation_scope=_SCOPE,
        )
        ends = [*(began for _, began in trace.steps[1:]), end]
        for (step, began), ended in zip(trace.steps, ends, strict=False):
            if step:
                yield ReadableSpan(
                    name=step,
                    context=_context(trace.trace_id, getrandbits(64)),
                    parent=own,
                    resource=self._resource,
                    attributes=self._of_step(step, traced),
                    kind=SpanKind.PRODUCER if step == PUBLISH else SpanKind.INTERNAL,
                    status=_UNSET,
                    start_time=epoch + began,
                    end_time=epoch + ended,
                    instrumentation_scope=_SCOPE,
                )

    def late(
        self,
        trace_id: int,
        parent_id: int,
        method: str,
        attributes: dict[str, str],
        error: str,
        times: tuple[int, int],
    ) -> ReadableSpan:
        """Return the span of a request with a late answer; `times`: its nanoseconds (epoch)."""
        return ReadableSpan(
            name=f"{method} late answer",
            context=_context(f"{trace_id:032x}", getrandbits(64)),
            parent=_context(f"{trace_id:032x}", parent_id, is_remote=True),
            resource=self._resource,
            attributes={
                "http.request.method": method,
                **{name: _text(value) for name, value in attributes.items()},
                **({"error.type": error} if error else {}),
            },
            kind=SpanKind.CLIENT,
            status=_ERROR if error else _UNSET,
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=_SCOPE,
        )

    def _of_step(self, step: str, traced: Traced) -> dict[str, AttributeValue]:
        """Return the attributes of a step's span."""
        message = traced.message
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


def _context(trace_id: str, span_id: int, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(trace_id, 16), span_id, is_remote, _SAMPLED)


def _attributes(traced: Traced, method: str) -> dict[str, AttributeValue]:
    request, status = traced.kept_request, traced.status
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
        found["error.type"] = traced.error or str(status)
    elif not status:
        found["error.type"] = _GONE
    ids = {"gateway.delivery.id": traced.delivery_id, "gateway.task.id": traced.task_id}
    found |= {name: value for name, value in ids.items() if value}
    if traced.joined:
        found["gateway.joined"] = True
    if traced.message is not None:
        delivery = traced.recorded(traced.message).delivery
        found |= {
            f"gateway.{name}": _text(delivery[name])
            for name in ("source", "event")
            if delivery[name]
        }
    return found


def _text(text: str) -> str:
    """Return the beginning of `text` without half surrogates, which no span can have."""
    return text[:_MOST].encode(errors="replace").decode()
