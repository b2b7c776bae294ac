"""Read fields of a verified body: a form's fields, values in JSON, identities and names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gateway.errors import BadRequest
from gateway.sources.envelopes import read_json

#: Stands for a value that is not there, where None may be a value.
MISSING: Any = object()
#: The most characters of an identity or an event's name.
MAX_NAME = 1_000
#: The most fields of a form: more would be an attack on the parser.
MAX_FIELDS = 1_000
#: A list's index (RFC 6901), without leading zeros; nine digits are enough for any list.
_index = re.compile("0|[1-9][0-9]{0,8}").fullmatch


def read_if_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`, or an empty one where it is anything else."""
    try:
        return read_json(body)
    except BadRequest:
        return {}


def read_form(body: bytes) -> list[tuple[str, str]]:
    """Return the fields of application/x-www-form-urlencoded in their order.

    Each character of the texts is one byte (latin-1); `utf8` decodes them. Raises `BadRequest`
    where there are too many fields, or a percent sign does not begin an escape.
    https://url.spec.whatwg.org/#urlencoded-parsing
    """
    if body.count(b"&") >= MAX_FIELDS:
        raise BadRequest(f"The form has more than {MAX_FIELDS} fields.")
    # Percent escapes become Python's escapes, which are decoded in a third of the time that urllib
    # takes. The separators become characters that are not latin-1, so that no byte is one of them.
    escaped = body.replace(b"\\", b"\\\\").replace(b"%", b"\\x").replace(b"+", b" ")
    escaped = escaped.replace(b"&", b"\\u0126").replace(b"=", b"\\u013d")
    try:
        text = escaped.decode("unicode_escape")
    except UnicodeDecodeError as exc:
        raise BadRequest("The form has a percent sign that does not begin an escape.") from exc
    fields = [field.partition("\u013d") for field in text.split("\u0126") if field]
    return [(name, value.replace("\u013d", "=")) for name, _, value in fields]


def utf8(text: str) -> str:
    """Decode a form's text as UTF-8; bytes that are not UTF-8 are replaced."""
    return text.encode("latin-1").decode(errors="replace")


def name(value: Any) -> str:
    """Return a string's or an integer's text, for an identity or an event's name.

    It is empty for any other value. Raises `BadRequest` where it is too long.
    """
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str):
        return ""
    if len(value) > MAX_NAME:
        raise BadRequest(f"An id or a type in the body has more than {MAX_NAME} characters.")
    return value


def pointer(text: str) -> list[str]:
    """Return a JSON pointer's tokens. https://www.rfc-editor.org/rfc/rfc6901"""
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def put(message: dict[str, Any], tokens: Sequence[str], value: Any) -> None:
    """Write the value at a JSON pointer's tokens, of which there has to be one; makes objects."""
    *parents, last = tokens
    for token in parents:
        if not isinstance(message.get(token), dict):
            message[token] = {}
        message = message[token]
    message[last] = value


def at(value: Any, tokens: Sequence[str], missing: Any = None) -> Any:
    """Return the value at a JSON pointer's tokens in `value`; `missing` where there is none."""
    for token in tokens:
        if isinstance(value, dict):
            value = value.get(token, missing)
        elif isinstance(value, list) and _index(token):
            value = value[int(token)] if int(token) < len(value) else missing
        else:
            return missing
    return value
