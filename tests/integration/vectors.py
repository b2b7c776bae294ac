"""tests/vectors/webhooks.json as requests."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from wechatpy.crypto import PrpCrypto

from tests.integration.webhooks import Call

RAW = json.loads((Path(__file__).parents[1] / "vectors" / "webhooks.json").read_text("utf-8"))
FOUND = {vector["name"]: vector for vector in RAW}
APP_ID = FOUND["wechat-secure-post"]["plain"]["receiveid"]


@dataclass(frozen=True)
class Vector:
    """A published request, good at the time `at` (seconds since the epoch; 0: at any).

    `wrong` changes a secret in the options. The answer has `status`, and `read` finds `expected`
    (None: the body) in it.
    """

    name: str
    options: Mapping[str, Any]
    wrong: Mapping[str, Any]
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    at: int = 0
    path: str = ""
    method: str = "POST"
    status: int = 200
    read: Callable[[bytes], bytes] = bytes
    expected: bytes | None = None

    @property
    def scheme(self) -> str:
        return self.name.partition("-")[0]

    @property
    def route(self) -> str:
        """Its path; where the path is signed it may be any of one segment."""
        return "/{anything}" if self.path else f"/vectors/{self.name}"

    @property
    def call(self) -> Call:
        return Call(self.path or self.route, self.body, self.headers, self.query, self.method)


def _pick(name: str, *keys: str) -> dict[str, str]:
    return {key: FOUND[name][key] for key in keys}


def _hmac(name: str, vector: str, header: str, wrong: str) -> Vector:
    found = FOUND[vector]
    body = found["body"].encode()
    return Vector(
        name, {"secrets": found["secret"]}, {"secrets": wrong}, body, {header: found["signature"]}
    )


def _standard(name: str, found: Mapping[str, str], secret: str, wrong: str) -> Vector:
    headers = {f"webhook-{part}": found[part] for part in ("id", "timestamp", "signature")}
    body, at = found["body"].encode(), int(found["timestamp"])
    return Vector(name, {"secrets": secret}, {"secrets": wrong}, body, headers, at=at)


def _wechat(name: str, body: bytes, parameters: Mapping[str, str], **more: Any) -> Vector:
    query = {**parameters, **_pick(name, "signature", "timestamp", "nonce")}
    options, wrong = {"secrets": "AAAAA"}, {"secrets": "AAAAB"}
    return Vector(name, options, wrong, body, query=query, at=int(query["timestamp"]), **more)


def _encrypted(name: str, wrong: Mapping[str, str], message: str, *signatures: str) -> Vector:
    found = FOUND[name]
    return Vector(
        f"{name}-{next(iter(wrong))}",
        {"secrets": found["token"], "aes_key": found["aes_key"], "receive_id": APP_ID},
        wrong,
        json.dumps({"ToUserName": "gh_1", "Encrypt": found["encrypt"]}).encode(),
        query={
            "openid": "o_1",
            "encrypt_type": "aes",
            **_pick(name, "timestamp", "nonce", "msg_signature", *signatures),
        },
        at=int(found["timestamp"]),
        read=_decrypted,
        expected=message.encode(),
    )


def _decrypted(body: bytes) -> bytes:
    key = FOUND["wechat-secure-post"]["aes_key"]
    return PrpCrypto(b64decode(key + "=")).decrypt(json.loads(body)["Encrypt"], APP_ID).encode()


def _detail(body: bytes) -> bytes:
    return json.loads(body)["detail"].encode()


_keys, _feishu, _twilio = (
    FOUND["ed25519-rfc8032-key1"],
    FOUND["feishu-signature"],
    FOUND["twilio-form"],
)
_called = urlsplit(_twilio["url"])
_post, _reply = FOUND["wechat-secure-post"]["plain"]["msg"], FOUND["wechat-secure-reply"]["msg"]

VECTORS = [
    _wechat("wechat-get", b"", {"echostr": "437512"}, method="GET", expected=b"437512"),
    _wechat("wechat-plain-post", b"<xml><MsgType>text</MsgType><MsgId>1</MsgId></xml>", {}),
    _encrypted("wechat-secure-post", {"secrets": "AAAAB"}, _post, "signature"),
    # The encrypted reply might as well be a message.
    _encrypted("wechat-secure-reply", {"secrets": "AAAAB"}, _reply),
    _hmac("github", "github", "X-Hub-Signature-256", "It's a Secret to Everybodz"),
    _hmac("meta", "github", "X-Hub-Signature-256", "It's a Secret to Everybodz"),
    _hmac("shopify", "shopify", "X-Shopify-Hmac-Sha256", "Convoz"),
    _standard(
        "standard-v1",
        FOUND["standard-webhooks-v1"],
        FOUND["standard-webhooks-v1"]["secret"],
        FOUND["standard-webhooks-v1"]["secret"].replace("LaSw", "LaSx"),
    ),
    _standard(
        "standard-v1a",
        _keys["standard_webhooks_v1a"],
        _keys["standard_webhooks_v1a"]["public"],
        "whpk_" + "1" * 43 + "=",
    ),
    Vector(
        "stripe",
        {"secrets": FOUND["stripe"]["secret"]},
        {"secrets": "whsec_test_secres"},
        FOUND["stripe"]["body"].encode(),
        {"Stripe-Signature": FOUND["stripe"]["header"]},
        at=int(FOUND["stripe"]["timestamp"]),
    ),
    Vector(
        "twilio",
        {"secrets": _twilio["token"]},
        {"secrets": "12346"},
        urlencode(_twilio["params"]).encode(),
        {"X-Twilio-Signature": _twilio["signature"]},
        dict(parse_qsl(_called.query)),
        path=_called.path,
    ),
    Vector(
        "discord",
        {"secrets": _keys["public_hex"]},
        {"secrets": "1" * 64},
        _keys["discord"]["body"].encode(),
        {
            "X-Signature-Ed25519": _keys["discord"]["signature_hex"],
            "X-Signature-Timestamp": _keys["discord"]["timestamp"],
        },
        at=int(_keys["discord"]["timestamp"]),
        expected=b'{"type":1}',
    ),
    Vector(
        "feishu",
        {"secrets": _feishu["encrypt_key"]},
        {"secrets": "test kez"},
        _feishu["body"].encode(),
        {
            "X-Lark-Request-Timestamp": _feishu["timestamp"],
            "X-Lark-Request-Nonce": _feishu["nonce"],
            "X-Lark-Signature": _feishu["signature"],
        },
        at=int(_feishu["timestamp"]),
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
