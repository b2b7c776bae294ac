"""The scheme `hmac`: a configurable HMAC in a header, for senders without a scheme of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import model_validator

from gateway.delivery import Request
from gateway.model import matching
from gateway.sources import base
from gateway.sources.base import Draft, Example, Sample, Signed, Verified
from gateway.sources.envelopes import read_loosely
from gateway.sources.fields import at, identity, name, pointer, put
from gateway.sources.hmac_source import HMACSource
from gateway.sources.signatures import check_time, digest, header, raw

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # RFC 9110, 5.1
_placeholder = re.compile(r"\{(body|timestamp|id)\}")

HeaderName = Annotated[str, matching(_TOKEN, "is a header's name, as in X-Signature")]
#: A header, or a place in a JSON body.
Place = Annotated[
    str,
    matching(rf"header:{_TOKEN}|json:(/[^\r\n]*)?", "is written as header:NAME or json:/pointer"),
]
_Printable = Annotated[str, matching(r"[\x20-\x7e]*", "has printable ASCII characters only")]


class Options(base.Options):
    """What is signed, how, and in which header; header names may be in any case."""

    header: HeaderName
    algorithm: Literal["sha1", "sha256", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    #: The text before the signature in the header.
    prefix: _Printable = ""
    #: ``{body}``, ``{timestamp}`` and ``{id}`` with text around and between them.
    signed: str = "{body}"
    #: The header with the time in seconds since the epoch.
    timestamp_header: HeaderName | None = None
    #: The header with the id, which identifies the delivery unless `identity` is set.
    id_header: HeaderName | None = None
    identity: Place | None = None
    event: Place | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Options:
        names = _placeholder.findall(self.signed)
        problems = []
        if not names or re.search(r"[{}]", _placeholder.sub("", self.signed)):
            problems.append("signed: a text with {body}, {timestamp} or {id}, and no other braces")
        if ("timestamp" in names) != (self.timestamp_header is not None):
            problems.append("timestamp_header: set it together with {timestamp} in signed")
        if "id" in names and self.id_header is None:
            problems.append("id_header: is needed for {id} in signed")
        if problems:
            raise ValueError("\n".join(problems))
        return self


class GenericHMAC(HMACSource):
    """Signs the text of the option `signed`.

    A header is signed only if `signed` contains it. The event may be in a header that is not
    signed. Where the identity is in such a header, the digest of the body belongs to it: otherwise
    a copy of one delivery could get the answer of another.
    """

    samples = {"": Sample("hello", '{"id":"$id","type":"$event"}')}
    example = Example(
        {
            "secrets": "s3cret",
            "header": "X-Signature",
            "algorithm": "sha512",
            "encoding": "base64",
            "prefix": "v1=",
            "signed": "{id}.{timestamp}.{body}",
            "timestamp_header": "X-Time",
            "id_header": "X-Id",
            "event": "header:X-Event",
        },
        other_secret="secret",
        proof="x-signature",
        opaque=True,
        timed=True,
    )

    options_class = Options
    options: Options

    def __init__(self, options: Options, public_url: str = ""):
        self.header = options.header.lower()
        self.secret_headers = frozenset([self.header])
        self.algorithm = options.algorithm
        self.encoding = options.encoding
        self.prefix = options.prefix.encode()
        super().__init__(options, public_url)
        # Texts and placeholders alternate; the first part is a text.
        self._parts = _placeholder.split(options.signed)
        self._timestamp_header = (options.timestamp_header or "").lower()
        self._id_header = (options.id_header or "").lower()
        id_place = f"header:{self._id_header}" if self._id_header else None
        self._identity_place = options.identity or id_place
        self._read_identity = _reader(self._identity_place)
        self._read_event = _reader(options.event)
        self.events = () if options.event is None else None
        #: Is the identity in a header that is not signed?
        place = (self._identity_place or "").lower()
        signed = "id" in self._parts[1::2] and place == id_place
        self._unsigned = place.startswith("header:") and not signed
        self._reads_json = any(
            _tokens(place) is not None for place in (options.identity, options.event)
        )

    @property
    def covers_body(self) -> bool:
        return "{body}" in self.options.signed

    def sample(self, event: str, identity: str, now: float, token: str = "") -> tuple[str, bytes]:
        event, body = super().sample(event, identity, now, token)
        if not self._reads_json:
            return event, body
        message = json.loads(body)
        for place, value in ((self.options.identity, identity), (self.options.event, event)):
            if tokens := _tokens(place):
                put(message, tokens, value)
        return event, json.dumps(message, separators=(",", ":")).encode()

    def verify(self, request: Request) -> Verified:
        timestamp = signed_id = ""
        if self._timestamp_header:
            timestamp = header(request, self._timestamp_header)
            if self.options.tolerance:  # else it may be in another unit, or a date
                check_time(timestamp, request.received_at, self.options.tolerance)
        if "id" in self._parts[1::2]:
            signed_id = header(request, self._id_header)
        self.check(request, *self._signed(request.body, timestamp, signed_id))
        message = read_loosely(request.body) if self._reads_json else None
        key = self._read_identity(request.headers, message)
        event = name(self._read_event(request.headers, message))
        apart = [event, digest(request.body)] if self._unsigned else [event]
        return Verified(request.body, identity(key, *apart), event)

    def sign(self, draft: Draft) -> Signed:
        headers = {}
        timestamp, identity = str(int(draft.now)), draft.identity or uuid4().hex
        if self._timestamp_header:
            headers[self._timestamp_header] = timestamp
        if self._id_header:
            headers[self._id_header] = identity
        for place, value in (
            (self._identity_place, draft.identity),
            (self.options.event, draft.event),
        ):
            if value and place and place.startswith("header:"):
                headers[place.removeprefix("header:").lower()] = value
        signed = self._signed(draft.body, timestamp, identity)
        return Signed(draft.body, {**headers, **self.signature(*signed)})

    def _signed(self, body: bytes, timestamp: str, identity: str) -> list[bytes]:
        values = {"body": body, "timestamp": raw(timestamp), "id": raw(identity)}
        return [
            values[part] if i % 2 else part.encode() for i, part in enumerate(self._parts) if part
        ]


def _tokens(place: str | None) -> list[str] | None:
    """Return the tokens of a place's JSON pointer; None: it is not in the body."""
    return pointer(place.removeprefix("json:")) if place and place.startswith("json:") else None


def _reader(place: str | None) -> Callable[[dict[str, str], Any], Any]:
    """Return a function that reads the value at `place` from headers and JSON; empty: none."""
    if place is None:
        return lambda _headers, _message: ""
    if (tokens := _tokens(place)) is not None:
        return lambda _headers, message: at(message, tokens)
    where = place.removeprefix("header:").lower()
    return lambda headers, _message: headers.get(where, "")
