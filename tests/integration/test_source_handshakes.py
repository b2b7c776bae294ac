"""Handshakes, challenges, PINGs: asked through nginx, answered without a task."""

from __future__ import annotations

import hmac
import json
import time
from base64 import b64encode

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
from tests.integration.webhooks import Call, ask
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


def handshake(name: str) -> tuple[Call, bytes]:
    """Return the question as the sender asks it now, and the answer."""
    query, timestamp = times(), str(int(time.time()))
    if name == "wechat":
        query |= {"signature": proof(query), "echostr": "123"}
        return Call("/wechat", query=query, method="GET"), b"123"
    if name == "wecom":
        echostr = encrypted("456")
        query |= {"msg_signature": proof(query, echostr), "echostr": echostr}
        return Call("/wecom", query=query, method="GET"), b"456"
    if name == "meta":
        hub = {"mode": "subscribe", "verify_token": "v-token", "challenge": "789"}
        query = {f"hub.{name}": value for name, value in hub.items()}
        return Call("/meta", query=query, method="GET"), b"789"
    if name == "x":  # who asks shows nothing
        answer = {"response_token": "sha256=" + b64encode(mac("crc")).decode()}
        call = Call("/x", query={"crc_token": "crc"}, method="GET")
        return call, json.dumps(answer).encode()
    if name == "slack":
        body = '{"type":"url_verification","challenge":"3eZb"}'
        signature = "v0=" + mac(f"v0:{timestamp}:{body}").hex()
        headers = {"X-Slack-Request-Timestamp": timestamp, "X-Slack-Signature": signature}
        return Call("/slack", body.encode(), headers), b"3eZb"
    if name == "discord":
        signature = SigningKey(SEED).sign(f'{timestamp}{{"type":1}}'.encode()).signature.hex()
        headers = {"X-Signature-Timestamp": timestamp, "X-Signature-Ed25519": signature}
        return Call("/discord", b'{"type":1}', headers), b'{"type":1}'
    event = {"type": "url_verification", "challenge": "ajls", "token": "v-token"}
    return feishu(event), b'{"challenge": "ajls"}'


def test_each_scheme_that_answers_a_get_by_code_is_here():
    """Those of blocks are tested in tests/unit/sources/test_handshakes.py."""
    code = {name for name in SCHEMES if not issubclass(find(name), Declared)}
    assert {name for name in code if find(name).handshakes} <= SOURCES.keys()


@pytest.mark.parametrize("name", ["wechat", "wecom", "meta", "x", "slack", "discord", "feishu"])
def test_a_handshake_is_answered_at_once(gateway, nginx, name):
    published, (call, expected) = metric(gateway, PUBLISHED), handshake(name)

    answer = ask(nginx, call)

    assert (answer.status, answer.body) == (200, expected)
    assert metric(gateway, PUBLISHED) == published


def test_dingtalks_check_is_answered_by_an_encrypted_success(gateway, nginx):
    published = metric(gateway, PUBLISHED)

    for name in ("signature", "msg_signature"):
        answer = ask(nginx, dingtalk({"EventType": "check_url"}, name))
        assert (answer.status, dingtalks_word(answer.body)) == (200, "success")

    assert metric(gateway, PUBLISHED) == published
