"""Feishu's requests, encrypted and signed without our own code."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from typing import Any

from gateway.delivery import Request
from gateway.sources.base import Source
from gateway.sources.senders.feishu import NONCE, SIGNATURE, TIMESTAMP
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import post, source

KEY = "kudryavka"
EVENT = {
    "schema": "2.0",
    "header": {
        "event_id": "f7984f25108f8137722bb63cee927e66",
        "event_type": "contact.user_group.created_v3",
        "app_id": "cli_xxxxxxxx",
        "token": "066zT6pS4QCbgj5Do145GfDbbagCHGgF",
    },
    "event": {"name": "größe"},
}
OLD = {
    "uuid": "bc447199585340d1f3728d26b1c0297a",
    "token": "41a9425ea7df4536a7623e38fa321bae",
    "type": "event_callback",
    "event": {"type": "app_ticket", "app_id": "cli_xxx", "app_ticket": "xxx"},
}
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
