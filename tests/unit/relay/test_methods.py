"""Other methods than POST: deliveries by GET and PUT, handshakes by GET, HEAD and OPTIONS."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import pytest
from twilio.request_validator import RequestValidator

from gateway.answer import TEXT, Answer
from gateway.config.settings import Config
from gateway.delivery import Request
from gateway.errors import MethodNotAllowed
from gateway.relay.routes import Endpoint, Routes
from tests.unit.sources.sending import unverified

TOPIC = "https://example.com/feed"
OWN = {"signature": "header:x-signature", "secrets": "s", "identity": "digest"}


def endpoint(source: Mapping[str, Any] | None, *routes: Mapping[str, Any]) -> Endpoint:
    named, sources = ({"source": "a"}, {"a": source}) if source else ({}, {})
    some = [{"path": "/in", **named, **each} for each in routes]
    config = Config(sources=sources, routes=some, public_url="https://hooks.example.com")
    return Routes(config).find("/in")[0]


def request(method: str, query: str = "", body: bytes = b"", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, "/in", query, named, body, "", 0.0, 1_800_000_000.0)


def signed(text: str) -> str:
    return hmac.new(b"s", text.encode(), hashlib.sha256).hexdigest()


def allowed(found: Endpoint, method: str) -> str:
    with pytest.raises(MethodNotAllowed) as refused:
        found.verify(request(method))
    assert len(refused.value.detail) < 60
    return refused.value.headers["Allow"]


def test_a_post_is_all_that_is_taken_unless_somebody_says_otherwise():
    for source in (None, OWN):
        found = endpoint(source, {})
        for method in ("GET", "PUT", "HEAD", "OPTIONS", "DELETE", "TRACE", "get", "X" * 1_000):
            assert allowed(found, method) == "POST"
    chat = endpoint({"scheme": "meta", "secrets": "s", "verify_token": "t"}, {})
    assert allowed(chat, "PUT") == "GET, POST"


def test_a_route_says_which_methods_it_takes():
    found = endpoint(None, {"methods": ["PUT", "GET"]})
    assert allowed(found, "POST") == allowed(found, "HEAD") == "GET, PUT"
    assert found.verify(request("PUT", "a=b", b"body")).body == b"body"
    assert found.verify(request("GET", "a=b", b"body")).body == b"a=b"


@pytest.mark.parametrize("methods", [["DELETE"], ["get"], "GET", ["OPTIONS"]])
def test_other_methods_are_refused_at_start(methods):
    with pytest.raises(ValueError):
        endpoint(None, {"methods": methods})


def test_of_a_get_the_query_is_signed_and_tells_deliveries_apart():
    found = endpoint({**OWN, "methods": ["GET", "POST"]}, {})
    one, two = (
        found.verify(request("GET", query, b"", x_signature=signed(query)))
        for query in ("text=a&from=1", "text=b&from=1")
    )
    assert (one.body, two.body) == (b"text=a&from=1", b"text=b&from=1")
    assert one.identity != two.identity
    for query, signature in (("text=b&from=1", signed("text=a&from=1")), ("text=a", signed(""))):
        unverified(found, request("GET", query, b"", x_signature=signature))
    # A body that a GET has all the same is nobody's.
    unverified(found, request("GET", "text=b", b"signed", x_signature=signed("signed")))


def test_fields_of_a_gets_query_are_read_as_a_forms():
    block = {**OWN, "methods": ["GET"], "event": "form:type", "identity": "form:id"}
    found = endpoint(block, {})
    taken = found.verify(request("GET", "id=7&type=sms", x_signature=signed("id=7&type=sms")))
    assert (taken.identity, taken.event) == ('["7", "sms"]', "sms")


def test_twilio_signs_the_url_of_a_get():
    found = endpoint({"scheme": "twilio", "secrets": "12345"}, {"methods": ["GET", "POST"]})
    query = "CallSid=CA1&CallStatus=ringing&From=%2B1"
    validator = RequestValidator("12345")
    signature = validator.compute_signature(f"https://hooks.example.com/in?{query}", {})
    taken = found.verify(request("GET", query, x_twilio_signature=signature))
    assert (taken.body, taken.event) == (query.encode(), "ringing")
    unverified(found, request("GET", query + "0", x_twilio_signature=signature))


def test_websubs_hub_is_answered_for_the_topic_that_is_wanted():
    found = endpoint({"scheme": "websub", "secrets": "s", "verify_token": TOPIC}, {})
    asked = f"hub.mode=subscribe&hub.topic={TOPIC}&hub.challenge=c1&hub.lease_seconds=9"
    assert found.verify(request("GET", asked)).challenge == Answer(200, TEXT, b"c1")
    for other in (asked.replace("feed", "food"), "hub.mode=subscribe", ""):
        unverified(found, request("GET", other))
    untold = endpoint({"scheme": "websub", "secrets": "s"}, {})
    with pytest.raises(MethodNotAllowed):
        untold.verify(request("GET", asked))


def test_cloudevents_are_allowed_to_the_origin_that_is_known():
    origin = "eventgrid.azure.net"
    source = {"scheme": "cloudevents", "secrets": "t", "verify_token": origin}
    found = endpoint(source, {})
    answer = found.verify(request("OPTIONS", webhook_request_origin=origin)).challenge
    assert answer is not None
    assert answer.headers == {
        "allow": "POST", "webhook-allowed-origin": origin, "webhook-allowed-rate": "*",
    }  # fmt: skip
    for headers in ({}, {"webhook_request_origin": "evil.example"}):
        unverified(found, request("OPTIONS", **headers))
    assert allowed(found, "GET") == "OPTIONS, POST"


def test_a_cloud_event_is_the_same_in_both_modes():
    found = endpoint({"scheme": "cloudevents", "secrets": "t"}, {})
    binary = {"ce_id": "1", "ce_type": "order.paid", "ce_source": "/shop"}
    event = b'{"specversion":"1.0","id":"1","type":"order.paid","source":"/shop"}'
    for taken in (
        found.verify(request("POST", body=b"{}", authorization="Bearer t", **binary)),
        found.verify(request("POST", body=event, authorization="Bearer t")),
    ):
        assert taken.event == "order.paid"
        assert taken.identity.startswith('["1", "order.paid", "/shop"')
    batch = b'[{"type":"a","id":"1"},{"type":"b","id":"2"}]'
    assert found.verify(request("POST", body=batch, authorization="Bearer t")).event == "a,b"


def test_a_body_is_signed_as_it_was_sent_or_as_what_it_contains():
    content, sent = b'{"a":1}', b"\x1f\x8b compressed"
    for kind, text in (("body", content), ("raw_body", sent)):
        found = endpoint({**OWN, "signed": f"{{{kind}}}"}, {})
        assert found.source is not None and found.source.covers_body
        signature = hmac.new(b"s", text, hashlib.sha256).hexdigest()
        good = Request("POST", "/in", "", {"x-signature": signature}, content, "", 0.0, 0.0)
        good.raw_body = sent
        assert found.verify(good).body == content
        good.raw_body, good.body = (sent + b"x", content) if kind == "raw_body" else (sent, b"x")
        unverified(found, good)
    plain = Request("POST", "/in", "", {"x-signature": signed("{}")}, b"{}", "", 0.0, 0.0)
    assert endpoint({**OWN, "signed": "{raw_body}"}, {}).verify(plain).body == b"{}"
