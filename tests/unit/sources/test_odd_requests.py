"""Whatever is sent: a source answers it with 400 or 401, or passes it on as it is."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.delivery import Request
from gateway.errors import BadRequest, MethodNotAllowed, NotFound, Unverified
from gateway.sources import find
from gateway.sources.base import Source
from tests.unit.sources.examples import DEEP, NOW
from tests.unit.sources.odd_bodies import SENT_JSON
from tests.unit.sources.sending import ends, receiver, send

every_scheme = pytest.mark.parametrize("scheme", DEEP)
latin = st.text(st.characters(codec="latin-1"), max_size=60)
#: What looks like a proof or its time.
proofs = st.sampled_from(
    [
        f"{NOW:.0f}", f"t={NOW:.0f},v1={'0' * 64}", "v1," + "A" * 43 + "=", "v1=" + "A" * 86 + "==",
        "v0=" + "0" * 64, "sha256=" + "0" * 64, "sha256=" + "A" * 43 + "=", "A" * 27 + "=",
        "0" * 128, "0" * 40,
    ]
)  # fmt: skip

#: What no parser may stumble over, nor anything behind it.
ODD_BODIES = {
    **SENT_JSON,
    "100,000 deep": b'{"a":' * 100_000,
    "5,000 deep in a type": b'{"type":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "4,000 digits": b'{"id":' + b"9" * 4_000 + b',"update_id":' + b"9" * 4_000 + b"}",
    "infinite": b'{"id":1e999,"type":-1e999,"update_id":1e999}',
    "NaN as an id": b'{"id":NaN}',
    "a lone surrogate": rb'{"id":"\ud800","type":"\udfff","object":"\ud800","action":"\ud800"}',
    "surrogates in UTF-8": b'{"id":"\xed\xa0\x80"}',
    "NUL": b'{"id":"\\u0000"}\x00',
    "cut off": b'{"id":"1","type"',
    "other types": b'{"id":{},"type":[],"event":[],"event_id":true,"update_id":null,"entry":{}}',
    "texts for objects": b'{"id":"1","type":1,"event":"x","entry":"x","header":"x","challenge":3}',
    "odd entries": b'{"object":[],"entry":[1,{"changes":3},{"changes":[1,{"field":{}}]}]}',
    "many fields": b"a=1&" * 5_000,
    "odd percents": b"payload=%7B%&%zz=%f&command=%ff&CallStatus=%ff%",
    "a payload that is no JSON": b"payload=%5B1%5D",
    "a deep payload": b"payload=" + b"%7B%22a%22%3A" * 5_000,
    "a DTD": b'<!DOCTYPE x [<!ENTITY a "b">]><xml>&a;</xml>',
}


@every_scheme
def test_odd_bodies_are_refused_or_passed_on_as_they_are_signed_or_not(scheme):
    source, request = receiver(scheme), send(scheme)
    for name, body in ODD_BODIES.items():
        outcome(name, source, replace(request, body=body))
        with contextlib.suppress(BadRequest):  # a sender that has to read it to sign it
            outcome(name, source, send(scheme, body))


def outcome(name: str, source: Source, request: Request) -> None:
    try:
        verified = source.verify(request)
    except (BadRequest, Unverified) as error:
        assert error.detail.isprintable() and len(error.detail) < 150, name
    else:
        f"{verified.identity}{verified.event}{verified.account}".encode()
        assert type(verified.body) is bytes, name


@every_scheme
@given(data=st.data(), body=st.binary(max_size=100), query=latin, path=latin)
def test_what_nobody_signed_is_refused(scheme, data, body, query, path):
    names = list(send(scheme).headers)
    headers = data.draw(st.fixed_dictionaries(dict.fromkeys(names, latin | proofs)))
    with pytest.raises((BadRequest, Unverified)):
        ends(scheme)[1].verify(Request("POST", path, query, headers, body, "", 0.0, NOW))


HANDSHAKES = ["hub.mode", "hub.verify_token", "hub.challenge", "crc_token", "signature"]
HANDSHAKES += ["msg_signature", "timestamp", "nonce", "echostr"]


@every_scheme
@given(names=st.lists(st.sampled_from(HANDSHAKES)), value=latin, query=latin)
def test_no_handshake_without_a_secret(scheme, names, value, query):
    query = "&".join([query, *(f"{name}={value}" for name in names)])
    request = Request("GET", "/", query, {}, b"", "", 0.0, NOW)
    try:
        answer = ends(scheme)[1].handshake(request)
    except (BadRequest, Unverified, NotFound, MethodNotAllowed) as error:
        assert find(scheme).handshakes or error.status == 405
    else:
        # Whoever asks X's way gets its own question back, signed: see test_handshakes.py.
        assert scheme == "x" and answer.status == 200


@every_scheme
def test_where_there_is_no_handshake_a_get_is_told_what_is_allowed(scheme):
    if not find(scheme).handshakes:
        with pytest.raises(MethodNotAllowed) as error:
            receiver(scheme).handshake(Request("GET", "/", "", {}, b"", "", 0.0, NOW))
        assert error.value.headers == {"Allow": "POST"}
