"""Log a line for each request, if `log_requests` is set, as `gateway dev` does."""

from __future__ import annotations

import logging

# Not a child of `gateway`: of that logger's lines with the same text only ten a second are written.
log = logging.getLogger("requests")

#: The path of result URLs (`gateway.config.route.RESULTS`).
_RESULTS = "/results/"


def write(
    method: str,
    path: str,
    status: int,
    seconds: float,
    delivery_id: str,
    reason: str = "",
    trace_id: str = "",
) -> None:
    """Log how a request was answered; the status 0 means that its sender had disconnected.

    `reason` is why the answer is an error, or why no task was started; empty: neither.
    """
    if path.startswith(_RESULTS):
        path = f"{_RESULTS}-"  # the rest is a secret: whoever knows it may read the result
    answered, delivery = status or "gone", delivery_id or "none"
    if trace_id:
        delivery = f"{delivery} trace {trace_id}"
    why = f": {_printable(reason)}" if reason else ""
    about = (method, _printable(path), answered, seconds * 1e3, delivery, why)
    log.info("%s %s %s %.1f ms delivery %s%s", *about)


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)
