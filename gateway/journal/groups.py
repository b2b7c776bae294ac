"""Failures of deliveries in groups: by state, route, task, type of the error, and its text.

In the text, what differs from one failure to the next has a placeholder: ``{n}`` stands for a
number, ``{id}`` for a word with digits, ``{text}`` for what is quoted, ``{address}``, ``{url}`` and
``{time}`` for what their names say.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from gateway.errors import ResultUnusable, TaskFailed
from gateway.journal.entry import DAMAGED, DEAD_LETTERED, EXPIRED, FAILED, Entry

log = logging.getLogger(__name__)

#: The states of deliveries that are in a group.
FAILURES = frozenset((FAILED, DEAD_LETTERED, EXPIRED))
#: What a group's id matches; it may be empty.
GROUP = r"^([0-9a-f]{16})?$"
#: How many groups are kept: those that are muted, and those that have failed last.
MOST = 500
#: Milliseconds: of a bar, of all bars together, and for which a group counts as new.
HOUR, DAY = 3_600_000, 86_400_000
NEW, AGAIN, STILL, MUTED, RESOLVED = "new", "again", "open", "muted", "resolved"
#: Those that need somebody.
OPEN = (NEW, AGAIN, STILL)

_TYPE, _READ, _TEXT = 100, 500, 200  # characters: of a type, that are read, and of a text
# What a part has read it does not give back (`++`), and where it has begun no other place of the
# same word does: the time is proportional to the text.
_VALUE = re.compile(
    r"""(?P<url> (?<![\w+.-]) [a-zA-Z] [a-zA-Z0-9+.-]{0,20}+ :// [^\s'"`<>]++ )
    | (?P<text> (?<!\w) (?: '[^']*+' | "[^"]*+" | `[^`]*+` ) (?!\w) )
    | (?P<time> (?<!\w) \d{4}-\d\d-\d\d (?: [T\ ] \d\d:\d\d [\d:.]*+ (?: Z | [+-]\d\d:?\d\d )? )?
        (?!\w) | (?<![\w:]) \d\d?:\d\d:\d\d (?![\w:]) )
    | (?P<address> (?<![\w.+-]) [\w.+-]++ @ [\w.-]++
        | (?<![\w.:]) \d{1,3} (?: \.\d{1,3} ){3} (?: :\d{1,5} )? (?![\w.])
        | (?<![\w:]) [0-9a-fA-F]{0,4} (?: :[0-9a-fA-F]{0,4} ){2,7}+ (?![\w:]) )
    | (?P<n> (?<!\w) [+-]? \d++ (?: [.,:] \d++ )*+ (?!\w) )
    | (?P<id> (?<!\w) \w++ (?: -\w++ )*+ )""",
    re.VERBOSE,
)
_digit = re.compile(r"\d").search
_kind = re.compile(r"[\w.-]+").fullmatch
# `KeyError: 'shipping_lines'`: all of its text is a name in the code.
_name = re.compile(r"'[^\W\d][^\W\d.-]*'").fullmatch
_IN_TIME = tuple(f"{each.type}: " for each in (TaskFailed, ResultUnusable))


class About(NamedTuple):
    """What the failures of a group have in common; ``type`` may be empty."""

    state: str
    route: str
    task: str
    type: str
    text: str

    @property
    def id(self) -> str:
        return _id(self)


@dataclass(frozen=True, slots=True)
class Group:
    """A group; times are in milliseconds since the epoch, by the clock of the journal's store.

    ``latest`` are the ids of the four deliveries that have failed last, the last one first, and
    ``hours`` how many have failed in each of the last 24 hours, the oldest first. ``muted`` is
    until when it is muted, ``resolved`` when it was said to be resolved, and ``again`` when it has
    come back since; 0: never.
    """

    about: About
    count: int
    first: int
    last: int
    latest: list[str]
    hours: list[int]
    muted: int = 0
    resolved: int = 0
    again: int = 0
    now: int = 0

    @property
    def id(self) -> str:
        return self.about.id

    @property
    def state(self) -> str:
        """One of `NEW`, `AGAIN`, `STILL`, `MUTED` and `RESOLVED`."""
        if self.resolved:
            return RESOLVED
        if self.muted > self.now:
            return MUTED
        if self.again:
            return AGAIN
        return NEW if self.now - self.first < DAY else STILL

    def as_object(self) -> dict[str, Any]:
        """Return what is known of it, with times in ISO 8601; "": never."""
        times = ("first", "last", "muted", "resolved", "again")
        return {
            "id": self.id,
            "state": self.state,
            "end": self.about.state,
            **{name: getattr(self.about, name) for name in ("route", "task", "type", "text")},
            "count": self.count,
            **{name: _iso(getattr(self, name)) for name in times},
            "latest": self.latest,
            "hours": self.hours,
        }


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") if ms else ""


def stored(flat: Sequence[bytes], now: int) -> Group | None:
    """Return the group whose hash has these fields, each before its value; None: it is damaged."""
    words = [each.decode(errors="replace") for each in flat]
    texts = dict(zip(words[::2], words[1::2], strict=True))
    own = ("count", "first", "last", "muted", "resolved", "again")
    try:
        hours = [int(texts.get(f"h{now // HOUR - ago}", 0)) for ago in reversed(range(DAY // HOUR))]
        numbers = {name: int(texts.get(name, 0)) for name in own}
        about = About(*json.loads(texts["about"])[: len(About._fields)])
        group = Group(about, latest=texts["latest"].split(), hours=hours, now=now, **numbers)
        group.as_object()
    except (*DAMAGED, OverflowError) as exc:
        log.warning("a group of failures in the journal is damaged, and is left out: %r", exc)
        return None
    return group


def group_of(entry: Entry) -> About | None:
    """Return what the group of a delivery has in common; None: it has not failed."""
    if entry.state not in FAILURES:
        return None
    error = entry.error
    for begin in _IN_TIME:  # the same failure, as it is written where it was the answer
        error = error.removeprefix(begin)
    return About(entry.state, entry.path, entry.task, *_of(error[:_READ]))


@lru_cache(1_024)
def _of(error: str) -> tuple[str, str]:
    """Return the type of an error, and its text with placeholders."""
    kind, colon, text = error.partition(": ")
    if not (colon or text) and _kind(kind):
        return kind[:_TYPE], ""
    if not (colon and _kind(kind)):
        kind, text = "", error
    return kind[:_TYPE], general(text)


def general(text: str) -> str:
    """Return a text of at most 200 characters, in which values have placeholders."""
    text = " ".join(text[:_READ].split())
    if not _name(text):
        text = _VALUE.sub(_placeholder, text)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"


def _placeholder(found: re.Match[str]) -> str:
    if found.lastgroup == "id" and not _digit(found[0]):
        return found[0]
    return f"{{{found.lastgroup}}}"


@lru_cache(1_024)
def _id(about: About) -> str:
    return blake2b("\0".join(about).encode(errors="replace"), digest_size=8).hexdigest()
