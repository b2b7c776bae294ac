"""Blocks of one's own and the scheme hmac: what they become, and what is said of wrong ones."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.cli.checks import settings
from gateway.config.loading import load
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.process import handover
from gateway.sources import of, options_class
from gateway.sources.base import Draft, Signed, Source
from gateway.sources.places import Place, encoded
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import is_secret, post
from tests.unit.sources.messages import source as of_scheme
from tests.unit.sources.sending import URL, own, received, unverified

BLOCK = {
    "secrets": "key", "signature": "header:X-Sig", "list": ",", "pick": "v1",
    "signed": "{sig:t}.{body}", "time": "sig:t", "unit": "ms", "identity": "json:/id",
    "event": "json:/type",
}  # fmt: skip

TOKEN = {"secrets": "key", "signature": "header:x-sig", "algorithm": "jwt"}


def source(**changes: Any) -> Source:
    return own(**{**BLOCK, **changes})


def test_a_table_without_a_scheme_is_a_block():
    signed = source().sign(Draft(b'{"id":7,"type":"a"}', URL, NOW))
    verified = source().verify(received(signed))
    assert (json.loads(verified.identity), verified.event) == ([7, "a"], "a")
    assert source().covers_body and source().secret_headers == {"x-sig"}


def test_all_keys_of_blocks_reach_the_gateways_children():
    block = {
        "secrets": "me", "signature": "header:x-sig", "algorithm": ["rsa-sha256", "rsa-sha1"],
        "key": "pem", "methods": ["GET", "POST"], "require": {"header:x-to": "{key}"},
        "key_url": "{header:x-url}", "key_urls": ["https://a.example/*"],
        "key_headers": {"authorization": "{token}"}, "key_token": ["https://a.example/t", "a=b"],
    }  # fmt: skip
    pubsub = {"scheme": "google_pubsub", "secrets": "me@example.com", "audience": "us"}
    route = {"path": "/", "source": "p", "methods": ["PUT"]}
    routes = [route, {"path": "/x", "source": "p"}, {"path": "/y", "source": "g"}]
    config = Config(sources={"p": block, "g": pubsub, "b": BLOCK}, routes=routes)
    there = handover.read(handover.write(handover.Start(config, [], 0))).config
    assert there.sources == config.sources
    assert [each.methods for each in there.routes] == [["PUT"], ["GET", "POST"], ["POST"]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"signature": "hedder:x"}, "signature[0]: hedder:x is no place; a place is header:NAME"),
        ({"signed": "{body|sha}"}, "signed: body|sha: there is no filter sha; there are sha256hex"),
        ({"signed": "{bdy}"}, "signed: a text with places in braces"),
        ({"algorithm": "hmac-sha265"}, "hmac-sha265 is not known; did you mean hmac-sha"),
        ({"algorithm": "sha256"}, "signed: a plain hash has to have the key in it"),
        ({"list": None}, "list: is needed for pick"),
        ({"pick": []}, "pick: is needed for sig: places"),
        ({"time": "header:x-time"}, "time: header:x-time is not signed"),
        ({"key": "hex"}, "a key in hexadecimal digits"),
        ({"colour": 1}, "colour: there is no such setting"),
    ],
)  # fmt: skip
def test_a_wrong_block_is_told_with_its_place_and_what_would_be_valid(tmp_path, change, words):
    table = {key: value for key, value in {**BLOCK, **change}.items() if value is not None}
    file = tmp_path / "gateway.toml"
    file.write_text("[sources.p]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items()))
    with pytest.raises(ConfigError) as error:
        load({}, {}, file)
    assert any(p.startswith(f"{file}: sources.p.") and words in p for p in error.value.problems)


@pytest.mark.parametrize(
    ("unit", "text"),
    [("s", "1800000000"), ("ms", "1800000000123"), ("iso", "2027-01-15T08:00:00Z")],
)
@pytest.mark.parametrize("tolerance", [0, 300])
def test_times_in_each_form(unit, text, tolerance):
    proof = hmac.digest(b"key", f"{text}.x".encode(), "sha256").hex()
    request = post("", b"x", headers={"x-sig": f"t={text},v1={proof}"})
    assert source(unit=unit, tolerance=tolerance).verify(request)
    for other in {"s", "ms", "iso"} - {unit, *(["ms"] if unit == "s" else [])}:
        unverified(source(unit=other, tolerance=tolerance), request)


def test_woocommerces_ping_is_answered_without_a_signature_and_nothing_else_is():
    receiver = of_scheme("woocommerce", secrets=["s"])
    assert receiver.verify(post("", b"webhook_id=7")).challenge.status == 200
    unverified(receiver, post("", b'{"webhook_id":7}'))


def test_a_senders_largest_body_is_compared_with_max_body():
    sources = {"g": {"scheme": "github", "secrets": "s"}}
    (found,) = settings.bodies(Config(sources=sources))
    assert "set max_body = 26214400" in str(found)
    large = {"max_body": 26_214_400, "max_in_flight_bytes": 10**8}
    assert not list(settings.bodies(Config(sources=sources, **large)))


@pytest.mark.parametrize("apart", [["event"], ["header:X-Shop"]])
def test_two_methods_with_one_body_are_two_deliveries(apart):
    found = source(signature="header:X-Sig", pick=[], list=[], signed="{body}", time=[],
                   identity="digest", apart=apart, methods=["POST", "PUT"])  # fmt: skip
    headers = {"x-sig": hmac.digest(b"key", b"{}", "sha256").hex()}
    first, again, other = (
        found.verify(post("", b"{}", headers=headers, method=method)).identity
        for method in ("POST", "POST", "PUT")
    )
    assert first == again != other != ""


def test_a_secret_may_have_a_name_that_is_signed():
    changes = {"signature": "header:X-Sig", "list": [], "pick": [], "time": []}
    found = source(signed="{name}.{body}", secrets="me:key:1", **changes)
    request = post("", b"x", headers={"x-sig": hmac.digest(b"key:1", b"me.x", "sha256").hex()})
    assert found.verify(request)
    unverified(found, post("", b"me.x", headers=request.headers))
    with pytest.raises(ValueError, match="a secret is name:key"):
        source(signed="{name}.{body}", secrets="key", **changes)


def test_a_body_may_be_signed_as_text_in_json():
    signed = '{"Body":{body|string},"At":{sig:t}}'
    text = json.dumps({"Body": 'a"ü\n', "At": 1}, ensure_ascii=False, separators=(",", ":"))
    proof = hmac.digest(b"key", text.encode(), "sha256").hex()
    headers = {"x-sig": f"t=1,v1={proof}"}
    found = source(signed=signed, tolerance=0)
    assert found.verify(post("", 'a"ü\n'.encode(), headers=headers))
    assert found.covers_body
    for body in (b"a", b"\xff"):
        unverified(found, post("", body, headers=headers))


def test_a_header_may_have_several_sets_of_fields():
    found = source(list=[",", " "], tolerance=0)
    proof = hmac.digest(b"key", b"1.x", "sha256").hex()
    assert found.verify(post("", b"x", headers={"x-sig": f"t=1,v1=0 t=1,v1={proof}"}))
    unverified(found, post("", b"x", headers={"x-sig": f"t=2,v1=0 t=1,v1={proof}"}))


@pytest.mark.parametrize("header", [True, False])
def test_a_long_event_is_taken_from_a_header_and_from_json(header):
    long = "x" * 5_000
    receiver = source(event="header:x-event" if header else "json:/type")
    signed = receiver.sign(Draft(json.dumps({"type": long}).encode(), URL, NOW, event=long))
    assert receiver.verify(received(signed)).event == long


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ({"scheme": "google_pubsub", "secrets": "a@b"}, True),
        ({"scheme": "google_pubsub", "secrets": "a@b", "audience": "us"}, False),
        ({"scheme": "ebay", "secrets": "a:b"}, False),
        ({"scheme": "ebay", "secrets": "a:b", "verify_token": "t"}, True),
        ({**TOKEN, "require": {"claim:/aud": "{audience}"}}, True),
        (BLOCK, False),
    ],
)
def test_the_public_url_is_needed_where_it_is_signed_or_said(source, needed):
    options = options_class(source).model_validate(source)
    assert of(options).needs_url(options) == needed


# The scheme hmac ----------------------------------------------------------------------------------


def of_hmac(**options) -> Source:
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
    event, sample = of_hmac(**options).sample("order.paid", "7", NOW)
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
    described = of_hmac(
        secrets=secret, algorithm=f"hmac-{algorithm}", encoding=encoding, prefix=prefix,
        signed="v0:{time}:{id}:größe:{body}", time="header:X-Time", id="header:X-Id",
    )  # fmt: skip
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
    described = of_hmac(signed=signed, **more)
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
    assert of_hmac(tolerance=0, **options).verify(request).body == b"BODY"
    unverified(of_hmac(**options), request)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(
            ({"signed": signed}, "signed: ")
            for signed in ("", "body", "{body", "{body}}", "{nonce}{body}", "{}", "{body!r}")
        ),
        ({"signed": "{body.__class__}"}, "signed: "),
        ({"signed": "{time}.{body}"}, "time: is needed for time in signed"),
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
        of_hmac(**options)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("options", "body", "expected"),
    [
        ({}, b"no JSON", ("", "")),
        ({"id": "header:X-Id"}, b"no JSON", ("i1", "")),
        ({"identity": "header:X-ID", "event": "header:x-event"}, b"no JSON", ("i1", "e1")),
        ({"id": "header:X-Id", "identity": "json:/id"}, b'{"id":7}', ("7", "")),
        ({"event": "json:/a/1/b~1c"}, b'{"a":[0,{"b/c":"x"}]}', ("", "x")),
        ({"event": "json:"}, b'{"":"x"}', ("", "")),
        ({"event": "json:/a/2"}, b'{"a":[0]}', ("", "")),
        ({"event": "json:/a"}, b'{"a":null}', ("", "")),
        ({"event": "header:X-None"}, b"", ("", "")),
        ({"identity": "json:/0/id", "event": "json:/0/type"},
         rb'[{"id":7,"type":"a\ud83d","x":NaN}]', ("7", "a?")),
        *(({"identity": "json:/id", "event": "json:/type"}, body, ("", ""))
          for body in (b"no JSON", b"[1]", b'"text"', b"1", b"null", b"", b"\xff")),
    ],
)  # fmt: skip
def test_identity_and_event_stand_where_the_options_say(options, body, expected):
    described = of_hmac(**options)
    signed = described.sign(Draft(body, URL, NOW))
    headers = {**signed.headers, "X-Id": "i1", "X-Event": "e1"}
    verified = described.verify(received(Signed(body, headers)))
    key = str(json.loads(verified.identity)[0]) if verified.identity else ""
    assert (verified.body, key, verified.event) == (body, *expected)


def test_a_text_has_the_bytes_that_were_received():
    assert (encoded("\xe9", True), encoded("\xe9")) == (b"\xe9", "\xe9".encode())
    assert Place("header:X-A|base64|json:/b").plain == "header:x-a"


@pytest.mark.parametrize("status", [199, 200, 299, 300])
def test_a_handshake_is_answered_well(status):
    valid = 200 <= status < 300
    with nullcontext() if valid else pytest.raises(ValidationError, match="status"):
        source(handshakes=[{"method": "GET", "status": status}])
