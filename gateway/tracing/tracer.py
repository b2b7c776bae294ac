"""Begin the trace of each request, and export the spans of those that are sampled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import getrandbits, random
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from gateway import background
from gateway.clock import monotonic_ns, time_ns
from gateway.config.settings import Config
from gateway.delivery import Request, traceparent_of
from gateway.tracing.spans import Spans, Traced
from gateway.tracing.trace import Trace

log = logging.getLogger(__name__)

LAST = 2.0  # seconds for exporting the last spans when the process ends
#: The name of the service, unless `trace_service` or OTEL_SERVICE_NAME is set.
SERVICE = "celery-gateway"
_SAMPLED = 1  # the flag in a traceparent


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
            sampled = bool(int(flags, 16) & _SAMPLED)
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
        _, trace_id, parent_id, flags = traceparent.split("-")
        if int(flags, 16) & _SAMPLED:
            ids = int(trace_id, 16), int(parent_id, 16)
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
