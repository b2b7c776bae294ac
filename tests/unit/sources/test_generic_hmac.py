"""The scheme that the operator describes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.sources.base import Draft, Signed, Source
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import is_secret, post
from tests.unit.sources.sending import URL, own, received, unverified


def source(**options) -> Source:
    return own(**{"scheme": "hmac", "signature": "header:X-Signature", **options})


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ({}, {"id": "7", "type": "order.paid"}),
        ({"identity": "json:/event/id", "event": "json:/event/type"},
         {"id": "7", "type": "order.paid", "event": {"id": "7", "type": "order.paid"}}),
        ({"identity": "json:/id/a~1b", "event": "header:X-Event"},
         {"id": {"a/b": "7"}, "type": "order.paid"}),
        ({"identity": "header:X-Id", "event": "json:"}, {"id": "7", "type": "order.paid"}),
    ],
)  # fmt: skip
def test_a_sample_has_its_identity_and_event_where_they_are_read(options, body):
    event, sample = source(**options).sample("order.paid", "7", NOW)
    assert (event, json.loads(sample)) == ("order.paid", body)


@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "sha512"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
@pytest.mark.parametrize("prefix", ["", "sha256=", "HMAC "])
@given(
    secret=st.text(st.characters(codec="utf-8"), min_size=1, max_size=150).filter(is_secret),
    body=st.binary(max_size=300),
    identity=st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1),
)
def test_it_is_what_it_says(algorithm, encoding, prefix, secret, body, identity):
    described = source(
        secrets=secret,
        algorithm=f"hmac-{algorithm}",
        encoding=encoding,
        prefix=prefix,
        signed="v0:{time}:{id}:größe:{body}",
        time="header:X-Time",
        id="header:X-Id",
    )
    message = f"v0:{int(NOW)}:{identity}:größe:".encode() + body
    mac = hmac.digest(secret.encode(), message, getattr(hashlib, algorithm))
    text = mac.hex() if encoding == "hex" else base64.b64encode(mac).decode()
    headers = {"x-time": str(int(NOW)), "x-id": identity, "x-signature": prefix + text}
    assert described.sign(Draft(body, URL, NOW, identity=identity)).headers == headers
    request = received(Signed(body, headers))
    assert json.loads(described.verify(request).identity) == [identity, ""]
    for name, value in headers.items():
        unverified(described, replace(request, headers={**headers, name: value + "0"}))


@pytest.mark.parametrize(
    ("signed", "more", "message"),
    [
        ("{body}", {}, b"BODY"),
        ("{time}{body}", {"time": "header:t"}, b"1800000000BODY"),
        ("{body}.{body}", {}, b"BODY.BODY"),
        ("{id}\n{time}", {"time": "header:t", "id": "header:i"}, b"one\n1800000000"),
    ],
)
def test_templates(signed, more, message):
    described = source(signed=signed, **more)
    expected = hmac.new(b"key", message, hashlib.sha256).hexdigest()
    draft = Draft(b"BODY", URL, NOW, identity="one")
    assert described.sign(draft).headers["x-signature"] == expected
    assert described.covers_body == ("{body}" in signed)
    assert described.verify(received(described.sign(draft))).body == b"BODY"


@pytest.mark.parametrize("when", ["1800000000123", "2027-01-15T08:00:00Z", "-"])
def test_without_a_tolerance_the_time_may_be_in_any_form(when):
    options = {"signed": "{time}.{body}", "time": "header:X-Time"}
    proof = hmac.new(b"key", f"{when}.BODY".encode(), hashlib.sha256).hexdigest()
    request = post("", b"BODY", headers={"x-time": when, "x-signature": proof})
    assert source(tolerance=0, **options).verify(request).body == b"BODY"
    unverified(source(**options), request)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(
            ({"signed": signed}, "signed: ")
            for signed in ("", "body", "{body", "{body}}", "{nonce}{body}", "{}", "{body!r}")
        ),
        ({"signed": "{body.__class__}"}, "signed: "),
        ({"signed": "{time}.{body}"}, "time: is needed for time in signed"),
        ({"time": "header:X-Time"}, "time: header:x-time is not signed; write {time}"),
        ({"signed": "{id}.{body}"}, "id: is needed for id in signed"),
        ({"algorithm": "md5"}, "algorithm"),
        ({"encoding": "base32"}, "encoding"),
        ({"signature": "header:X Signature"}, "header"),
        ({"signature": "header:"}, "header"),
        ({"prefix": "ä"}, "prefix"),
        ({"event": "X-Event"}, "event"),
        ({"event": "json:type"}, "event"),
        ({"identity": "param:x"}, "identity"),
        ({"id": "header:X\nId"}, "is no place"),
    ],
)
def test_options_that_cannot_be(options, text):
    with pytest.raises(ValidationError) as error:
        source(**options)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("options", "body", "expected"),
    [
        ({}, b"no JSON", ("", "")),
        ({"id": "header:X-Id"}, b"no JSON", ("i1", "")),
        ({"identity": "header:X-ID", "event": "header:x-event"}, b"no JSON", ("i1", "e1")),
        ({"id": "header:X-Id", "identity": "json:/id"}, b'{"id":7}', ("7", "")),
        ({"event": "json:/a/1/b~1c"}, b'{"a":[0,{"b/c":"x"}]}', ("", "x")),
        ({"event": "json:/"}, b'{"":"x"}', ("", "x")),
        ({"event": "json:/a~01"}, b'{"a~1":"x"}', ("", "x")),
        ({"event": "json:"}, b'{"":"x"}', ("", "")),
        ({"event": "json:/a/2"}, b'{"a":[0]}', ("", "")),
        ({"event": "json:/a/-1"}, b'{"a":[0]}', ("", "")),
        ({"event": "json:/a/99999999999"}, b'{"a":[0]}', ("", "")),
        ({"event": "json:/a/b"}, b'{"a":"text"}', ("", "")),
        ({"event": "json:/a"}, b'{"a":null}', ("", "")),
        ({"event": "header:X-None"}, b"", ("", "")),
    ],
)
def test_identity_and_event_stand_where_the_options_say(options, body, expected):
    described = source(**options)
    signed = described.sign(Draft(body, URL, NOW))
    headers = {**signed.headers, "X-Id": "i1", "X-Event": "e1"}
    verified = described.verify(received(Signed(body, headers)))
    key = str(json.loads(verified.identity)[0]) if verified.identity else ""
    assert (key, verified.event) == expected


@pytest.mark.parametrize("body", [b"no JSON", b"[1]", b'"text"', b"1", b"null", b"", b"\xff"])
def test_where_there_is_no_such_place_there_is_no_identity_and_no_event(body):
    described = source(identity="json:/id", event="json:/type")
    verified = described.verify(received(described.sign(Draft(body, URL, NOW))))
    assert (verified.body, verified.identity, verified.event) == (body, "", "")


def test_a_place_may_be_in_an_array():
    described = source(identity="json:/0/id", event="json:/0/type")
    body = rb'[{"id":7,"type":"a\ud83d","x":NaN}]'
    verified = described.verify(received(described.sign(Draft(body, URL, NOW))))
    assert (verified.identity, verified.event) == ('[7, "a?"]', "a?")


def test_its_header_is_kept_from_the_task():
    assert source(signature="header:X-Any").secret_headers == {"x-any"}
