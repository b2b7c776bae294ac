"""From a sender through nginx and the gateway to a worker, and back in the sender's own form."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
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
    feishu,
    proof,
    times,
)
from tests.integration.webhooks import Call, ask, start_worker, toml
from tests.support.requests import PUBLISHED, metric
from tests.support.stack import RabbitMQ, Server, Stack

SOURCES: dict[str, dict[str, Any]] = {
    "plain": {"scheme": "wechat", "secrets": SECRET},
    "safe": {"scheme": "wechat", **ENCRYPTION},
    "wecom": {"scheme": "wecom", **ENCRYPTION},
    "dingtalk": {"scheme": "dingtalk", **ENCRYPTION},
    "feishu": {"scheme": "feishu", "secrets": SECRET},
}
ROUTES = [{"path": f"/{name}", "source": name, "task": "tests.said"} for name in SOURCES]
ROUTES[list(SOURCES).index("dingtalk")]["events"] = ["org_*"]


@pytest.fixture(scope="module")
def worker(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Iterator[Server]:
    worker = start_worker(stack, rabbitmq, redis_server)
    yield worker
    worker.kill()


@pytest.fixture(scope="module", params=["pika", "redis"])
def gateway(
    request, stack: Stack, rabbitmq: RabbitMQ, redis_server: Server, worker, tmp_path_factory
) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("replies") / "gateway.toml"
    file.write_text(toml(SOURCES, ROUTES))
    gateway = stack.gateway(
        f"--strategy={request.param}",
        *("--broker", rabbitmq.url, "--result-backend", redis_server.url),
        *("--config", str(file)),
    )
    yield gateway
    gateway.kill()


@pytest.fixture(scope="module")
def nginx(stack: Stack, start, gateway: Server) -> Iterator[Server]:
    nginx = start(lambda: stack.nginx([int(gateway.url.rpartition(":")[2])]))
    yield nginx
    nginx.kill()


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


def test_a_plain_message_is_refused_where_they_are_encrypted(gateway, nginx):
    published, query = metric(gateway, PUBLISHED), times()
    query["signature"] = proof(query)
    answer = ask(nginx, Call("/safe", message("xml").encode(), query=query))
    assert (answer.status, answer.type) == (401, "unverified")
    assert metric(gateway, PUBLISHED) == published


@pytest.mark.parametrize(("event", "tasks"), [("org_change", 1), ("no_route_takes_it", 0)])
def test_dingtalk_gets_an_encrypted_success(gateway, nginx, event, tasks):
    published = metric(gateway, PUBLISHED)

    answer = ask(nginx, dingtalk({"EventType": event, "eventId": secrets.token_hex(8)}))

    assert (answer.status, dingtalks_word(answer.body)) == (200, "success")
    assert metric(gateway, PUBLISHED) == published + tasks


def test_feishus_event_is_decrypted_for_the_task(nginx):
    event = {"header": {"event_id": secrets.token_hex(8), "event_type": "a.b"}}
    answer = ask(nginx, feishu(event))
    assert (answer.status, answer.body.decode()) == (200, f"größe {len(json.dumps(event))}")
