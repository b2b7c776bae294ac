"""Feishu's url_verification, which may come without a signature, and its verification token."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from gateway.answer import Answer
from gateway.errors import Unverified
from gateway.sources.feishu import SIGNATURE
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
        with pytest.raises(Unverified):
            feishu().verify(replace(request, headers={**request.headers, SIGNATURE: text}))


def test_nothing_but_a_challenge_may_come_without_a_signature_and_all_else_looks_alike():
    bodies = [
        encrypted(dump(EVENT)),
        encrypted(dump({**CHALLENGE, "type": "event_callback"})),
        encrypted(dump({**CHALLENGE, "token": "xxxxxy"})),
        encrypted(dump(CHALLENGE), "other"),
        encrypted(b"hello world"),
        encrypted(b""),
        dump(CHALLENGE),
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
        with pytest.raises(Unverified):
            feishu(verification_token=other).verify(request)
    with pytest.raises(Unverified):
        feishu(verification_token="x").verify(signed(encrypted(b'{"token":["x"]}')))


def test_an_empty_verification_token_is_a_configuration_error():
    with pytest.raises(ValidationError):
        feishu(verification_token="")
    assert "s3cret" not in repr(feishu(verification_token="s3cret").options)
