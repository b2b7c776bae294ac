"""Read what senders write: query strings, forms, JSON, flat XML, and the values in them.

Some bodies have to be read to find the signature, before the sender can be trusted. So the
parsers are bounded, and raise nothing but `BadRequest`. Senders write messages that are not valid
(control characters, half of an emoji): `read_loosely` and `read_xml` read these nevertheless.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring_ascii
from math import isinf
from typing import Any, Literal, NoReturn
from urllib.parse import parse_qsl
from xml.parsers import expat

from gateway.errors import BadRequest, BodyTooLarge
from gateway.nesting import MAX_LEVELS, check_levels

#: The most query parameters of a URL: more would be an attack on the parser.
MAX_PARAMETERS = 256
#: The largest body that is parsed before its sender is known: parsing takes longer than all else.
MAX_UNPROVEN = 128 * 1024
#: The most levels of elements, and the most elements in all: far more than any sender uses.
MAX_DEPTH = 32
MAX_ELEMENTS = 4_096
#: Python converts numbers of at most 4,300 digits, unless told otherwise.
_MAX_DIGITS = 4_000
# Characters that XML does not allow (https://www.w3.org/TR/xml/#charsets), and their references.
NO_XML = r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_no_xml = re.compile(NO_XML)
_reference = re.compile("&#(?:x([0-9a-fA-F]+)|([0-9]+));")


def read_query(text: str, errors: Literal["replace", "strict"] = "replace") -> dict[str, str]:
    """Return the parameters in a query string; the last value of a name wins.

    Bytes that are not UTF-8 are replaced, so that a signature over them does not match. Raises
    `BadRequest` where there are too many parameters, or where `errors` is strict and some are not
    UTF-8.
    """
    if not text:
        return {}
    try:
        return dict(
            parse_qsl(text, keep_blank_values=True, errors=errors, max_num_fields=MAX_PARAMETERS)
        )
    except UnicodeDecodeError as exc:
        raise BadRequest("The query string is not UTF-8.") from exc
    except ValueError as exc:
        raise BadRequest(f"The query string has more than {MAX_PARAMETERS} parameters.") from exc


def read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`; raises `BadRequest` for anything else."""
    value = read_json_value(body)
    if not isinstance(value, dict):
        raise BadRequest("The JSON is not an object.")
    return value


def check_flat(body: bytes) -> None:
    """Raise `BadRequest` for an envelope of an encrypted message that would take long to parse."""
    # References in XML are resolved one by one.
    if max(body.count(b","), body.count(b"&")) > MAX_PARAMETERS:
        raise BadRequest(f"The envelope has more than {MAX_PARAMETERS} members.")


def check_unproven(body: bytes, largest: int) -> None:
    """Raise `BodyTooLarge` for a body that is too large to be parsed to find its signature."""
    if len(body) > largest:
        raise BodyTooLarge(
            f"The body is over {largest} bytes, the most that is parsed to find its signature."
        )


def read_json_value(body: bytes) -> Any:
    """Return the JSON in `body`, which has to be UTF-8.

    Raises `BadRequest` for anything else, also for NaN, for more than `MAX_LEVELS` levels, and for
    numbers with too many digits for Python or out of a float's range. Half surrogates in escapes
    stay as they are: senders cut texts within an emoji.
    https://www.rfc-editor.org/rfc/rfc8259
    """
    try:
        text = body.decode()
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        check_levels(value, text)
    except ValueError as exc:
        raise BadRequest("The JSON is malformed.") from exc
    except RecursionError as exc:
        raise BadRequest(f"The JSON has more than {MAX_LEVELS} levels.") from exc
    return value


def read_loosely(body: bytes) -> Any:
    """Return the JSON in a verified `body`, read as tolerantly as possible; None: it is not JSON.

    This is for what a scheme reads: the task gets the body as it is. Bytes that are not UTF-8
    become half surrogates, and numbers that are too long for Python stay text. JSON of more than
    `MAX_LEVELS` levels is not read.
    """
    text = body.decode(errors="surrogateescape").removeprefix("\ufeff")
    try:
        value = _decode_loosely(text)
        check_levels(value, text)
    except (ValueError, RecursionError):
        return None
    return value


def _integer(text: str) -> int | str:
    return int(text) if len(text) < _MAX_DIGITS else text


_decode_loosely = json.JSONDecoder(strict=False, parse_int=_integer).decode


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def _finite(text: str) -> float:
    # Python reads 1e999 as infinity, and would write `Infinity`, which no other language reads.
    value = float(text)
    if isinf(value):
        raise ValueError(f"{text} is out of range")
    return value


def read_xml(body: bytes) -> dict[str, str]:
    """Return the text of each child element of the root in `body`, which has to be UTF-8.

    Of several with one name the first is used; of an element with children only its own text.
    Characters that XML does not allow, and bytes that are not UTF-8, are replaced by U+FFFD. Raises
    `BadRequest` for anything else, also for a DTD, without which there can be no entities.
    """
    # expat recognizes UTF-16 although it was told UTF-8; markup in UTF-16 has NUL bytes.
    if b"\0" not in body:
        try:
            return _Fields().read(body)
        except expat.ExpatError:
            pass  # perhaps only for its characters
    try:
        return _Fields().read(_allowed(body))
    except expat.ExpatError as exc:
        raise BadRequest("The XML is malformed.") from exc


def _allowed(body: bytes) -> bytes:
    """Return `body` with U+FFFD for all that is not UTF-8, or that XML does not allow."""
    text = _no_xml.sub("\ufffd", body.decode(errors="replace"))
    return _reference.sub(_allowed_reference, text).encode()


def _allowed_reference(found: re.Match[str]) -> str:
    digits, base = (found[1], 16) if found[1] else (found[2], 10)
    # Eight digits are more than any character has, and fewer than int() refuses.
    code = int(digits.lstrip("0")[:8] or "0", base)
    return "\ufffd" if code > 0x10FFFF or _no_xml.match(chr(code)) else found[0]


class _Fields:
    """Collects the texts of the elements at depth two, and limits depth and number of elements."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._depth = self._elements = 0
        self._text: list[str] = []

    def read(self, body: bytes) -> dict[str, str]:
        """Parse `body`. Raises `BadRequest`, and ExpatError where it is malformed."""
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.Parse(body, True)
        return self._fields

    def _doctype(self, *_declaration: Any) -> NoReturn:
        raise BadRequest("The XML has a DTD, which is not allowed.")

    def _start(self, _name: str, _attributes: dict[str, str]) -> None:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH or self._elements > MAX_ELEMENTS:
            raise BadRequest("The XML is too deep or has too many elements.")
        if self._depth == 2:
            self._text.clear()

    def _characters(self, text: str) -> None:
        if self._depth == 2:
            self._text.append(text)

    def _end(self, name: str) -> None:
        if self._depth == 2:
            self._fields.setdefault(name, "".join(self._text))
        self._depth -= 1


# Values ---------------------------------------------------------------------------------------

#: Stands for a value that is not there, where None may be a value.
MISSING: Any = object()
#: The most fields of a form: more would be an attack on the parser.
MAX_FIELDS = 1_000
#: Write values as JSON, in a third of the time that json.dumps takes.
_WRITERS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring_ascii,
    int: int.__repr__,
    bool: json.dumps,
}
#: A list's index (RFC 6901), without leading zeros; nine digits are enough for any list.
_index = re.compile("0|[1-9][0-9]{0,8}").fullmatch


def read_if_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a verified `body`, or an empty one where it is anything else."""
    value = read_loosely(body)
    return value if isinstance(value, dict) else {}


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
    """Return a string's or an integer's text, for an event's name; empty for any other value.

    Half surrogates, which cannot be encoded, are replaced.
    """
    if type(value) is str:
        return value if value.isascii() else value.encode(errors="replace").decode()
    return str(value) if type(value) is int else ""


def identity(key: Any, *apart: Any) -> str:
    """Return what identifies a delivery: its sender's `key` for it, and what else tells it `apart`.

    Senders do not keep their keys unique. So `apart` has all that every try of a delivery repeats
    and that two deliveries with one key may not share; values other than texts, integers, true and
    false count as missing ones. The result is ASCII; it is empty where there is no key.
    """
    if type(key) not in (str, int) or key == "":
        return ""
    parts = [_WRITERS.get(type(each), _nothing)(each) for each in (key, *apart)]
    return f"[{', '.join(parts)}]"


def _nothing(_value: Any) -> str:
    return '""'


def pointer(text: str) -> list[str]:
    """Return a JSON pointer's tokens. https://www.rfc-editor.org/rfc/rfc6901"""
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def put(message: Any, tokens: Sequence[str], value: Any) -> Any:
    """Return `message` with `value` at a JSON pointer's tokens; what is missing is made."""
    if not tokens:
        return value
    token, *rest = tokens
    if _index(token):
        items = message if isinstance(message, list) else [message]
        return [put(each, rest, value) if str(i) == token else each for i, each in enumerate(items)]
    members = message if isinstance(message, dict) else {}
    return {**members, token: put(members.get(token, {}), rest, value)}


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
