"""Feishu's url_verification, which may come without a signature, and its verification token."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from gateway.answer import Answer
from gateway.delivery import Request
from gateway.errors import Unverified
from gateway.sources.senders.feishu import NONCE, SIGNATURE, TIMESTAMP
from tests.unit.sources.examples import NOW
from tests.unit.sources.feishu_requests import (
    CHALLENGE,
    EVENT,
    KEY,
    OLD,
    dump,
    encrypted,
    feishu,
    signed,
)
from tests.unit.sources.messages import changes, post
from tests.unit.sources.sending import unverified


def challenge(text: str) -> Answer:
    return Answer(200, "application/json", json.dumps({"challenge": text}).encode())


def test_a_challenge_is_answered_with_and_without_a_signature():
    for request in (signed(encrypted(dump(CHALLENGE))), post("", encrypted(dump(CHALLENGE)))):
        for options in ({}, {"secrets": ["other", KEY]}, {"verification_token": "xxxxxx"}):
            verified = feishu(**options).verify(request)
            assert verified.challenge == challenge("ajls384kdjx98XX")
            assert verified.event == "url_verification"


def test_a_challenge_with_a_wrong_signature_is_not_answered():
    request = signed(encrypted(dump(CHALLENGE)))
    for text in (*changes(request.headers[SIGNATURE]), ""):
        unverified(feishu(), replace(request, headers={**request.headers, SIGNATURE: text}))


def test_nothing_but_a_challenge_may_come_without_a_signature_and_all_else_looks_alike():
    bodies = [
        encrypted(dump(EVENT)),
        encrypted(dump({**CHALLENGE, "type": "event_callback"})),
        encrypted(dump({**CHALLENGE, "token": "xxxxxy"})),
        encrypted(dump(CHALLENGE), "other"),
        encrypted(b"hello world"),
        encrypted(b""),
        dump({**CHALLENGE, "token": "xxxxxy"}),
        dump({**CHALLENGE, "type": "event_callback"}),
        b'{"encrypt":"AAAA"}',
        b"{",
    ]
    sealed = base64.b64decode(json.loads(encrypted(dump(CHALLENGE)))["encrypt"])
    for at in range(16, len(sealed)):
        spoiled = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        bodies.append(json.dumps({"encrypt": base64.b64encode(spoiled).decode()}).encode())
    details = set()
    for body in bodies:
        with pytest.raises(Unverified) as error:
            feishu(verification_token="xxxxxx").verify(post("", body))
        details.add((error.value.detail, str(error.value)))
    assert len(details) == 1


@pytest.mark.parametrize("event", [EVENT, OLD, CHALLENGE], ids=["2.0", "1.0", "challenge"])
def test_a_verification_token_is_checked_where_it_is_configured(event):
    token = event.get("token") or event["header"]["token"]
    request = signed(encrypted(dump(event)))
    assert feishu(verification_token=token).verify(request).body == dump(event)
    for other in changes(token):
        unverified(feishu(verification_token=other), request)
    unverified(feishu(verification_token="x"), signed(encrypted(b'{"token":["x"]}')))


def test_an_empty_verification_token_is_a_configuration_error():
    with pytest.raises(ValidationError):
        feishu(verification_token="")
    assert "s3cret" not in repr(feishu(verification_token="s3cret").options)


# A card's callback of the old form ----------------------------------------------------------

CARD = {"open_id": "ou_1", "tenant_key": "t1", "token": "c-1", "action": {"value": {"k": "größe"}}}


def card(body: bytes, token: str = "xxxxxx", when: float = NOW) -> Request:
    timestamp = str(int(when))
    proof = hashlib.sha1(f"{timestamp}n1{token}".encode() + body).hexdigest()
    return post("", body, headers={TIMESTAMP: timestamp, NONCE: "n1", SIGNATURE: proof})


def test_a_card_s_callback_is_signed_with_the_token():
    body = dump(CARD)
    verified = feishu(verification_token="xxxxxx").verify(card(body))
    assert (verified.body, verified.event) == (body, "card.action.trigger_v1")
    assert hashlib.sha256(body).hexdigest() in verified.identity


@pytest.mark.parametrize(
    "request_",
    [
        card(dump(CARD), "xxxxxy"),
        card(dump(CARD), when=NOW - 1_000),
        replace(card(dump(CARD)), body=dump({**CARD, "open_id": "ou_2"})),
        post("", dump(CARD)),
    ],
    ids=["token", "time", "body", "none"],
)
def test_any_other_card_s_callback_is_unverified(request_):
    unverified(feishu(verification_token="xxxxxx"), request_)


def test_without_a_token_no_card_s_callback_is_verified():
    for token in ("", "xxxxxx"):
        unverified(feishu(), card(dump(CARD), token))


def test_a_card_s_challenge_is_answered_if_it_has_the_token():
    request = post("", dump(CHALLENGE))
    assert feishu(verification_token="xxxxxx").verify(request).challenge == challenge(
        "ajls384kdjx98XX"
    )
    for options in ({}, {"verification_token": "xxxxxy"}):
        unverified(feishu(**options), request)
