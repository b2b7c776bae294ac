"""A line in the log for each request, where `log_requests` asks for it, as `gateway dev` does."""

from __future__ import annotations

import logging

# Not below `gateway`, where of like lines only ten a second are written.
log = logging.getLogger("requests")


def write(method: str, path: str, status: int, seconds: float, delivery_id: str) -> None:
    """Say how a request was answered; the status 0 means that its sender had left."""
    shown = path if path.isprintable() else ascii(path)
    answered = status or "gone"
    delivery = delivery_id or "none"
    log.info("%s %s %s %.1f ms delivery %s", method, shown, answered, seconds * 1e3, delivery)
