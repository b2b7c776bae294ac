"""From a sender through nginx and the gateway to a worker, and back in the sender's own form.

Handshakes are answered without a task.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from base64 import b64encode
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from nacl.signing import SigningKey

from gateway.sources import SCHEMES, find
from gateway.sources.declared import Declared
from tests.integration.senders import (
    ENCRYPTION,
    SECRET,
    decrypted,
    dingtalk,
    dingtalks_word,
    encrypted,
    feishu,
    proof,
    times,
)
from tests.integration.webhooks import TASKS, Call, ask
from tests.support.config import toml
from tests.support.requests import PUBLISHED, metric
from tests.support.stack import Server

SEED = bytes(range(32))
SOURCES: dict[str, dict[str, Any]] = {
    "plain": {"scheme": "wechat", "secrets": SECRET},
    "safe": {"scheme": "wechat", **ENCRYPTION},
    "wecom": {"scheme": "wecom", **ENCRYPTION},
    "dingtalk": {"scheme": "dingtalk", **ENCRYPTION},
    "feishu": {"scheme": "feishu", "secrets": SECRET},
    "token": {"scheme": "feishu", "secrets": SECRET, "verification_token": "v-token"},
    "discord": {"scheme": "discord", "secrets": bytes(SigningKey(SEED).verify_key).hex()},
    "meta": {"scheme": "meta", "secrets": SECRET, "verify_token": "v-token"},
    **{name: {"scheme": name, "secrets": SECRET} for name in ("shopify", "slack", "x")},
}
WORKER = {"app": TASKS}
ROUTES = [{"path": f"/{name}", "source": name, "task": "tests.said"} for name in SOURCES]
ROUTES[list(SOURCES).index("dingtalk")]["events"] = ["org_*"]


@pytest.fixture(scope="module")
def gateway(start_gateway, worker) -> Server:
    return start_gateway(toml(SOURCES, ROUTES), "--strategy=redis")


def message(form: str, **changes: Any) -> str:
    fields = {
        "ToUserName": "gh_account",
        "FromUserName": "o_user",
        "CreateTime": int(time.time()),
        "MsgType": "text",
        "Content": "grüß Gott",
        "MsgId": secrets.randbelow(2**60),
        **changes,
    }
    return written(form, fields)


def written(form: str, fields: dict[str, Any]) -> str:
    if form == "json":
        return json.dumps(fields)
    texts = "".join(f"<{name}><![CDATA[{value}]]></{name}>" for name, value in fields.items())
    return f"<xml>{texts}</xml>"


def read(form: str, body: bytes | str) -> dict[str, Any]:
    if form == "json":
        return json.loads(body)
    return {element.tag: element.text for element in ElementTree.fromstring(body)}


@pytest.mark.parametrize("form", ["xml", "json"])
@pytest.mark.parametrize("mode", ["plain", "safe", "compatible", "wecom"])
def test_a_message_is_answered_by_a_passive_reply(nginx, mode, form):
    # Given a message in the mode and the form,
    text, query = message(form), times()
    body = text
    if mode != "plain":
        sealed = encrypted(text)
        fields = {"ToUserName": "gh_account", "Encrypt": sealed}
        if mode == "compatible":  # what is plain in it might be anybody's
            fields |= read(form, message(form, FromUserName="o_mallory", Content="forged"))
        body = written(form, fields)
        query |= {"encrypt_type": "aes", "msg_signature": proof(query, sealed)}
    if mode != "wecom":
        query |= {"signature": proof(query), "openid": "o_user"}
    path = {"plain": "/plain", "wecom": "/wecom"}.get(mode, "/safe")

    # when it is sent,
    answer = ask(nginx, Call(path, body.encode(), {"Content-Type": "text/xml"}, query))

    # then what the task said of it comes back, from whom it was for to whom it came from.
    assert answer.status == 200, answer.body
    reply = read(form, answer.body)
    if mode == "wecom" and form == "json":  # a robot's
        names = {"encrypt": "Encrypt", "msgsignature": "MsgSignature", "timestamp": "TimeStamp"}
        reply = {names.get(name, name.title()): value for name, value in reply.items()}
    if mode != "plain":
        reply = read(form, decrypted(reply))
    assert reply["Content"] == f"größe {len(text)}"
    assert (reply["ToUserName"], reply["FromUserName"]) == ("o_user", "gh_account")
    assert (reply["MsgType"], abs(int(reply["CreateTime"]) - time.time()) < 60) == ("text", True)
    kind = {"xml": "text/xml", "json": "application/json"}[form]
    assert answer.headers["content-type"] == kind


@pytest.mark.parametrize(("event", "tasks"), [("org_change", 1), ("no_route_takes_it", 0)])
def test_dingtalk_gets_an_encrypted_success(gateway, nginx, event, tasks):
    published = metric(gateway, PUBLISHED)

    answer = ask(nginx, dingtalk({"EventType": event, "eventId": secrets.token_hex(8)}))

    assert (answer.status, dingtalks_word(answer.body)) == (200, "success")
    assert metric(gateway, PUBLISHED) == published + tasks


# Handshakes, challenges, PINGs: answered without a task ----------------------------------------


def mac(text: str) -> bytes:
    return hmac.digest(SECRET.encode(), text.encode(), "sha256")


def handshake(name: str) -> tuple[Call, bytes]:
    """Return the question as the sender asks it now, and the answer."""
    query, timestamp = times(), str(int(time.time()))
    if name == "wechat":
        query |= {"signature": proof(query), "echostr": "123"}
        return Call("/plain", query=query, method="GET"), b"123"
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
    return replace(feishu(event), path="/token"), b'{"challenge": "ajls"}'


def test_each_scheme_that_answers_a_get_by_code_is_here():
    """Those of blocks are tested in tests/unit/sources/test_handshakes.py."""
    code = {name for name in SCHEMES if not issubclass(find(name), Declared)}
    assert {name for name in code if find(name).handshakes} <= {
        source["scheme"] for source in SOURCES.values()
    }


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
