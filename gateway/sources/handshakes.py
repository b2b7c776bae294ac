"""Compile the answers to handshakes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import sha256

from gateway.answer import JSON, TEXT, Answer, field_value
from gateway.errors import Unverified
from gateway.sources.block import Handshake
from gateway.sources.fields import name
from gateway.sources.places import Seen
from gateway.sources.readers import Readers, pieces
from gateway.sources.signatures import check

#: What anybody may have signed by a handshake: nothing that a signed text could be.
is_token = re.compile(rb"[A-Za-z0-9._~+/=-]{1,512}").fullmatch


def handshake(
    about: Handshake,
    readers: Readers,
    prove: Callable[[Seen], None],
    sign: Callable[[Seen, bytes], bytes],
) -> Callable[[Seen], Answer | None]:
    """Return a function that answers a handshake; None: the request is not that."""
    wanted = [(readers.first([text]), value) for text, value in about.when.items()]
    needed = [readers.first([text]) for text in about.reads]
    content_type = about.content_type
    if content_type is None:
        content_type = TEXT if about.body else ""
    hashed = readers.filled(about.sha256) if about.sha256 else None
    body = _filled(readers, sign, about.body, content_type == JSON)
    headers = {key.lower(): _filled(readers, sign, text) for key, text in about.headers.items()}
    token = readers.first([about.token]) if about.token else None
    proven = about.method == "POST" or not about.is_signed

    def answer(seen: Seen) -> Answer | None:
        for read, value in wanted:
            found = read(seen)
            if found != value or type(found) is not type(value):  # true is no 1
                there = found is not None and found != ""
                if there if value == "" else not there or value != "*":
                    return None
        if token is not None:
            check([name(token(seen)).encode()], [readers.verify_token().encode()])
        if not proven:
            prove(seen)
        if needed and not all(name(read(seen)) for read in needed):
            return None
        if hashed is not None:
            seen.sha256 = sha256(hashed(seen)[0]).hexdigest()
        given = {key: fill(seen).decode("latin-1") for key, fill in headers.items()}
        if not all(map(field_value, given.values())):
            raise Unverified("What is to be sent back in a header is not visible ASCII.")
        return Answer(about.status, content_type, body(seen), given)

    return answer


def _filled(
    readers: Readers, sign: Callable[[Seen, bytes], bytes], text: str, is_json: bool = False
) -> Callable[[Seen], bytes]:
    """Return a function that fills in the places of a handshake's answer."""

    def place(text: str) -> Callable[[Seen], bytes]:
        if text == "sha256":
            return lambda seen: seen.sha256.encode()
        read, signed = readers.first([text]), text.startswith("hmac:")

        def fill(seen: Seen) -> bytes:
            value = name(read(seen)).encode()
            if signed:
                if not is_token(value):
                    raise Unverified("What is to be signed for a handshake is not a token.")
                return sign(seen, value)
            return json.dumps(value.decode())[1:-1].encode() if is_json else value

        return fill

    fills = pieces(text, place)
    return lambda seen: b"".join([fill(seen) for fill in fills])
