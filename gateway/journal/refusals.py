"""Keep requests that were refused before they had a message, as far as `journal_refused` says.

Anyone can cause such requests. So only a limited number is kept, apart from deliveries, without
secrets, and shortened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

from gateway.celery_message import encode_body
from gateway.config.settings import Config
from gateway.delivery import PRIVATE_HEADERS, Request, traceparent_of
from gateway.journal.base import Refusal
from gateway.request_log import shown_path
from gateway.sources import find

#: Bytes of a body, characters of a path or of a header's value, and characters of all headers.
BODY, VALUE, HEADERS = 4_096, 500, 4_096
#: How many are kept at once, and the seconds until there is room for another: of one error on one
#: route, and of these from one address.
KIND, SENDER = (20, 10.0), (5, 60.0)
_MOST = 1_000  # addresses that are remembered

#: Headers whose names say that they may have a secret; two underscores mean a type to kombu.
_is_secret = re.compile(
    r"__.*|proxy-.*|.*(auth|cookie|token|secret|signature|passw|credential|api-?key|hmac|sign$|"
    r"(access|private)-?key|session|jwt|assertion|(^|-)otp(-|$)).*"
).match


class Refusals:
    """Gives refused requests to `keep`, which writes them."""

    def __init__(self, config: Config, keep: Callable[[Refusal], None]):
        self._keep = keep
        self._kinds, self._senders = Allowance(*KIND), Allowance(*SENDER)
        self._secret = PRIVATE_HEADERS.union(
            *(
                find(options.scheme)(options, config.public_url or "").secret_headers
                for options in config.sources.values()
            )
        )

    def write(
        self,
        request: Request,
        delivery_id: str,
        route: str,
        source: str,
        status: int,
        seconds: float,
        reason: str,
    ) -> None:
        """Write a request that was answered with `status`, unless there were many like it."""
        kind, now = (route, reason.partition(":")[0]), monotonic()
        sender = (*kind, request.remote)
        if not (self._kinds.has(kind, now) and self._senders.has(sender, now)):
            return
        self._kinds.take(kind)
        self._senders.take(sender)
        body = _cut(request.body)
        call = encode_body({}, self._public(request.headers), body)
        about = _described(request, delivery_id, route, source, len(body))
        self._keep(Refusal(delivery_id, about, call, status, seconds, reason))

    def _public(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers without secret ones, cut."""
        found, left = {}, HEADERS
        for name, value in headers.items():
            if name not in self._secret and not _is_secret(name):
                value = value[:VALUE]
                left -= len(name) + len(value)
                if left < 0:
                    break
                found[name] = value
        return found


class Allowance:
    """Token buckets by key: each has `size` tokens, and another one after each `pause` seconds."""

    def __init__(self, size: int, pause: float):
        self._size, self._pause = float(size), pause
        self._buckets: dict[tuple[str, ...], tuple[float, float]] = {}

    def has(self, key: tuple[str, ...], now: float) -> bool:
        """Fill the bucket of `key` as of `now` (monotonic seconds); tell whether it has a token."""
        tokens, filled = self._buckets.get(key, (self._size, now))
        tokens = min(self._size, tokens + (now - filled) / self._pause)
        if len(self._buckets) >= _MOST:
            self._buckets.clear()
        self._buckets[key] = tokens, now
        return tokens >= 1

    def take(self, key: tuple[str, ...]) -> None:
        tokens, filled = self._buckets[key]
        self._buckets[key] = tokens - 1, filled


def _cut(body: bytes) -> bytes:
    """Return the beginning of a body; a character in UTF-8 is not divided."""
    cut = body[:BODY]
    whole = cut.decode(errors="ignore").encode()
    return whole if len(cut) < len(body) and len(cut) - len(whole) < 4 else cut


def _described(request: Request, delivery_id: str, route: str, source: str, kept: int) -> str:
    """Return as JSON what never changes in the entry of `request`, but for its call."""
    about = {
        "id": delivery_id,
        "source": source,
        "route": route,
        "event": "",
        "params": {},
        "query_string": "",
        "remote": request.remote,
        "received_at": datetime.fromtimestamp(request.received_at, UTC).isoformat(),
        "traceparent": traceparent_of(request.headers),
        "store": False,
    }
    truncated = not request.whole or kept < len(request.body)
    own = {
        "method": request.method,
        "path": shown_path(request.path[:VALUE]),
        "truncated": truncated,
    }
    return json.dumps({"delivery": about, "task": "", "queue": "", "request": own})
