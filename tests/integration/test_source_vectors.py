"""WeChat's and Feishu's own examples through nginx, on the day they were made.

Each byte of them is changed in tests/unit/sources. test_sender_vectors.py has those of the senders
that are data.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from wechatpy.crypto import PrpCrypto

from tests.integration.webhooks import Call, ask
from tests.support.config import toml
from tests.support.requests import PUBLISHED, metric
from tests.support.stack import Clock, Server, Stack

RAW = json.loads((Path(__file__).parents[1] / "vectors" / "webhooks.json").read_text("utf-8"))
FOUND = {vector["name"]: vector for vector in RAW}
APP_ID = FOUND["wechat-secure-post"]["plain"]["receiveid"]


@dataclass(frozen=True)
class Vector:
    """A published request, good at the time `at` (seconds since the epoch).

    `wrong` changes a secret in the options. The answer has `status`, and `read` finds `expected`
    (None: the body) in it.
    """

    name: str
    options: Mapping[str, Any]
    wrong: Mapping[str, Any]
    at: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    status: int = 200
    read: Callable[[bytes], bytes] = bytes
    expected: bytes | None = None

    @property
    def call(self) -> Call:
        return Call(f"/{self.name}", self.body, self.headers, self.query, self.method)


def _pick(name: str, *keys: str) -> dict[str, str]:
    return {key: FOUND[name][key] for key in keys}


def _wechat(name: str, body: bytes, parameters: Mapping[str, str], **more: Any) -> Vector:
    query = {**parameters, **_pick(name, "signature", "timestamp", "nonce")}
    options, wrong = {"secrets": "AAAAA"}, {"secrets": "AAAAB"}
    return Vector(name, options, wrong, int(query["timestamp"]), body, query=query, **more)


def _encrypted(name: str, wrong: Mapping[str, str], message: str, *signatures: str) -> Vector:
    found = FOUND[name]
    picked = _pick(name, "timestamp", "nonce", "msg_signature", *signatures)
    return Vector(
        f"{name}-{next(iter(wrong))}",
        {"secrets": found["token"], "aes_key": found["aes_key"], "receive_id": APP_ID},
        wrong,
        int(found["timestamp"]),
        json.dumps({"ToUserName": "gh_1", "Encrypt": found["encrypt"]}).encode(),
        query={"openid": "o_1", "encrypt_type": "aes", **picked},
        read=_decrypted,
        expected=message.encode(),
    )


def _decrypted(body: bytes) -> bytes:
    key = FOUND["wechat-secure-post"]["aes_key"]
    return PrpCrypto(b64decode(key + "=")).decrypt(json.loads(body)["Encrypt"], APP_ID).encode()


def _detail(body: bytes) -> bytes:
    return json.loads(body)["detail"].encode()


FEISHU = FOUND["feishu-signature"]
_post, _reply = FOUND["wechat-secure-post"]["plain"]["msg"], FOUND["wechat-secure-reply"]["msg"]
VECTORS = [
    _wechat("wechat-get", b"", {"echostr": "437512"}, method="GET", expected=b"437512"),
    _wechat("wechat-plain-post", b"<xml><MsgType>text</MsgType><MsgId>1</MsgId></xml>", {}),
    _encrypted("wechat-secure-post", {"secrets": "AAAAB"}, _post, "signature"),
    # The encrypted reply might as well be a message.
    _encrypted("wechat-secure-reply", {"secrets": "AAAAB"}, _reply),
    Vector(
        "feishu",
        {"secrets": FEISHU["encrypt_key"]},
        {"secrets": "test kez"},
        int(FEISHU["timestamp"]),
        FEISHU["body"].encode(),
        {
            "X-Lark-Request-Timestamp": FEISHU["timestamp"],
            "X-Lark-Request-Nonce": FEISHU["nonce"],
            "X-Lark-Signature": FEISHU["signature"],
        },
        # The signature is right; there is nothing to decrypt in it.
        status=401,
        read=_detail,
        expected=b"The event cannot be decrypted.",
    ),
]
#: The same with something else that is wrong in the options.
MORE_WRONG = [
    _encrypted("wechat-secure-post", {"aes_key": "B" * 43}, _post, "signature"),
    _encrypted("wechat-secure-post", {"receive_id": "wx"}, _post, "signature"),
]
ALL = [*VECTORS, *MORE_WRONG]


def each(vectors: list[Vector]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector.name)


@pytest.fixture(scope="module")
def clock(stack: Stack) -> Clock:
    return stack.clock()


@pytest.fixture(scope="module")
def gateway(start_gateway, worker, clock: Clock) -> Server:
    return start_gateway(config(), "--strategy=pika", env=clock.env)


@pytest.fixture(scope="module")
def wrong(start_gateway, clock: Clock) -> Server:
    """A gateway that differs from the other one in its secrets only, which are wrong."""
    changes = {vector.name: vector.wrong for vector in ALL}
    return start_gateway(config(changes), "--strategy=pika", env=clock.env)


def config(changes: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Write a route for each vector; `changes` are those of its source."""
    changes = changes or {}
    sources = {
        v.name: {"scheme": v.name.partition("-")[0], **v.options, **changes.get(v.name, {})}
        for v in ALL
    }
    return toml(sources, [{"path": f"/{v.name}", "source": v.name} for v in ALL])


@each(VECTORS)
def test_it_is_taken_and_answered_five_minutes_before_and_after(nginx, clock, vector):
    for seconds, status in [
        *((-301, 401), (-300, vector.status), (0, vector.status)),
        *((300, vector.status), (301, 401)),
    ]:
        clock.stop(vector.at + seconds)
        answer = ask(nginx, vector.call)
        assert answer.status == status, (seconds, answer.body)
        if abs(seconds) <= 300:
            expected = vector.body if vector.expected is None else vector.expected
            assert vector.read(answer.body) == expected
        else:
            assert b"cannot be decrypted" not in answer.body


@each(ALL)
def test_another_secret_takes_it_for_forged(wrong, clock, vector):
    published = metric(wrong, PUBLISHED)
    clock.stop(vector.at)

    answer = ask(wrong, vector.call)

    assert (answer.status, answer.type) == (401, "unverified")
    assert metric(wrong, PUBLISHED) == published
