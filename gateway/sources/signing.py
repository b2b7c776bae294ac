"""Sign as a sender would that is a block of data, and make its samples."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus, urlsplit
from uuid import uuid4

from gateway.delivery import Request
from gateway.sources.base import Draft, Signed
from gateway.sources.block import Block
from gateway.sources.compiled import Readers, Unit
from gateway.sources.fields import pointer, put, read_if_json
from gateway.sources.keys import Key
from gateway.sources.places import Place, Seen

_DEFAULT_EVENT = "hello"


def sample(block: Block, event: str, identity: str, time: str) -> tuple[str, bytes]:
    """Return an event, and a body with all that is read; `time` as the sender writes it."""
    message: Any = {"id": identity, "type": event or _DEFAULT_EVENT}
    event = event or (_DEFAULT_EVENT if block.event else "")
    kind, _, action = event.partition(".")
    for texts, value in (
        (block.identity, identity),
        (block.event, kind if block.subevent else event),
        (block.subevent, action),
        (block.time, int(time) if time.isdigit() else time),
    ):
        place = Place.parse(texts[0]) if texts else Place("")
        if place.kind == "json" and place.name and value != "":
            message = put(message, pointer(place.name.replace("*", "0")), value)
    return event, json.dumps(message, separators=(",", ":")).encode()


def sign(
    readers: Readers, draft: Draft, key: Key, unit: Unit, parts: Callable[[Seen], list[bytes]]
) -> Signed:
    """Return `draft` as the sender would send it that has the key."""
    block = readers.block
    kept: dict[str, dict[str, Any]] = {"header": {}, "sig": {}, "claim": {}}
    event = draft.event.partition(".")[0] if block.subevent else draft.event
    codes = {text: code for code, text in block.names.items()}
    number = draft.identity or (f"msg_{uuid4().hex}" if block.id else "")
    for texts, value in (
        (block.time, unit.write(draft.now)),
        (block.id, number),
        (block.identity, draft.identity),
        (block.event, codes.get(event, event)),
    ):
        place = Place.parse(texts[0]) if texts and value else Place("")
        kept.get(place.kind, {})[place.name] = value
    for text, value in block.require.items():
        place = Place.parse(text)
        if place.kind == "header":
            kept["header"][place.name] = value
    for place in (place for text in block.signed_places for place in block.places(text)):
        if place.kind == "headers":
            kept["header"][place.name.partition(",")[0]] = place.name
        elif place.kind == "sig":
            kept["sig"].setdefault(place.name, "sample")
    headers, fields, claims = kept.values()
    url = urlsplit(draft.url)
    seen = Seen(Request("POST", url.path or "/", url.query, headers, draft.body, "", 0.0, 0.0))
    seen.sig = fields
    if block.is_jwt:
        signature = block.prefix + _signed_token(readers, key, seen, draft.now, claims)
    else:
        signature = key.sign(parts(seen)).decode("latin-1")
    if block.pick:
        items = [*fields.items(), (block.pick[0], signature)]
        assigned = [f"{k}{block.assign}{v}" if block.assign else v for k, v in items]
        signature = block.separators[0].join(assigned)
    place = Place.parse(block.signature[0])
    for each in reversed(place.filters):  # undone by who reads the place
        if each == "base64":
            signature = b64encode(signature.encode()).decode()
        elif each.startswith("json:"):
            signature = json.dumps(put({}, pointer(each.removeprefix("json:")), signature))
    if place.kind == "body":
        return Signed(signature.encode(), headers)
    if place.kind == "query":
        return Signed(draft.body, headers, {place.name: signature})
    if place.kind == "form":
        field = f"{place.name}={quote_plus(signature)}".encode()
        return Signed(b"&".join(filter(None, [draft.body, field])), headers)
    if place.kind == "json":
        message = put(seen.json, pointer(place.name.replace("*", "0")), signature)
        return Signed(json.dumps(message).encode(), headers)
    return Signed(draft.body, {**headers, place.name: signature})


def _signed_token(readers: Readers, key: Key, seen: Seen, now: float, named: dict[str, str]) -> str:
    """Return a token with the claims that are read, and those that are required."""
    claims: Any = {"iat": int(now), "nbf": int(now), "exp": int(now) + 60}
    if readers.block.signature == ["body"]:
        claims |= read_if_json(seen.body)
    required = {
        place.removeprefix("claim:"): readers.filled(text)(seen)[0].decode()
        for place, text in readers.block.require.items()
        if readers.texts or "{key}" not in text
    }
    for path, value in {**named, **required}.items():
        claims = put(claims, pointer(path), value)
    algorithm = key.sign([b""]).partition(b".")[0].decode()
    texts = [json.dumps(each).encode() for each in ({"alg": algorithm}, claims)]
    signed = b".".join([urlsafe_b64encode(text).rstrip(b"=") for text in texts])
    return f"{signed.decode()}.{key.sign([signed]).partition(b'.')[2].decode()}"
