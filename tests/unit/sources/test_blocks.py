"""Blocks of one's own: what is compiled from them, and what is said of wrong ones."""

from __future__ import annotations

import hmac
import json
from typing import Any

import pytest

from gateway.cli.checks import configuration
from gateway.config.loading import load
from gateway.config.settings import Config
from gateway.errors import ConfigError
from gateway.process import handover
from gateway.sources import find, of, options_class
from gateway.sources.base import Draft, Source
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import post
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


def test_a_block_reaches_the_gateways_children(tmp_path):
    config = Config(sources={"p": BLOCK}, routes=[{"path": "/", "source": "p", "deadline": 3}])
    options = handover.read(handover.write(handover.Start(config, [], 0))).config.sources["p"]
    assert options == config.sources["p"]


def test_all_keys_reach_the_gateways_children():
    block = {
        "secrets": "me", "signature": "header:x-sig", "algorithm": ["rsa-sha256", "rsa-sha1"],
        "key": "pem", "methods": ["GET", "POST"], "require": {"header:x-to": "{key}"},
        "key_url": "{header:x-url}", "key_urls": ["https://a.example/*"],
        "key_headers": {"authorization": "{token}"}, "key_token": ["https://a.example/t", "a=b"],
    }  # fmt: skip
    pubsub = {"scheme": "google_pubsub", "secrets": "me@example.com", "audience": "us"}
    route = {"path": "/", "source": "p", "methods": ["PUT"]}
    routes = [route, {"path": "/x", "source": "p"}, {"path": "/y", "source": "g"}]
    config = Config(sources={"p": block, "g": pubsub}, routes=routes)
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
        ({"algorithm": "ed25519"}, "key: ed25519 needs a public key"),
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
    found = find("woocommerce")
    receiver = found(found.options_class(scheme="woocommerce", secrets=["s"]))
    assert receiver.verify(post("", b"webhook_id=7")).challenge.status == 200
    unverified(receiver, post("", b'{"webhook_id":7}'))


def test_a_senders_largest_body_is_compared_with_max_body():
    sources = {"g": {"scheme": "github", "secrets": "s"}}
    (found,) = configuration.bodies(Config(sources=sources))
    assert "set max_body = 26214400" in str(found)
    large = {"max_body": 26_214_400, "max_in_flight_bytes": 10**8}
    assert configuration.bodies(Config(sources=sources, **large)) == []


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
