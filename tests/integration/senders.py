"""What senders write: signed, and where they do so encrypted, by other means than the gateway's."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from base64 import b64decode
from typing import Any

from wechatpy.crypto import PrpCrypto, WeChatCrypto

from tests.integration.webhooks import Call

SECRET, AES_KEY, APP_ID = "s3cret-of-the-sender", "aes" + "0123456789" * 4, "wx-app"
#: A source's options, where the sender encrypts as WeChat does.
ENCRYPTION = {"secrets": SECRET, "aes_key": AES_KEY, "receive_id": APP_ID}


def github(path: str, event: str = "push", secret: str = SECRET, **headers: str) -> Call:
    """Return a delivery of GitHub's, with an id of its own."""
    action = event.partition(".")[2]
    body = json.dumps({"action": action} if action else {"ref": "refs/heads/main"}).encode()
    signed = {
        "X-GitHub-Event": event.partition(".")[0],
        "X-GitHub-Delivery": secrets.token_hex(8),
        "X-Hub-Signature-256": "sha256=" + hmac.digest(secret.encode(), body, "sha256").hex(),
        "X-Hub-Signature": "sha1=" + hmac.digest(secret.encode(), body, "sha1").hex(),
    }
    return Call(path, body, {**signed, **headers})


def wechat(kind: str, secret: str = SECRET) -> Call:
    """Return a message of WeChat's in plain mode."""
    name = "Event" if kind == "event" else "Content"
    body = f"<xml><MsgType>{kind}</MsgType><{name}>subscribe</{name}><MsgId>1</MsgId></xml>"
    query = times()
    return Call("/wechat", body.encode(), query=query | {"signature": proof(query, secret=secret)})


def times() -> dict[str, str]:
    """Return WeChat's parameters that a signature covers, for now."""
    return {"timestamp": str(int(time.time())), "nonce": secrets.token_hex(4)}


def proof(query: dict[str, str], *more: str, secret: str = SECRET) -> str:
    """Return WeChat's signature of the times in `query` and of `more`."""
    parts = sorted([secret, query["timestamp"], query["nonce"], *more])
    return hashlib.sha1("".join(parts).encode()).hexdigest()


def encrypted(text: str) -> str:
    return PrpCrypto(b64decode(AES_KEY + "=")).encrypt(text, APP_ID).decode()


def decrypted(reply: dict[str, Any]) -> str:
    """Verify and decrypt a reply whose names are WeChat's."""
    signature, timestamp, nonce = (str(reply[n]) for n in ("MsgSignature", "TimeStamp", "Nonce"))
    crypto = WeChatCrypto(SECRET, AES_KEY, APP_ID)
    return crypto.decrypt_message(reply, signature, timestamp, nonce)


def dingtalk(event: dict[str, Any]) -> Call:
    """Return an event of DingTalk's."""
    sealed = encrypted(json.dumps(event))
    query = times() | {"timestamp": str(int(time.time() * 1000))}
    query["msg_signature"] = proof(query, sealed)
    return Call("/dingtalk", json.dumps({"encrypt": sealed}).encode(), query=query)


def dingtalks_word(body: bytes) -> str:
    """Verify and decrypt an answer to DingTalk."""
    reply = json.loads(body)
    names = {"encrypt": "Encrypt", "msg_signature": "MsgSignature", "timeStamp": "TimeStamp"}
    return decrypted({names.get(name, name.title()): value for name, value in reply.items()})
