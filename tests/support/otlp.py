"""A collector of spans, as OTLP over HTTP sends them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.http_server import Asked, Said, served
from tests.support.waiting import until

KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}


@dataclass(frozen=True)
class Span:
    """A span that was received; ids are hexadecimal, times nanoseconds since the epoch."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    start: int
    end: int
    error: bool


class Collector:
    """Receives spans on `port` (0: a free one).

    ``asked`` is set as soon as an export has come.
    """

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Span] = []
        #: Path and headers of each export.
        self.exports: list[tuple[str, dict[str, str]]] = []
        self.asked = threading.Event()
        self._released = threading.Event()
        self._released.set()
        self._serving = served(self._receive, port)

    def __enter__(self) -> Self:
        self.url = f"http://127.0.0.1:{self._serving.__enter__()}"
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._serving.__exit__(None, None, None)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Answer no export meanwhile."""
        self.asked.clear()
        self._released.clear()
        try:
            yield
        finally:
            self._released.set()

    def of(self, trace_id: str, *names: str) -> dict[str, Span]:
        """Wait until the trace has spans with these names; return all that it has, by name."""

        def found() -> dict[str, Span]:
            return {span.name: span for span in list(self.spans) if span.trace_id == trace_id}

        until(lambda: set(names) <= set(found()), said=lambda: f"{names}: only {set(found())}")
        return found()

    def _receive(self, asked: Asked) -> Said:
        self.exports.append((asked.path, asked.headers))
        self.asked.set()
        self._released.wait()
        self._take_spans(asked.body)
        return 200, {}, b""

    def _take_spans(self, body: bytes) -> None:
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = attributes(of_resource.resource)["service.name"]
            for scope in of_resource.scope_spans:
                self.spans += [_span(service, each) for each in scope.spans]


def _span(service: str, span: Any) -> Span:
    return Span(
        service,
        span.name,
        KINDS[span.kind],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        attributes(span),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
    )


def attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of a message of the protocol."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}
