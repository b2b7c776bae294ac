"""The little that a scheme wants from a verified body: a form's fields, places in JSON, names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gateway.errors import BadRequest
from gateway.sources.envelopes import read_json

#: Characters that an identity or an event's name may have.
MAX_NAME = 1_000
#: Fields that a form may have: more is an attack on the parser.
MAX_FIELDS = 1_000
#: RFC 6901: without leading zeros; no list is longer.
_index = re.compile("0|[1-9][0-9]{0,8}").fullmatch


def read_if_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`; whatever else it is counts as an empty one."""
    try:
        return read_json(body)
    except BadRequest:
        return {}


def read_form(body: bytes) -> list[tuple[str, str]]:
    """Return the fields of application/x-www-form-urlencoded in their order.

    Each character of their texts stands for a byte; `utf8` makes text of it. Raises `BadRequest`
    where they are too many, or a percent sign begins no escape.
    https://url.spec.whatwg.org/#urlencoded-parsing
    """
    if body.count(b"&") >= MAX_FIELDS:
        raise BadRequest(f"The form has over {MAX_FIELDS} fields.")
    # Python's own escapes are decoded all at once, in a third of the time that urllib takes;
    # the separators become characters that no byte stands for.
    escaped = body.replace(b"\\", b"\\\\").replace(b"%", b"\\x").replace(b"+", b" ")
    escaped = escaped.replace(b"&", b"\\u0126").replace(b"=", b"\\u013d")
    try:
        text = escaped.decode("unicode_escape")
    except UnicodeDecodeError as exc:
        raise BadRequest("The form has a percent sign that begins no escape.") from exc
    fields = [field.partition("\u013d") for field in text.split("\u0126") if field]
    return [(name, value.replace("\u013d", "=")) for name, _, value in fields]


def utf8(text: str) -> str:
    """Return a form's text as it was meant; what is no UTF-8 is replaced."""
    return text.encode("latin-1").decode(errors="replace")


def name(value: Any) -> str:
    """Return what stands for an identity or an event: a string's or an integer's text.

    Whatever else it is counts as none. Raises `BadRequest` where it is too long.
    """
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str):
        return ""
    if len(value) > MAX_NAME:
        raise BadRequest(f"An id or a type in the body is over {MAX_NAME} characters.")
    return value


def pointer(text: str) -> list[str]:
    """Return a JSON pointer's tokens. https://www.rfc-editor.org/rfc/rfc6901"""
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def at(value: Any, tokens: Sequence[str]) -> Any:
    """Return what a JSON pointer's tokens lead to in `value`, None where they lead nowhere."""
    for token in tokens:
        if isinstance(value, dict):
            value = value.get(token)
        elif isinstance(value, list) and _index(token):
            value = value[int(token)] if int(token) < len(value) else None
        else:
            return None
    return value
