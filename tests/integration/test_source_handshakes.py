"""Handshakes, challenges, PINGs: asked through nginx, answered without a task."""

from __future__ import annotations

import hmac
import json
import time
from base64 import b64encode
from typing import NamedTuple

import pytest
from nacl.signing import SigningKey

from gateway.sources import SCHEMES, find
from gateway.sources.declared import Declared
from tests.integration.senders import (
    ENCRYPTION,
    SECRET,
    dingtalk,
    dingtalks_word,
    encrypted,
    feishu,
    proof,
    times,
)
from tests.integration.webhooks import Call, ask, others
from tests.support.config import toml
from tests.support.requests import PUBLISHED, metric
from tests.support.stack import Server

SEED = bytes(range(32))
SOURCES = {
    "wechat": {"secrets": SECRET},
    "wecom": ENCRYPTION,
    "dingtalk": ENCRYPTION,
    "feishu": {"secrets": SECRET, "verification_token": "v-token"},
    "discord": {"secrets": bytes(SigningKey(SEED).verify_key).hex()},
    "slack": {"secrets": SECRET},
    "meta": {"secrets": SECRET, "verify_token": "v-token"},
    "x": {"secrets": SECRET},
}


@pytest.fixture(scope="module")
def gateway(start_gateway) -> Server:
    sources = {name: {"scheme": name, **options} for name, options in SOURCES.items()}
    return start_gateway(toml(sources, [{"path": f"/{n}", "source": n} for n in SOURCES]))


def mac(text: str) -> bytes:
    return hmac.digest(SECRET.encode(), text.encode(), "sha256")


class Handshake(NamedTuple):
    """A sender's question; ``proof`` names the header or parameter that shows who it is."""

    call: Call
    answer: bytes
    proof: str


def handshake(name: str) -> Handshake:
    """Return the handshake as the sender begins it now."""
    query, timestamp = times(), str(int(time.time()))
    if name == "wechat":
        query |= {"signature": proof(query), "echostr": "123"}
        return Handshake(Call("/wechat", query=query, method="GET"), b"123", "signature")
    if name == "wecom":
        echostr = encrypted("456")
        query |= {"msg_signature": proof(query, echostr), "echostr": echostr}
        return Handshake(Call("/wecom", query=query, method="GET"), b"456", "msg_signature")
    if name == "meta":
        hub = {"mode": "subscribe", "verify_token": "v-token", "challenge": "789"}
        query = {f"hub.{name}": value for name, value in hub.items()}
        return Handshake(Call("/meta", query=query, method="GET"), b"789", "hub.verify_token")
    if name == "x":  # who asks shows nothing
        answer = {"response_token": "sha256=" + b64encode(mac("crc")).decode()}
        call = Call("/x", query={"crc_token": "crc"}, method="GET")
        return Handshake(call, json.dumps(answer).encode(), "")
    if name == "slack":
        body = '{"type":"url_verification","challenge":"3eZb"}'
        signature = "v0=" + mac(f"v0:{timestamp}:{body}").hex()
        headers = {"X-Slack-Request-Timestamp": timestamp, "X-Slack-Signature": signature}
        return Handshake(Call("/slack", body.encode(), headers), b"3eZb", "X-Slack-Signature")
    if name == "discord":
        signature = SigningKey(SEED).sign(f'{timestamp}{{"type":1}}'.encode()).signature.hex()
        headers = {"X-Signature-Timestamp": timestamp, "X-Signature-Ed25519": signature}
        call = Call("/discord", b'{"type":1}', headers)
        return Handshake(call, b'{"type":1}', "X-Signature-Ed25519")
    event = {"type": "url_verification", "challenge": "ajls", "token": "v-token"}
    return Handshake(feishu(event), b'{"challenge": "ajls"}', "X-Lark-Signature")


def test_each_scheme_that_answers_a_get_by_code_is_here():
    """Those of blocks are tested in tests/unit/sources/test_handshakes.py."""
    code = {name for name in SCHEMES if not issubclass(find(name), Declared)}
    assert {name for name in code if find(name).handshakes} <= SOURCES.keys()


@pytest.mark.parametrize("name", ["wechat", "wecom", "meta", "x", "slack", "discord", "feishu"])
def test_a_handshake_is_answered_at_once(gateway, nginx, name):
    published, (call, expected, _) = metric(gateway, PUBLISHED), handshake(name)

    answer = ask(nginx, call)

    assert (answer.status, answer.body) == (200, expected)
    assert metric(gateway, PUBLISHED) == published


@pytest.mark.parametrize("name", ["wechat", "wecom", "meta", "slack", "discord", "feishu"])
def test_a_handshake_that_is_not_the_senders_is_refused(nginx, name):
    call, _, proof = handshake(name)
    value = {**call.headers, **call.query}[proof]
    change = call.with_header if proof in call.headers else call.with_parameter
    for text in others(value):
        answer = ask(nginx, change(proof, text))
        assert (answer.status, answer.type) == (401, "unverified")


def test_dingtalks_check_is_answered_by_an_encrypted_success(gateway, nginx):
    published = metric(gateway, PUBLISHED)

    for name in ("signature", "msg_signature"):
        answer = ask(nginx, dingtalk({"EventType": "check_url"}, name))
        assert (answer.status, dingtalks_word(answer.body)) == (200, "success")

    assert metric(gateway, PUBLISHED) == published
