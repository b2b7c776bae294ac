"""A webhook as it was received."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

# https://www.w3.org/TR/trace-context/#traceparent-header; later versions may add fields.
_IDS = "-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_traceparent = re.compile(f"00{_IDS}|(?!00|ff)[0-9a-f]{{2}}{_IDS}(-[!-~]{{0,200}})?").fullmatch

#: Characters of a Prefer header. https://www.rfc-editor.org/rfc/rfc7240
MAX_PREFER = 1_000

_wait = re.compile(r'wait\s*=\s*"?([0-9]{1,5})"?').fullmatch
# The parts between commas; a comma in a quoted string does not separate.
_parts = re.compile(r'(?:"(?:\\.|[^"\\])*+"?|[^,"])+').findall

#: Request headers that are meant for the gateway only; the task does not get them.
PRIVATE_HEADERS = frozenset(["authorization", "cookie"])


def traceparent_of(headers: dict[str, str]) -> str:
    """Return the sender's trace context, a valid traceparent; "" where there is none."""
    text = dict.get(headers, "traceparent")
    return text if text and _traceparent(text) else ""


@dataclass(slots=True)
class Request:
    """An HTTP request; its header and body are complete, unless it is refused before they are.

    ``headers`` have names in lower case, repeated ones joined by ``", "``; ``body`` is
    raw bytes; ``arrived`` is monotonic seconds, ``received_at`` seconds since the epoch;
    ``size`` is the number of bytes that it holds in memory; ``whole``: its body is complete;
    ``raw_body`` is the body as it was sent, where that was compressed.
    """

    method: str
    path: str
    query_string: str
    headers: dict[str, str]
    body: bytes
    remote: str
    arrived: float
    received_at: float
    size: int = 0
    whole: bool = True
    raw_body: bytes = b""


@dataclass(slots=True)
class Delivery:
    """A verified request on its route: what the task gets, and what else is known about it.

    ``traceparent`` is that of the gateway's own span if requests are traced, else that of the
    sender, or empty. ``document`` has the body's JSON as its only item, or says why it
    cannot be read, while something reads it.
    """

    id: str
    route: str
    params: dict[str, str]
    query: dict[str, str]
    query_string: str
    headers: dict[str, str]
    body: bytes
    remote: str
    received_at: float
    source: str = ""
    event: str = ""
    traceparent: str = ""
    document: tuple[Any] | str | None = None

    def table(self, store: bool) -> dict[str, Any]:
        """Return the ``delivery`` message header; `store` asks the worker to store its result.

        All fields that the sender chooses have a bounded length, except ``params`` and
        ``query_string``. The publisher compares those with the broker's limit for headers.
        """
        return {
            "id": self.id,
            "source": self.source,
            "route": self.route,
            "event": self.event,
            "params": self.params,
            "query_string": self.query_string,
            "remote": self.remote,
            "received_at": datetime.fromtimestamp(self.received_at, UTC).isoformat(),
            "traceparent": self.traceparent,
            "store": store,
        }


def recorded_trace(traceparent: str) -> str:
    """Return the trace id of a valid `traceparent` whose flag says that it is recorded, or ""."""
    if not traceparent or not _traceparent(traceparent):
        return ""
    _, trace, _, flags, *_ = traceparent.split("-")
    return trace if int(flags, 16) & 1 else ""


def identity_digest(identity: str) -> bytes:
    """Return the 16 bytes that stand for an identity in the stores: it may have a credential."""
    return hashlib.blake2b(identity.encode(), digest_size=16).digest()


@dataclass(slots=True, frozen=True)
class Preference:
    """What a sender prefers.

    ``answer`` is the mode that it asks for, ``wait`` is in seconds; ``applied`` is the answer's
    Preference-Applied.
    """

    answer: str
    wait: float | None
    applied: str


def read_prefer(header: str) -> Preference | None:
    """Return the preference in a Prefer header; None where it has none that is known.

    An unknown or malformed preference is ignored, as the RFC demands, and so is a header that is
    too long.
    """
    if len(header) > MAX_PREFER:
        return None
    wait, respond_async = None, False
    for part in _parts(header):
        part = part.split(";")[0].strip().lower()
        if part == "respond-async":
            respond_async = True
        elif (found := _wait(part)) and wait is None:
            wait = int(found[1])
    if wait:
        return Preference("wait-then-accept", float(wait), f"wait={wait}")
    if respond_async or wait == 0:
        return Preference("accept", None, "respond-async" if respond_async else "wait=0")
    return None
