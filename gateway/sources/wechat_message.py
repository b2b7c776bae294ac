"""Read WeChat's messages, which are XML or JSON, and render the passive replies to them.

https://developers.weixin.qq.com/doc/offiaccount/Message_Management/Receiving_standard_messages.html
https://developers.weixin.qq.com/doc/offiaccount/Message_Management/Passive_user_reply_message.html
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gateway.answer import JSON, Answer
from gateway.errors import BadRequest, ResultUnusable
from gateway.sources.base import Sample
from gateway.sources.reading import NO_XML, name, read_json, read_loosely, read_xml

XML = "text/xml"
#: The most levels of elements in a reply: the root, `Articles`, `item`, `Title`.
_MAX_DEPTH = 4
_tag = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch
_no_xml = re.compile(NO_XML)


_MESSAGE = (
    "<xml><ToUserName><![CDATA[gh_gateway]]></ToUserName>"
    "<FromUserName><![CDATA[o_sender]]></FromUserName>"
    "<CreateTime>1700000000</CreateTime><MsgType><![CDATA[$kind]]></MsgType>"
)
#: Samples of WeChat and WeCom: a text message, and an event.
SAMPLES = {
    "": Sample("text", f"{_MESSAGE}<Content><![CDATA[hello]]></Content><MsgId>$id</MsgId></xml>"),
    "event": Sample(
        "event.subscribe",
        f"{_MESSAGE}<Event><![CDATA[$action]]></Event><EventKey>$id</EventKey></xml>",
    ),
}


@dataclass(slots=True, frozen=True)
class Message:
    """A message's top-level texts and numbers by their names in lower case."""

    fields: dict[str, str] = field(repr=False)
    is_json: bool

    @classmethod
    def read(cls, body: bytes) -> Message:
        """Read `body`, which is a JSON object or XML. Raises `BadRequest`."""
        if is_json := looks_like_json(body):
            message = read_loosely(body)
            if message is None:
                raise BadRequest("The JSON is malformed.")
            found = {k: str(v) for k, v in message.items() if isinstance(v, (str, int))}
        else:
            found = read_xml(body)
        return cls({key.lower(): text for key, text in found.items()}, is_json)

    def get(self, key: str) -> str:
        return self.fields.get(key, "")

    @property
    def event(self) -> str:
        """The event's name: a MsgType, for example ``text``, or for example ``event.subscribe``."""
        kind = name(self.get("msgtype") or self.get("infotype")).lower()
        event = name(self.get("event")).lower()
        return f"{kind}.{event}" if kind == "event" and event else kind


def looks_like_json(body: bytes) -> bool:
    """Is `body` a JSON object, perhaps behind a byte order mark, and not XML?"""
    return body.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{"


def passive_reply(answer: Answer, message: Message, now: float) -> bytes:
    """Return a task's answer to `message` as a passive reply, in XML or JSON like the message.

    An answer that is a passive reply already is not changed. In an object with a MsgType, the names
    and the time are filled in. Any other text becomes a reply of the type `text`. Raises
    `ResultUnusable`.
    """
    try:
        text = answer.body.decode()
    except UnicodeDecodeError as exc:
        raise ResultUnusable("A passive reply has to be UTF-8.") from exc
    if not message.is_json and text.lstrip().startswith("<xml"):
        return answer.body
    reply: dict[str, Any] | None = None
    if message.is_json or answer.content_type == JSON:
        with suppress(BadRequest):
            reply = read_json(answer.body)
    if reply is None:
        reply = {"MsgType": "text", "Content": text}
    elif message.is_json and ("MsgType" not in reply or "ToUserName" in reply):
        return answer.body
    elif "MsgType" not in reply:
        raise ResultUnusable("The task returned an object without MsgType for a passive reply.")
    people = {"ToUserName": message.get("fromusername"), "FromUserName": message.get("tousername")}
    return render({**people, "CreateTime": int(now), **reply}, message.is_json)


def render(fields: dict[str, Any], as_json: bool) -> bytes:
    """Return `fields` as a JSON object or as XML, where a list's entries are elements `item`.

    Raises `ResultUnusable` for fields that cannot be XML.
    """
    if as_json:
        return json.dumps(fields, ensure_ascii=False).encode(errors="replace")
    return _element("xml", fields, _MAX_DEPTH).encode()


def _element(tag: str, value: Any, depth: int) -> str:
    if not depth or not _tag(tag):
        raise ResultUnusable("A passive reply has names that XML does not allow, or is too deep.")
    if isinstance(value, dict):
        inner = "".join(_element(key, each, depth - 1) for key, each in value.items())
    elif isinstance(value, list):
        inner = "".join(_element("item", each, depth - 1) for each in value)
    elif isinstance(value, (int, float)):
        inner = str(value)
    else:
        inner = _cdata(value or "")
    return f"<{tag}>{inner}</{tag}>"


def _cdata(text: str) -> str:
    text = _no_xml.sub("\ufffd", text).replace("]]>", "]]]]><![CDATA[>")
    return f"<![CDATA[{text}]]>"
