"""Log a line for each request, if `log_requests` is set, as `gateway dev` does."""

from __future__ import annotations

import logging

# Not a child of `gateway`: of that logger's lines with the same text only ten a second are written.
log = logging.getLogger("requests")

#: The path of result URLs (`gateway.config.route.RESULTS`).
_RESULTS = "/results/"


def write(method: str, path: str, status: int, seconds: float, delivery_id: str) -> None:
    """Log how a request was answered; the status 0 means that its sender had disconnected."""
    if path.startswith(_RESULTS):
        path = f"{_RESULTS}-"  # the rest is a secret: whoever knows it may read the result
    shown = path if path.isprintable() else ascii(path)
    answered = status or "gone"
    delivery = delivery_id or "none"
    log.info("%s %s %s %.1f ms delivery %s", method, shown, answered, seconds * 1e3, delivery)
