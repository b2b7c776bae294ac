"""Requests of the senders that encrypt, and messages in them, put together by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from string import ascii_letters, digits
from typing import Any
from urllib.parse import urlencode

from hypothesis import strategies as st

from gateway.answer import JSON, Answer
from gateway.delivery import Request
from gateway.sources import find
from gateway.sources.base import Draft, Signed, Source
from gateway.sources.proofs import PUBLIC_TEXTS
from tests.unit.sources.examples import NOW

_FILE = Path(__file__).parents[2] / "vectors" / "webhooks.json"
VECTORS = {vector["name"]: vector for vector in json.loads(_FILE.read_text("utf-8"))}

#: The published message, and the options of its receiver.
SECURE = VECTORS["wechat-secure-post"]
SAFE = {
    "secrets": SECURE["token"], "aes_key": SECURE["aes_key"],
    "receive_id": SECURE["plain"]["receiveid"],
}  # fmt: skip

#: Text that XML can carry and gives back as it was.
texts = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=60
)
tokens = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=32)
aes_keys = st.text(ascii_letters + digits, min_size=43, max_size=43)


def source(scheme: str, public_url: str = "", **options: Any) -> Source:
    found = find(scheme)
    return found(found.options_class.model_validate({"scheme": scheme, **options}), public_url)


def safe(**options: Any) -> Source:
    """Return WeChat's receiver of encrypted messages."""
    return source("wechat", **{**SAFE, **options})


def changes(text: str) -> Iterator[str]:
    """Each text that differs from `text` in one character, and those that lack one."""
    for i, character in enumerate(text):
        for by in {"A", "b", "7", "é", ""} - {character}:
            yield text[:i] + by + text[i + 1 :]


def each_character(fields: dict[str, str]) -> Iterator[dict[str, str]]:
    """Fields with each character of each value changed, and those that lack one of them."""
    for name, value in fields.items():
        for changed in changes(value):
            yield {**fields, name: changed}
        yield {key: text for key, text in fields.items() if key != name}


def get(query: dict[str, str] | str, at: float = NOW) -> Request:
    return post(query, b"", at, method="GET")


def post(
    query: dict[str, str] | str,
    body: bytes,
    at: float = NOW,
    headers: dict[str, str] | None = None,
    method: str = "POST",
) -> Request:
    text = query if isinstance(query, str) else urlencode(query)
    return Request(method, "/hook", text, headers or {}, body, "192.0.2.1", 0.0, at)


def send(sender: Source, body: bytes, at: float = NOW) -> Request:
    """Return the request in which `sender` sends `body` at the time that it arrives."""
    return received(sender.sign(Draft(body, "https://hooks.example.com/hook", at)), at)


def received(signed: Signed, at: float = NOW) -> Request:
    return post(signed.query, signed.body, at, signed.headers)


def xml(**fields: Any) -> bytes:
    """Return a message as WeChat writes it: text as CDATA, numbers plain."""
    inner = "".join(
        f"<{k}>{v}</{k}>" if isinstance(v, int) else f"<{k}><![CDATA[{v}]]></{k}>"
        for k, v in fields.items()
    )
    return f"<xml>{inner}</xml>".encode()


def text_message(**changes: Any) -> dict[str, Any]:
    return {
        "ToUserName": "gh_7f083739789a", "FromUserName": "oia2TjuEGTNoeX76QEjQNrcURxG8",
        "CreateTime": 1395658920, "MsgType": "text", "Content": "hallo",
        "MsgId": 5993973467416297472, **changes,
    }  # fmt: skip


def said(value: str | bytes | dict | list | int | None) -> Answer:
    """Return the answer that a task's result becomes."""
    if value is None:
        return Answer(200, "", b"")
    if isinstance(value, str):
        return Answer(200, "text/xml", value.encode())
    if isinstance(value, bytes):
        return Answer(200, "application/octet-stream", value)
    return Answer(200, JSON, json.dumps(value, ensure_ascii=False).encode())


def is_secret(text: str) -> bool:
    """Is it a secret that a source may have?"""
    return text != "" and text == text.strip() and not text.startswith(PUBLIC_TEXTS)
