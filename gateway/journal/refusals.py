"""Keep requests without a message: deliveries that no route takes, and refused requests.

The latter are kept only with `journal_refused`. Anyone can cause such requests, and senders send
many events that nobody wants. So only a limited number is kept, apart from deliveries, without
secrets, and shortened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from gateway.allowance import Allowance
from gateway.celery_message import encode_body
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.delivery import Request, traceparent_of
from gateway.journal.entry import IGNORED, REFUSED
from gateway.journal.store import Refusal
from gateway.request_log import shown_path

#: Bytes of a body, characters of a path or of a header's value, and characters of all headers.
BODY, VALUE, HEADERS = 4_096, 500, 4_096
#: How many are kept at once, and the seconds until there is room for another: of one error on one
#: route, and of these from one address.
KIND, SENDER = (20, 10.0), (5, 60.0)

# Headers that have no secret: those of HTTP and of proxies, and what a sender says of a delivery.
# It cannot be known which of all others have one.
_is_public = re.compile(
    r"accept(-.+)?|content-.+|date|expect|host|origin|user-agent|via|(x-)?forwarded|"
    r"x-forwarded-(by|for|host|port|proto|server)|x-real-ip|cf-(connecting-ip|ipcountry|ray)|"
    r"traceparent|tracestate|idempotency-key|"
    r"([a-z0-9]+-)*(attempt|delivery|domain|event|hook|instance|message|request|retry|topic|webhook)"
    r"(-(count|id|name|num|number|reason|time|timestamp|type|uuid|version))?|"
    r"([a-z0-9]+-)*(timestamp|type|version)"
).fullmatch


class Kept(NamedTuple):
    """What is known of a request beside what was sent; ``state`` is *refused* or *ignored*."""

    id: str
    state: str
    route: str
    source: str
    event: str = ""


class Refusals:
    """Gives requests without a message to `keep`, which writes them."""

    def __init__(self, config: Config, keep: Callable[[Refusal], None]):
        self._keep = keep
        self._states = (IGNORED, REFUSED) if config.journal_refused else (IGNORED,)
        self._kinds, self._senders = Allowance(*KIND), Allowance(*SENDER)
        self._secret = frozenset[str]().union(
            *(config.source(name).secret_headers for name in config.sources)
        )

    def write(
        self, request: Request, about: Kept, status: int, seconds: float, reason: str
    ) -> None:
        """Write a request that was answered with `status`, unless there were many like it.

        Of ignored ones those with the same event are alike, of refused ones those with the same
        type of error.
        """
        if about.state not in self._states:
            return
        alike = about.event if about.state == IGNORED else reason.partition(":")[0]
        kind, now = (about.route, about.state, alike), monotonic()
        sender = (*kind, request.remote)
        if self._kinds.wait(kind, now) or self._senders.wait(sender, now):
            return
        self._kinds.take(kind)
        self._senders.take(sender)
        body = _cut(request.body)
        call = encode_body({}, self._public(request.headers), body)
        described = _described(request, about, len(body))
        self._keep(Refusal(about.id, described, call, status, seconds, reason, about.state))

    def _public(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers that are known to have no secret, cut."""
        found, left = {}, HEADERS
        for name, value in headers.items():
            if name not in self._secret and _is_public(name):
                value = value[:VALUE]
                left -= len(name) + len(value)
                if left < 0:
                    break
                found[name] = value
        return found


def _cut(body: bytes) -> bytes:
    """Return the beginning of a body; a character in UTF-8 is not divided."""
    cut = body[:BODY]
    whole = cut.decode(errors="ignore").encode()
    return whole if len(cut) < len(body) and len(cut) - len(whole) < 4 else cut


def _described(request: Request, about: Kept, kept: int) -> str:
    """Return as JSON what never changes in the entry of `request`, but for its call."""
    delivery = {
        "id": about.id,
        "source": about.source,
        "route": about.route,
        "event": about.event,
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
    return json.dumps({"delivery": delivery, "task": "", "queue": "", "request": own})
