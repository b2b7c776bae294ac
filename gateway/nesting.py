"""JSON within JSON: how deep it may be nested, as Python's own limit differs, and its escapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

#: Levels of lists and objects: far more than senders use, and fewer than every version of Python
#: can read and write (3.11: about 950; from 3.13 on: 5,000 and more). A prefork pool pickles the
#: arguments of its tasks: with 3.11 a worker ends at about 450 levels, and so does the next one,
#: to which the message is delivered again. pydantic, which writes the API's answers, takes 255.
MAX_LEVELS = 200

_INNER = (dict, list, tuple)


def walk(value: Any) -> Iterator[Any]:
    """Yield a value of JSON and all values in it, level by level, but for the keys of objects."""
    return chain.from_iterable(_levels(value))


def check_levels(value: Any, text: str) -> None:
    """Raise RecursionError where `value`, whose JSON is `text`, has more than `MAX_LEVELS` levels.

    `json` raises the same error at Python's own limit.
    """
    # Counting the brackets takes about 1 us for 1 KB, and few brackets cannot be nested deep.
    if text.count("[") + text.count("{") > MAX_LEVELS:
        check_depth(value)


def check_depth(value: Any) -> None:
    """Raise RecursionError where `value` has more than `MAX_LEVELS` levels."""
    for levels, level in enumerate(_levels(value)):
        if levels >= MAX_LEVELS and any(isinstance(each, _INNER) for each in level):
            raise RecursionError(f"over {MAX_LEVELS} levels")


def _levels(value: Any) -> Iterator[list[Any]]:
    """Yield the values of each level; a generator for each value would take time for each level."""
    level = [value]
    while level:
        yield level
        inner = (each for each in level if isinstance(each, _INNER))
        values = (each.values() if isinstance(each, dict) else each for each in inner)
        level = list(chain.from_iterable(values))


_escape = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|(["\\/bfnrt]))')
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def unescaped(text: str) -> str:
    """Return a text, of which not all has to be JSON, with JSON's escapes undone once."""
    if "\\" not in text:
        return text
    plain = _escape.sub(lambda found: _letter(*found.groups()), text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _letter(number: str | None, letter: str) -> str:
    return chr(int(number, 16)) if number else _CONTROLS.get(letter, letter)
