"""Begin the trace of each request, and export the spans of those that are sampled.

The spans of a request are made when it has ended, from the times that were noted.
https://opentelemetry.io/docs/specs/semconv/http/http-spans/ and messaging/rabbitmq/
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from random import getrandbits, random
from typing import Any, Protocol

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from gateway import background
from gateway.celery_message import Message
from gateway.clock import monotonic_ns, time_ns
from gateway.config.route import RESULTS
from gateway.config.settings import Config
from gateway.delivery import Request, recorded_trace, traceparent_of
from gateway.tracing.trace import PUBLISH, WAIT, Trace

log = logging.getLogger(__name__)

LAST = 2.0  # seconds for exporting the last spans when the process ends
#: The name of the service, unless `trace_service` or OTEL_SERVICE_NAME is set.
SERVICE = "celery-gateway"
_KNOWN = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"))
_OTHER = "_OTHER"
_MOST = 255  # characters of a text that a sender has chosen
_GONE = "client-gone"
_SCOPE = InstrumentationScope("gateway")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


class Tracer:
    """Decides which requests are sampled, and exports their spans in a thread of its own.

    A stranger can choose the ids of a trace, and its flags, so neither decides, unless
    `Config.trace_follow` says so.
    """

    def __init__(self, config: Config):
        self._share = config.trace_sample or 0.0
        self._follow = config.trace_follow
        self._collector = Collector(config.trace_endpoint)
        self._spans = Spans(_resource(config), "rabbitmq" if config.amqp else "redis")
        self._processor: SpanProcessor = BatchSpanProcessor(self._collector)

    async def start(self) -> None:
        """Log the exporter's troubles from now on, each outage once."""
        self._collector.outage.attach()

    async def stop(self) -> None:
        """Export the last spans, for `LAST` seconds at most."""
        try:
            async with asyncio.timeout(LAST):
                await background.in_daemon_thread(self._processor.shutdown)
        except TimeoutError:
            log.warning("the last spans are lost: they were not exported within %g s", LAST)
        self._collector.outage.detach()

    def begin(self, request: Request) -> Trace:
        """Return the trace of `request`, a part of its sender's, if that has one."""
        sampled = random() < self._share
        sender = traceparent_of(request.headers)
        if not sender:
            ids = f"{getrandbits(192):048x}"
            return Trace(ids[:32], ids[32:], "", sampled)
        _, trace_id, parent_id, flags, *_ = sender.split("-", 4)
        if self._follow:
            sampled = bool(int(flags, 16) & TraceFlags.SAMPLED)
        return Trace(trace_id, f"{getrandbits(64):016x}", parent_id, sampled)

    def ended(self, traced: Traced) -> None:
        """Let the spans of a request be exported, if it is sampled."""
        if traced.trace.sampled:
            now = monotonic_ns()
            # The same for all steps, so that no step of the clock comes between them.
            epoch = time_ns() - now
            for span in self._spans.make(traced, now, epoch):
                self._processor.on_end(span)

    def late(
        self, traceparent: str, method: str, attributes: dict[str, str], error: str, began: int
    ) -> None:
        """Let the span of a request that has sent a late answer be exported.

        It is a part of the trace in `traceparent`, if that is sampled; `began` is in nanoseconds
        since the epoch.
        """
        if trace_id := recorded_trace(traceparent):
            ids = int(trace_id, 16), int(traceparent.split("-")[2], 16)
            span = self._spans.late(*ids, method, attributes, error, (began, time_ns()))
            self._processor.on_end(span)


def _resource(config: Config) -> Resource:
    """Return the service's attributes: OpenTelemetry's variables go before the name of ours."""
    named = OTELResourceDetector().detect().attributes
    own = {SERVICE_NAME: config.trace_service} if config.trace_service else {}
    return Resource.create({SERVICE_NAME: SERVICE, **named, **own})


# The SDK and the exporter log each of their attempts.
_library = logging.getLogger("opentelemetry")


class Session(requests.Session):
    """A session that reads no bodies of answers.

    They say nothing that is used here, requests limits neither their size nor the time that they
    take, and a collector decides on both.
    """

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        answer = super().request(*args, **{**kwargs, "stream": True})
        answer.close()
        return answer


class Collector(OTLPSpanExporter):
    """Exports spans by OTLP over HTTP to `endpoint`; None: as the variables OTEL_* say."""

    def __init__(self, endpoint: str | None):
        super().__init__(endpoint, session=Session())
        self.outage = Outage()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        if result is SpanExportResult.SUCCESS:
            self.outage.end()
        return result


class Outage(logging.Handler):
    """Takes the lines of the SDK and the exporter, and logs the first one of each outage."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told = False

    def attach(self) -> None:
        _library.addHandler(self)
        _library.propagate = False

    def detach(self) -> None:
        _library.removeHandler(self)
        _library.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "spans are not exported, and may be lost; requests are relayed as before: %s",
                record.getMessage(),
            )

    def end(self) -> None:
        if self._told:
            self._told = False
            log.info("spans are exported again")


class Traced(Protocol):
    """A request that has ended.

    ``status`` is that of its answer; 0 means that its sender had disconnected. ``error_type``
    is that of the error which was the answer, or "". ``path`` is its route's, ``message`` that of
    its own task, if there is one. ``joined``: its task is another try's. ``kept_request``, and what
    `recorded` makes of its message, are without what is not to be kept.
    """

    trace: Trace
    request: Request
    status: int
    error_type: str
    delivery_id: str
    task_id: str
    message: Message | None

    @property
    def path(self) -> str: ...

    @property
    def joined(self) -> bool: ...

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
        kept = None if traced.message is None else traced.recorded(traced.message)
        own = _context(trace.trace_id, int(trace.span_id, 16))
        sender = None
        if trace.parent_id:
            sender = _context(trace.trace_id, int(trace.parent_id, 16), is_remote=True)
        yield ReadableSpan(
            name=f"{'HTTP' if method == _OTHER else method} {traced.path}".rstrip(),
            context=own,
            parent=sender,
            resource=self._resource,
            attributes=_attributes(traced, method, kept),
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
                    attributes=self._of_step(step, traced, kept),
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

    def _of_step(
        self, step: str, traced: Traced, kept: Message | None
    ) -> dict[str, AttributeValue]:
        """Return the attributes of a step's span."""
        message = traced.message
        if step == WAIT:
            return {"gateway.task.id": traced.task_id, "gateway.joined": traced.joined}
        if step != PUBLISH or message is None or kept is None:
            return {}
        return {
            "messaging.system": self._system,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": _text(kept.options.exchange or kept.queue),
            "messaging.rabbitmq.destination.routing_key": _text(kept.queue),
            "messaging.message.id": traced.task_id or message.task_id,
            "messaging.message.body.size": len(message.body),
            "celery.task_name": message.task,
        }


def _context(trace_id: str, span_id: int, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(trace_id, 16), span_id, is_remote, _SAMPLED)


def _attributes(traced: Traced, method: str, kept: Message | None) -> dict[str, AttributeValue]:
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
        found["error.type"] = traced.error_type or str(status)
    elif not status:
        found["error.type"] = _GONE
    ids = {"gateway.delivery.id": traced.delivery_id, "gateway.task.id": traced.task_id}
    found |= {name: value for name, value in ids.items() if value}
    if traced.joined:
        found["gateway.joined"] = True
    if kept is not None:
        found |= {
            f"gateway.{name}": _text(kept.delivery[name])
            for name in ("source", "event")
            if kept.delivery[name]
        }
    return found


def _text(text: str) -> str:
    """Return the beginning of `text` without half surrogates, which no span can have."""
    return text[:_MOST].encode(errors="replace").decode()
