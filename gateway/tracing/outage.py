"""Log each outage of a collector once."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

# The SDK and the exporters log each of their attempts.
_library = logging.getLogger("opentelemetry")


class Outage(logging.Handler):
    """Takes the lines of the SDK and the exporter, and logs the first one of each outage.

    `what` is exported: spans or metrics.
    """

    def __init__(self, what: str) -> None:
        super().__init__(logging.WARNING)
        self._what = what
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
                "%s are not exported, and may be lost; requests are relayed as before: %s",
                self._what,
                record.getMessage(),
            )

    def end(self) -> None:
        if self._told:
            self._told = False
            log.info("%s are exported again", self._what)
