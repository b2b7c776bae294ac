"""Feishu: its signatures, and its encryption against its own vector and openssl; its challenges."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.answer import Answer
from gateway.delivery import Request
from gateway.errors import BadRequest, SignatureMissing, Unverified
from gateway.sources.base import Source
from gateway.sources.senders.feishu import NONCE, SIGNATURE, TIMESTAMP
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import (
    VECTORS,
    changes,
    is_secret,
    post,
    send,
    source,
    texts,
)
from tests.unit.sources.odd_bodies import ODD_JSON, spoilt
from tests.unit.sources.sending import unverified

KEY = "kudryavka"
EVENT = {
    "schema": "2.0", "event": {"name": "größe"},
    "header": {
        "event_id": "f7984f25108f8137722bb63cee927e66", "app_id": "cli_xxxxxxxx",
        "event_type": "contact.user_group.created_v3", "token": "066zT6pS4QCbgj5Do145GfDbbagCHGgF",
    },
}  # fmt: skip
OLD = {
    "uuid": "bc447199585340d1f3728d26b1c0297a", "token": "41a9425ea7df4536a7623e38fa321bae",
    "type": "event_callback",
    "event": {"type": "app_ticket", "app_id": "cli_xxx", "app_ticket": "xxx"},
}  # fmt: skip
CHALLENGE = {"challenge": "ajls384kdjx98XX", "token": "xxxxxx", "type": "url_verification"}


def feishu(**options: Any) -> Source:
    return source("feishu", **{"secrets": KEY, **options})


def dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def openssl(key: str, iv: bytes, text: bytes, *options: str) -> bytes:
    """Encrypt or decrypt with somebody else's AES."""
    argv = ["openssl", "enc", "-aes-256-cbc", "-iv", iv.hex(), *options]
    argv += ["-K", hashlib.sha256(key.encode()).hexdigest()]
    return subprocess.run(argv, input=text, capture_output=True, check=True, timeout=60).stdout


def encrypted(message: bytes, key: str = KEY, iv: bytes = bytes(range(16))) -> bytes:
    sealed = base64.b64encode(iv + openssl(key, iv, message)).decode()
    return json.dumps({"encrypt": sealed}).encode()


def signed(body: bytes, key: str = KEY, time: str = str(int(NOW)), nonce: str = "n1") -> Request:
    proof = hashlib.sha256(f"{time}{nonce}{key}".encode() + body).hexdigest()
    return post("", body, headers={TIMESTAMP: time, NONCE: nonce, SIGNATURE: proof})


def test_the_published_cipher_text_is_decrypted():
    # "hello world" under "test key", as in the documentation; it is no JSON, nor signed.
    body = b'{"encrypt":"P37w+VZImNgPEO1RBhJ6RtKl7n6zymIbEG1pReEzghk="}'
    assert feishu(secrets="test key").verify(signed(body, "test key")).body == b"hello world"
    unverified(feishu(secrets="test keY"), signed(body, "test key"))
    sealed = base64.b64decode(json.loads(body)["encrypt"])
    assert openssl("test key", sealed[:16], sealed[16:], "-d") == b"hello world"


def test_the_derived_signature_is_ours():
    vector = VECTORS["feishu-signature"]
    body, key = vector["body"].encode(), vector["encrypt_key"]
    request = signed(body, key, vector["timestamp"], vector["nonce"])
    assert request.headers[SIGNATURE] == vector["signature"]
    # Past the signature, "x" cannot be decrypted; before it, whatever is wrong.
    at = replace(request, received_at=float(vector["timestamp"]))
    with pytest.raises(Unverified, match="decrypted"):
        feishu(secrets=key).verify(at)
    with pytest.raises(Unverified, match="signature"):
        feishu(secrets=key).verify(replace(at, body=body + b" "))


@pytest.mark.parametrize(
    ("event", "identity", "kind", "account"),
    [
        (EVENT, EVENT["header"]["event_id"], "contact.user_group.created_v3", "cli_xxxxxxxx"),
        (OLD, OLD["uuid"], "app_ticket", "cli_xxx"),
    ],
    ids=["2.0", "1.0"],
)
def test_an_event_is_decrypted(event, identity, kind, account):
    verified = feishu().verify(signed(encrypted(dump(event))))
    assert verified.body == dump(event)
    assert json.loads(verified.identity)[0] == identity
    assert (verified.event, verified.account) == (kind, account)
    assert verified.challenge is None
    assert feishu().covers_body


def test_no_two_cipher_texts_are_alike():
    assert len({send(feishu(), b"{}").body for _ in range(100)}) == 100


def test_signed_by_one_key_and_encrypted_by_another_is_nothing():
    with pytest.raises((BadRequest, Unverified)):
        feishu(secrets=[KEY, "other"]).verify(signed(encrypted(dump(OLD), "other")))


@pytest.mark.parametrize("body", ODD_JSON.values(), ids=ODD_JSON)
def test_a_signed_envelope_has_to_be_readable_and_the_event_need_not(body):
    with pytest.raises(BadRequest):
        feishu().verify(signed(body))
    verified = feishu().verify(send(feishu(), body))
    assert (verified.body, verified.event, verified.challenge) == (body, "", None)
    assert verified.identity == hashlib.sha256(body).hexdigest()
    with pytest.raises(Unverified):  # the event has to contain the token
        feishu(verification_token="v").verify(send(feishu(), body))
    for request in (signed(body), send(feishu(), body)):
        unsigned = {k: v for k, v in request.headers.items() if k != SIGNATURE}
        for headers in (unsigned, {**request.headers, SIGNATURE: "0" * 64}):
            unverified(feishu(), replace(request, headers=headers))


@pytest.mark.parametrize(
    "body",
    [dump(EVENT), dump(CHALLENGE), b"{}", b'{"encrypt":1}', b'{"encrypt":""}', b'{"encrypt":"x"}',
     b'{"encrypt":"AAAA"}', b'{"encrypt":"%s"}' % (b"A" * 64), b'{"encrypt":"\xc3\xbc"}'],
)  # fmt: skip
def test_what_is_not_encrypted_is_unverified(body):
    unverified(feishu(), signed(body))
    unverified(feishu(), post("", body))


@pytest.mark.parametrize(
    "ending", [b"", b"\0", b"\x11" * 17, b"\x02", b"\x01\x03\x03", b"\xff" * 16]
)
def test_odd_padding_is_unverified_behind_a_signature(ending):
    plain = dump(CHALLENGE).ljust(256 - len(ending)) + ending
    iv = bytes(16)
    sealed = base64.b64encode(iv + openssl(KEY, iv, plain, "-nopad")).decode()
    with pytest.raises(Unverified, match="decrypted"):
        feishu().verify(signed(json.dumps({"encrypt": sealed}).encode()))


@given(texts, texts.filter(is_secret), st.binary(min_size=16, max_size=16))
def test_what_openssl_encrypts_is_decrypted(text, key, iv):
    message = dump({"event": {"type": text}})
    verified = feishu(secrets=key).verify(signed(encrypted(message, key, iv), key))
    assert (verified.body, verified.event) == (message, text)


@given(st.binary(max_size=100), texts.filter(is_secret))
def test_what_we_encrypt_is_decrypted_by_openssl(message, key):
    request = send(feishu(secrets=key), message)
    sealed = base64.b64decode(json.loads(request.body)["encrypt"])
    assert openssl(key, sealed[:16], sealed[16:], "-d") == message
    time, nonce = request.headers[TIMESTAMP], request.headers[NONCE]
    assert signed(request.body, key, time, nonce).headers == {
        name: request.headers[name] for name in (TIMESTAMP, NONCE, SIGNATURE)
    }


@given(spoilt(st.just(encrypted(dump(CHALLENGE)))), st.booleans())
def test_spoilt_requests_are_refused_or_are_a_challenge(body, with_signature):
    request = signed(body) if with_signature else post("", body)
    try:
        verified = feishu().verify(request)
    except (BadRequest, Unverified) as error:
        assert with_signature or type(error) is SignatureMissing
        return
    assert with_signature or verified.challenge is not None


@given(spoilt(st.sampled_from([dump(EVENT), dump(OLD), dump(CHALLENGE)])))
def test_spoilt_events_in_a_right_envelope_are_refused_or_passed_on(body):
    try:
        verified = feishu().verify(send(feishu(), body))
    except BadRequest:
        return
    assert verified.body == body
    f"{verified.identity}{verified.event}{verified.account}".encode()


# Challenges and the verification token ------------------------------------------------------------


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
    other_type, other_token = {"type": "event_callback"}, {"token": "xxxxxy"}
    unlike = [dump({**CHALLENGE, **changed}) for changed in (other_type, other_token)]
    bodies = [encrypted(dump(CHALLENGE), "other"), *unlike, b'{"encrypt":"AAAA"}', b"{"]
    bodies += [encrypted(body) for body in (dump(EVENT), *unlike, b"hello world", b"")]
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
        card(dump(CARD) + b"\x80\0"),  # as somebody who continues the hash would have it
        post("", dump(CARD)),
    ],
    ids=["token", "time", "body", "continued", "none"],
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
