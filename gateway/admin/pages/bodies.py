"""Show a body as what it is: JSON that folds, XML, a form, text, or bytes."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from gateway.admin.pages.widgets import escape
from gateway.config.redaction import HIDDEN
from gateway.journal.entry import read_json

#: Characters of a body that are shown, bytes as hexadecimal digits, and levels that fold
#: or have an indent of their own.
_MOST, _BYTES, _LEVELS = 200_000, 4_096, 20
_SHORT = 72  # characters of a value that needs no lines of its own
# Up to the next "<" or ">": the time is proportional to the text.
_TAG = re.compile(r"(<[^<>]+>)")


class Shown(NamedTuple):
    """A body as markup, what kind it is, and its ``size`` in bytes; ``cut``: there is more."""

    kind: str
    markup: str
    size: int
    cut: bool = False


def _read(body: Any, headers: Mapping[str, str]) -> tuple[str, Any]:
    """Return what kind of body it is, and its value: what JSON says, or the base64 of bytes."""
    if _is_bytes(body):
        return "bytes", str(body.get("__value__", ""))
    if not isinstance(body, str):
        return "JSON", body
    if body[:1] in ("{", "["):
        try:
            return "JSON", read_json(body)
        except (ValueError, RecursionError):
            return "text, no valid JSON", body
    if body[:1] == "<":
        return "XML", body
    return "form" if "form-urlencoded" in headers.get("content-type", "") else "text", body


def _is_bytes(body: Any) -> bool:
    return isinstance(body, Mapping) and "__type__" in body


def shown(body: Any, headers: Mapping[str, str]) -> Shown:
    """Return a body of a call, or all of a call, as it can be read."""
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    size = len(text.encode(errors="replace"))
    if len(text) > _MOST and not _is_bytes(body):
        return Shown("text", f"<pre>{_text(text[:_MOST])}</pre>", size, cut=True)
    kind, value = _read(body, headers)
    if kind == "bytes":
        return _bytes(value)
    if kind == "JSON":
        return Shown(kind, _fold(value), size)
    if kind == "form":
        pairs = parse_qsl(body, keep_blank_values=True)
        rows = "".join(f"<dt>{escape(name)}</dt><dd>{_text(text)}</dd>" for name, text in pairs)
        return Shown(kind, f'<dl class="facts mono">{rows}</dl>', size)
    text = _indented(body, _MOST) if kind == "XML" else body
    return Shown(kind, f"<pre>{_text(text)}</pre>", size)


def lines(body: Any, headers: Mapping[str, str], most: int) -> list[str]:
    """Return a body of a call as lines, so that two can be compared.

    Where there are more than `most`, these have more than that, and need not be all.
    """
    kind, value = _read(body, headers)
    if kind == "bytes":
        return _dumped(value)[0]
    if kind == "JSON":
        return _json_lines(value, most)
    if kind == "form":
        return str(value).split("&")
    return (_indented(value, most) if kind == "XML" else str(value)).splitlines()


def _json_lines(value: Any, most: int) -> list[str]:
    """Write JSON with an indent by level, which may be a thousand times its text."""
    parts, found = [], 0
    for part in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(value):
        parts.append(part)
        found += part.count("\n")
        if found > most:
            break
    return "".join(parts).splitlines()


def _text(text: str) -> str:
    """Escape a text, in which what was redacted is marked."""
    return escape(text).replace(HIDDEN, '<span class="tag hidden">redacted</span>')


def _bytes(encoded: str) -> Shown:
    found, size = _dumped(encoded)
    kind = "bytes" if size is not None else "bytes, not readable"
    size = len(encoded) if size is None else size
    return Shown(kind, f"<pre>{_text(chr(10).join(found))}</pre>", size, size > _BYTES)


def _dumped(encoded: str) -> tuple[list[str], int | None]:
    """Return bytes in base64 as hexadecimal lines, and how many they are; None: it is no base64."""
    try:
        data = base64.b64decode(encoded)
    except binascii.Error:
        return [encoded], None
    found = []
    for at in range(0, min(len(data), _BYTES), 16):
        row = data[at : at + 16]
        plain = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        found.append(f"{at:06x}  {row.hex(' '):47}  {plain}")
    return found, len(data)


def _fold(value: Any, name: str = "", end: str = "", level: int = 0) -> str:
    head = f'<span class="key">{escape(name)}:</span> ' if name else ""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or (level and len(flat) <= _SHORT) or level > _LEVELS:
        return f"<div>{head}{_text(flat)}{end}</div>"
    brackets = "{}" if isinstance(value, dict) else "[]"
    pairs = (
        [(json.dumps(key, ensure_ascii=False), each) for key, each in value.items()]
        if isinstance(value, dict)
        else [("", each) for each in value]
    )
    inner = "".join(
        _fold(each, key, "" if i == len(pairs) - 1 else ",", level + 1)
        for i, (key, each) in enumerate(pairs)
    )
    word = "key" if isinstance(value, dict) else "item"
    many = f"{len(pairs)} {word}" + ("" if len(pairs) == 1 else "s")
    return (
        f"<details{' open' if level < 2 else ''}><summary>{head}{brackets[0]} "
        f"<small>{many}</small></summary>{inner}<div>{brackets[1]}{end}</div></details>"
    )


def _indented(text: str, most: int) -> str:
    """Give each element of XML a line; it is not parsed, as anybody can have sent it.

    What follows more than `most` lines is left out.
    """
    lines: list[str] = []
    level = 0
    for part in filter(None, map(str.strip, _TAG.split(text))):
        if len(lines) > most:
            break
        last = lines[-1] if lines else ""
        joins = last.endswith(">") and not part.startswith("<")  # a value
        if part.startswith("</"):
            level -= 1
            joins = "</" not in last and not last.endswith("/>")
        if last and joins:
            lines[-1] += part
        else:
            lines.append("  " * min(max(level, 0), _LEVELS) + part)
        if part.startswith("<") and part[1:2] not in "/!?" and not part.endswith("/>"):
            level += 1
    return "\n".join(lines)
