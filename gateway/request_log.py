"""Log a line for each request, as far as `log_requests` asks for it, as `gateway dev` does."""

from __future__ import annotations

import json
import logging
import re

# Not a child of `gateway`: of that logger's lines with the same text only ten a second are written.
log = logging.getLogger("requests")

#: The path of result URLs (`gateway.config.route.RESULTS`).
_RESULTS = "/results/"

_plain = re.compile(r'[^\s"=]+').fullmatch


def write(
    method: str, path: str, status: int, seconds: float, reason: str = "", **about: str | float
) -> None:
    """Log how a request was answered; the status 0 means that its sender had disconnected.

    `reason` is why the answer is an error, or why no task was started; empty: neither. What else is
    known is in `about`, of which empty texts are left out. In JSON each value is a field.
    """
    path = shown_path(path)
    known = {name: value for name, value in about.items() if value != ""}
    fields = {
        "method": method, "path": path, "status": status, "ms": _ms(seconds), **known,
        **({"reason": reason} if reason else {}),
    }  # fmt: skip
    pairs = "".join(f" {name}={_shown(value)}" for name, value in known.items())
    why = f": {printable(reason)}" if reason else ""
    line = (method, path, status or "gone", seconds * 1e3, pairs, why)
    log.info("%s %s %s %.1f ms%s%s", *line, extra={"fields": fields})


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _shown(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return value if value.isprintable() and _plain(value) else json.dumps(value)


def shown_path(path: str) -> str:
    """Return a request's path as it may be logged, on one line and without secrets."""
    # The rest of a result's URL is a secret: whoever knows it may read the result.
    return f"{_RESULTS}-" if path.startswith(_RESULTS) else printable(path)


def printable(text: str) -> str:
    """Return `text` if it is on one line and has no control characters, else its ASCII form."""
    return text if text.isprintable() else ascii(text)
