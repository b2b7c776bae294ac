"""What a hostile or careless sender can do with a block: each of these was possible once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import BodyTooLarge, SignatureMismatch, SignatureMissing
from gateway.sources import declared, of, options_class, places
from gateway.sources.base import Draft, Signed, Source
from tests.unit.sources.examples import NOW
from tests.unit.sources.sending import URL, received, receiver, sender


def own(**block: Any) -> Source:
    values = {"secrets": "key", "signature": "header:X-Sig", **block}
    options = options_class(values).model_validate(values)
    return of(options)(options, "https://hooks.example.com")


def verified(scheme: str, message: Any, url: str = URL, **headers: str) -> Any:
    """Return what is known of a message that the sender of `scheme` has signed."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    signed = sender(scheme).sign(Draft(body, url, NOW))
    signed.headers.update(headers)
    return receiver(scheme).verify(received(signed, url))


@pytest.mark.parametrize(
    ("scheme", "message", "event"),
    [
        ("sendgrid", [{"event": "open"}, {"event": "bounce"}, {"event": "open"}], "open,bounce"),
        ("sendgrid", [{"event": "open"}, {"other": 1}], "open"),
        ("sendgrid", [], ""),
        ("hubspot", [{"subscriptionType": "a"}, {"subscriptionType": "b"}], "a,b"),
        (
            "meta",
            {"object": "page", "entry": [{"changes": [{"field": "feed"}, {"field": "mention"}]}]},
            "page.feed,page.mention",
        ),
    ],
)
def test_a_batch_has_the_events_of_all_its_items(scheme, message, event):
    assert verified(scheme, message).event == event


#: A megabyte of JSON that takes long to parse.
LARGE = b"[" + b"{}," * 340_000 + b"{}]"
HANDSHAKE = {"method": "POST", "signed": False, "when": {"json:/a": "b"}}


@pytest.mark.parametrize(
    ("scheme", "options", "error"),
    [
        ("linear", {}, SignatureMismatch),
        ("pusher", {}, SignatureMismatch),
        ("adyen", {}, BodyTooLarge),
        ("mailgun", {}, BodyTooLarge),
        ("dropbox_sign", {}, BodyTooLarge),
        ("hmac", {"handshakes": [HANDSHAKE]}, SignatureMissing),
        ("hmac", {"signed": "{time}{body|sortedform}"}, BodyTooLarge),
        ("hmac", {"signature": "form:a|json:/b"}, BodyTooLarge),
    ],
)
def test_nobody_has_a_large_body_parsed_without_a_signature(monkeypatch, scheme, options, error):
    for module in (declared, places):
        monkeypatch.setattr(module, "read_loosely", lambda _body: pytest.fail("was parsed"))
    found = receiver(scheme, **options)
    proof = {found.block.signature[0].partition(":")[2]: "0"} if "handshakes" not in options else {}
    with pytest.raises(error):
        found.verify(received(Signed(LARGE, {**proof, "X-Time": "1"})))


def test_a_block_may_say_that_its_sender_sends_larger_bodies():
    large = json.dumps({"sig": "0", "x": "x" * 200_000}).encode()
    for most, error in ((None, BodyTooLarge), (300_000, SignatureMismatch)):
        found = own(signature="json:/sig", max_body=most)
        with pytest.raises(error):
            found.verify(received(Signed(large)))
