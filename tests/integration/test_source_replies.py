"""From a sender through nginx and the gateway to a worker, and back in the sender's own form.

Handshakes are answered without a task.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.integration.senders import (
    ENCRYPTION,
    SECRET,
    decrypted,
    dingtalk,
    dingtalks_word,
    encrypted,
    proof,
    times,
)
from tests.integration.webhooks import TASKS, Call, ask
from tests.support.config import toml
from tests.support.requests import PUBLISHED, metric
from tests.support.stack import Server

SOURCES: dict[str, dict[str, Any]] = {
    "plain": {"scheme": "wechat", "secrets": SECRET},
    "safe": {"scheme": "wechat", **ENCRYPTION},
    "dingtalk": {"scheme": "dingtalk", **ENCRYPTION},
    "slack": {"scheme": "slack", "secrets": SECRET},
}
WORKER = {"app": TASKS}
ROUTES = [{"path": f"/{name}", "source": name, "task": "tests.said"} for name in SOURCES]
ROUTES[list(SOURCES).index("dingtalk")]["events"] = ["org_*"]


@pytest.fixture(scope="module")
def gateway(start_gateway, worker) -> Server:
    return start_gateway(toml(SOURCES, ROUTES), "--strategy=redis")


def written(fields: dict[str, Any]) -> str:
    texts = "".join(f"<{name}><![CDATA[{value}]]></{name}>" for name, value in fields.items())
    return f"<xml>{texts}</xml>"


def read(body: bytes | str) -> dict[str, Any]:
    return {element.tag: element.text for element in ElementTree.fromstring(body)}


@pytest.mark.parametrize("path", ["/plain", "/safe"])
def test_a_message_is_answered_by_a_passive_reply(nginx, path):
    # Given a message, encrypted or not,
    text = body = written(
        {
            "ToUserName": "gh_account", "FromUserName": "o_user", "CreateTime": int(time.time()),
            "MsgType": "text", "Content": "grüß Gott", "MsgId": secrets.randbelow(2**60),
        }
    )  # fmt: skip
    query = times()
    if path == "/safe":
        sealed = encrypted(text)
        body = written({"ToUserName": "gh_account", "Encrypt": sealed})
        query |= {"encrypt_type": "aes", "msg_signature": proof(query, sealed)}
    query |= {"signature": proof(query), "openid": "o_user"}

    # when it is sent,
    answer = ask(nginx, Call(path, body.encode(), {"Content-Type": "text/xml"}, query))

    # then what the task said of it comes back, from whom it was for to whom it came from.
    assert answer.status == 200, answer.body
    reply = read(answer.body)
    if path == "/safe":
        reply = read(decrypted(reply))
    assert reply["Content"] == f"größe {len(text)}"
    assert (reply["ToUserName"], reply["FromUserName"]) == ("o_user", "gh_account")
    assert (reply["MsgType"], abs(int(reply["CreateTime"]) - time.time()) < 60) == ("text", True)
    assert answer.headers["content-type"] == "text/xml"


@pytest.mark.parametrize(("event", "tasks"), [("org_change", 1), ("no_route_takes_it", 0)])
def test_dingtalk_gets_an_encrypted_success(gateway, nginx, event, tasks):
    published = metric(gateway, PUBLISHED)

    answer = ask(nginx, dingtalk({"EventType": event, "eventId": secrets.token_hex(8)}))

    assert (answer.status, dingtalks_word(answer.body)) == (200, "success")
    assert metric(gateway, PUBLISHED) == published + tasks


# Handshakes are answered without a task; tests/unit/sources has those of each scheme -----------


def asked_by_get() -> Call:
    query = times() | {"echostr": "123"}
    return Call("/plain", query=query | {"signature": proof(query)}, method="GET")


def asked_by_post() -> Call:
    timestamp, body = str(int(time.time())), '{"type":"url_verification","challenge":"123"}'
    signature = hmac.digest(SECRET.encode(), f"v0:{timestamp}:{body}".encode(), "sha256").hex()
    headers = {"X-Slack-Request-Timestamp": timestamp, "X-Slack-Signature": f"v0={signature}"}
    return Call("/slack", body.encode(), headers)


@pytest.mark.parametrize("asked", [asked_by_get, asked_by_post])
def test_a_handshake_is_answered_at_once(gateway, nginx, asked):
    published = metric(gateway, PUBLISHED)

    answer = ask(nginx, asked())

    assert (answer.status, answer.body) == (200, b"123")
    assert metric(gateway, PUBLISHED) == published
