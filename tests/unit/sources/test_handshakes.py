"""What is answered at once: challenges, PINGs, checks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from urllib.parse import quote, urlencode

import pytest

from gateway.answer import JSON, TEXT, Answer
from gateway.delivery import Request
from gateway.errors import MethodNotAllowed, Unverified
from gateway.sources import SCHEMES, find
from gateway.sources.base import Draft, Source
from gateway.sources.declared import Declared
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import post
from tests.unit.sources.sending import URL, received, receiver, send, sender, unverified


def get(source: Source, query: str) -> Answer:
    return source.handshake(Request("GET", "/in", query, {}, b"", "", 0.0, NOW))


def challenge(scheme: str, body) -> Answer | None:
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return receiver(scheme).verify(send(scheme, body)).challenge


def test_the_schemes_in_code_that_answer_a_get_have_tests_of_their_own():
    code = {name for name in SCHEMES if not issubclass(find(name), Declared)}
    assert {name for name in code if find(name).handshakes} == {"wechat", "wecom"}


def test_slack_gets_its_challenge_back():
    body = {"token": "t", "challenge": "3eZbrw1aBm2rZgRNFdxV", "type": "url_verification"}
    assert challenge("slack", body) == Answer(200, TEXT, b"3eZbrw1aBm2rZgRNFdxV")


def test_slack_may_look_at_the_certificate():
    assert challenge("slack", b"ssl_check=1&token=t") == Answer(200, "", b"")
    unsigned = post("", b"ssl_check=1&token=t")
    assert receiver("slack").verify(unsigned).challenge == Answer(200, "", b"")


@pytest.mark.parametrize("body", [b"ssl_check=0", b"ssl_check=1&payload={}", b"command=/x", b"{}"])
def test_nothing_else_comes_from_slack_without_a_signature(body):
    unverified(receiver("slack"), post("", body))


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"id": "1", "type": 1, "version": 1}, Answer(200, JSON, b'{"type":1}')),
        ({"version": 1, "application_id": "1", "type": 0}, Answer(204, JSON, b"")),
        ({"type": 1, "event": {"type": "ENTITLEMENT_CREATE"}}, None),
        ({"type": "1"}, None),
    ],
)
def test_discord_gets_a_pong_for_either_ping(body, answer):
    assert challenge("discord", body) == answer


@pytest.mark.parametrize(
    ("scheme", "body"),
    [("discord", b'{"type":1}'), ("slack", b'{"type":"url_verification","challenge":"a"}')],
)
def test_a_challenge_with_a_wrong_signature_is_unverified(scheme, body):
    unverified(receiver(scheme), replace(send(scheme, body), body=body + b" "))


def meta(**changes: str) -> str:
    fields = {"mode": "subscribe", "challenge": "1158201444", "verify_token": "chosen", **changes}
    return urlencode({f"hub.{name}": value for name, value in fields.items()})


def test_meta_gets_its_challenge_back():
    assert get(receiver("meta"), meta()) == Answer(200, TEXT, b"1158201444")
    token = "gewählt&"
    assert get(receiver("meta", verify_token=token), meta(verify_token=token)).status == 200


@pytest.mark.parametrize(
    "query",
    [
        "", "hub.mode=subscribe&hub.challenge=1", meta(mode="unsubscribe"), meta(challenge=""),
        *(meta(verify_token=token) for token in ("Chosen", "", "gewählt")),
    ],
)  # fmt: skip
def test_meta_without_the_token_is_unverified(query):
    with pytest.raises(Unverified):
        get(receiver("meta"), query)


def test_meta_without_a_token_configured_has_no_handshake():
    with pytest.raises(MethodNotAllowed) as error:
        get(receiver("meta", verify_token=None), meta(verify_token=""))
    assert error.value.headers == {"Allow": "POST"}


def test_x_gets_its_token_signed():
    token = "NDI0MmZhOTQtYjRlOC00ZTVl+/="
    mac = hmac.digest(b"consumer secret", token.encode(), hashlib.sha256)
    answer = get(receiver("x"), f"crc_token={quote(token)}&nonce=b")
    assert (answer.status, answer.content_type) == (200, JSON)
    assert json.loads(answer.body) == {"response_token": f"sha256={base64.b64encode(mac).decode()}"}


@pytest.mark.parametrize(
    "query", ["", "crc_token=", "nonce=1", "crc_token=" + "a" * 513, "crc_token=%00", "crc_token=ü"]
)
def test_x_signs_nothing_but_tokens(query):
    with pytest.raises(Unverified):
        get(receiver("x"), query)


@pytest.mark.parametrize("body", ['{"tweet_create_events":[]}', "{}", "[]", '"a"', "12", "true"])
def test_whoever_asks_x_to_sign_a_body_gets_none_that_is_verified(body):
    # Anybody may ask for the handshake, and the key is the one that signs bodies.
    try:
        signature = json.loads(get(receiver("x"), f"crc_token={quote(body)}").body)
    except Unverified:
        return
    request = received(sender("x").sign(Draft(body.encode(), URL, NOW)))
    assert request.headers["x-twitter-webhooks-signature"] == signature["response_token"]
    unverified(receiver("x"), request)
