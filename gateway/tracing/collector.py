"""Send spans to a collector, in the thread of the SDK's processor, and log each outage once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

log = logging.getLogger(__name__)

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
