"""Describe invalid settings and parameters in sentences, instead of pydantic's messages."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.late import Late
from gateway.config.notify import Notify
from gateway.config.route import Route
from gateway.config.urls import TLS
from gateway.model import Model
from gateway.similar import meant

_NUMBER, _WHOLE = "has to be a number, such as 4.5", "has to be a whole number"
_BOOL = "has to be true or false"
_TEXT, _TABLE = "has to be a text in quotation marks", "has to be a table"
#: By pydantic's type of the error; the names in braces are from the error's context.
#: https://docs.pydantic.dev/latest/errors/validation_errors/
_SENTENCES = {
    "missing": "is needed",
    "bool_parsing": _BOOL,
    "bool_type": _BOOL,
    "dict_type": _TABLE,
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "finite_number": _NUMBER,
    "greater_than": "has to be above {gt}",
    "greater_than_equal": "has to be {ge} or more",
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_type": _WHOLE,
    "less_than": "has to be below {lt}",
    "less_than_equal": "has to be {le} or less",
    "list_type": "has to be a list",
    "literal_error": "has to be {expected}",
    "model_type": _TABLE,
    "path_type": "has to be a path",
    "string_pattern_mismatch": "has to be written as an earlier answer has it",
    "string_too_long": "has to have {max_length} or fewer characters",
    "string_too_short": "has to have {min_length} or more characters",
    "string_type": _TEXT,
    "string_unicode": _TEXT,
    "too_short": "has to have {min_length} or more items",
}
#: Parts of a place that name a type of a union, and not a setting.
_TYPES = {"str", "int", "bool"}
#: How such parts begin where the type has a validator; they are pydantic's.
_CHECKED_TYPES = ("constrained-", "function-")
#: pydantic's types of errors that say that a value is of another type.
_OTHER_TYPES = {"bool_type", "int_type", "string_type"}
#: pydantic's types of errors about a value that is not a text.
_UNQUOTED = {"bool_type", "float_type", "int_type"}
#: The last part of a place where a table's key is invalid, and not its value.
_KEY = "[key]"
#: The part of an argument that stands for all of it where the argument is a text.
_FROM = "from"
#: A key that TOML lets stand without quotation marks.
_is_bare = re.compile(r"[A-Za-z0-9_-]+").fullmatch
_TYPED = "has to be a text, a whole number, true or false"


def explain(
    error: ValidationError, model: type[BaseModel], place: str = "", field: str = "setting"
) -> list[str]:
    """Return a line for each problem with a `model`: where it is, and what would be valid.

    `field` is what the model's fields are called.
    """
    lines: dict[str, None] = {}
    for detail in _meant_types(error.errors(include_url=False)):
        loc, text = detail["loc"], _sentence(detail, model, field)
        if len(loc) > 1 and loc[-1] in _TYPES:
            loc, text = loc[:-1], _TYPED
        elif len(loc) > 1 and (loc[-1] in (_KEY, _FROM) or _is_type(detail)):
            loc = loc[:-1]
        where = "".join(map(member, loc)).lstrip(".")
        for line in text.split("\n"):
            # What is wrong with a table as a whole names the place in it.
            named = isinstance(detail["input"], dict) and re.match(r"\S+: ", line)
            between = "" if not where else "." if named else ": "
            lines[f"{place}{where}{between}{line}"] = None
    return list(lines)


def _meant_types(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out that a value is not of one type, where it is of another and has its own problem."""
    places = [detail["loc"][:-1] for detail in details if not detail["type"].endswith("_type")]
    return [
        detail
        for detail in details
        if not (
            detail["type"] in _OTHER_TYPES and _is_type(detail) and detail["loc"][:-1] in places
        )
    ]


def _is_type(detail: ErrorDetails) -> bool:
    """Does the last part of the place name a type of a union?"""
    last = str(detail["loc"][-1]) if detail["loc"] else ""
    return last in _TYPES or last.startswith(_CHECKED_TYPES)


def member(name: str | int) -> str:
    """Return how a place names a member: ``[0]`` of a list, ``.queue``, ``."json:/a"``."""
    if isinstance(name, int):
        return f"[{name}]"
    return f".{name}" if _is_bare(name) else f".{json.dumps(name, ensure_ascii=False)}"


def _sentence(detail: ErrorDetails, model: type[BaseModel], field: str) -> str:
    kind, loc = detail["type"], detail["loc"]
    if kind == "extra_forbidden":
        tables: dict[str, type[Model]] = {"routes": Route, "tls": TLS, "notify": Notify}
        owner = Late if "late" in loc[:-1] else tables.get(str(loc[0]) if loc[1:] else "", model)
        names = [each.alias or name for name, each in owner.model_fields.items()]
        hint = f"; {meant(loc[-1], names, '' if names else 'there are none')}"
        if loc == ("route",) and "routes" in names:
            hint = "; write [[routes]] for each route"
        return f"there is no such {field}{hint}"
    if kind == "list_type" and loc == ("routes",):
        return "each route is a table of its own: write [[routes]] instead of [routes]"
    if kind == "too_short" and loc in (("secret_key",), ("admin_token",)):  # it counts characters
        kind = "string_too_short"
    if kind in _SENTENCES:
        context = {name: _plain(value) for name, value in detail.get("ctx", {}).items()}
        # A text from outside the file is a `Text`, and has no quotation marks.
        quoted = type(detail["input"]) is str and kind in _UNQUOTED
        return _SENTENCES[kind].format(**context) + ", without quotation marks" * quoted
    return detail["msg"].removeprefix("Value error, ")


def _plain(value: Any) -> Any:
    """Return a number as it is read best: 1000000 for 1e6, and 0.01667 for a sixtieth."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else float(f"{value:.4g}")
    return value
