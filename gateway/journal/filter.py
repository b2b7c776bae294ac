"""Which deliveries of the journal are looked for, and how that is written.

`PARTS` is all that the command line and the API know of a filter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from gateway.config.pointers import glob
from gateway.journal.entry import GONE, STATES, Entry
from gateway.journal.groups import GROUP, group_of
from gateway.nesting import walk

_STATUS = re.compile(r"[1-5x?][0-9x?]{2}|gone").fullmatch
_SPAN = re.compile(r"(\d+)([smhd])").fullmatch
_SOLE = "\u0130\u212a"  # capital letters whose lower case is that of a letter in ASCII
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True)
class Filter:
    """Which deliveries are looked for; what is empty or None does not matter.

    ``state`` has some of `gateway.journal.entry.STATES`. ``status`` may have ``x`` or ``?`` for
    any digit, as in ``5xx``, and is ``gone`` where the sender had left. ``route``, ``source`` and
    ``event`` may have ``*``. ``text`` is searched for in the call, in its JSON without spaces
    between values and in the error, as `folded` has them all, or is one of the ids. ``group`` is
    the id of a group of failures. ``identities`` are those of deliveries whose tries are looked
    for.
    """

    state: frozenset[str] = frozenset()
    status: str = ""
    route: str = ""
    source: str = ""
    event: str = ""
    since: datetime | None = None
    until: datetime | None = None
    text: str = ""
    group: str = ""
    identities: frozenset[str] = frozenset()

    def takes(self, entry: Entry) -> bool:
        """Tell whether `entry` is looked for; its time is not compared."""
        delivery = entry.delivery
        return (
            (not self.state or entry.state in self.state)
            and (not self.status or _has_status(entry, self.status))
            and (not self.identities or entry.identity in self.identities)
            and (not self.route or glob(self.route)(entry.path))
            and (not self.source or glob(self.source)(delivery["source"]))
            and (not self.event or any(map(glob(self.event), events_of(delivery["event"]))))
            and (not self.group or self._has_group(entry))
            and (not self.text or self._has_text(entry))
        )

    def _has_group(self, entry: Entry) -> bool:
        about = group_of(entry)
        return about is not None and about.id == self.group

    def _has_text(self, entry: Entry) -> bool:
        text = folded(self.text)
        ids = {self.text, text} & {entry.id, entry.task_id}
        if ids or text in folded(entry.error):
            return True
        call = entry.arguments()
        compact = json.dumps(call, ensure_ascii=False, separators=(",", ":"))
        return any(text in folded(each) for each in (compact, *strings(list(call))))


ALL = Filter()


def events_of(event: str) -> list[str]:
    """Return an event as it is, and the events of a batch, which are joined by commas."""
    return [event, *event.split(",")]


def status(entry: Entry) -> str:
    """Return the status of the answer as it is shown."""
    if entry.status is None:
        return "-"
    return "gone" if entry.status == GONE else str(entry.status)


def _has_status(entry: Entry, wanted: str) -> bool:
    pairs = zip(status(entry), wanted, strict=False)
    return len(status(entry)) == len(wanted) and all(a == b or b in "x?" for a, b in pairs)


def folded(text: str) -> str:
    """Return a text as it is compared: the upper and the lower case of a letter are the same.

    Each letter stays one, so that a part of a text is a part of what this returns: a "ß" is no
    "ss". No other letter is one of ASCII, which databases compare.
    """
    if text.isascii():
        return text.lower()
    parts = (each if each in _SOLE else each.lower() for each in re.split(f"([{_SOLE}])", text))
    return "".join(parts).replace("ς", "σ")


def strings(value: Any) -> Iterator[str]:
    """Yield all texts in a value of JSON, also the keys of its objects."""
    for each in walk(value):
        yield from each if isinstance(each, dict) else [each] if isinstance(each, str) else ()


def read_states(text: str) -> frozenset[str]:
    """Return the states of a list with commas; raises ValueError where there is no such state."""
    states = frozenset(filter(None, text.split(",")))
    if unknown := states - set(STATES):
        raise ValueError(f"{', '.join(sorted(unknown))}: is none of {', '.join(STATES)}")
    return states


def read_status(text: str) -> str:
    """Return a status of a filter; raises ValueError where no answer could have it."""
    if text and not _STATUS(text):
        raise ValueError(f"{text}: is not a status; write 502, 5xx or gone")
    return text


def read_route(text: str) -> str:
    """Return a path of a filter; raises ValueError where no route could have it."""
    if text and text[0] not in "/*":
        raise ValueError(f"{text}: is not a path; write /orders or /orders/*")
    return text


def read_group(text: str) -> str:
    """Return the id of a group; raises ValueError where no group could have it."""
    if not re.fullmatch(GROUP, text):
        raise ValueError(f"{text}: is not a group's id; `gateway deliveries groups` lists them")
    return text


def read_time(text: str) -> datetime:
    """Return a time that is written in ISO 8601, or as ``15m``, ``2h`` or ``7d`` ago.

    Raises ValueError where it is neither.
    """
    return _time(text, -1)


def read_until(text: str) -> datetime:
    """Return a time as `read_time` does, but ``15m``, ``2h`` and ``7d`` are from now on."""
    return _time(text, 1)


def _time(text: str, sign: int) -> datetime:
    with suppress(ValueError, OverflowError):
        if span := _SPAN(text):
            found = datetime.now(UTC) + sign * timedelta(**{_UNITS[span[2]]: int(span[1])})
        else:
            found = datetime.fromisoformat(text).astimezone(UTC)
        if 1970 <= found.year < 9999:  # rounded up, a later one is no time any more
            return found
    raise ValueError(f"{text}: is not a time; write 2026-01-31T12:00Z, 15m, 2h or 7d")


class Part(NamedTuple):
    """A field of `Filter` as it is written; `read` raises ValueError with a text for the user."""

    metavar: str
    read: Callable[[str], Any]
    help: str


_WHEN = "2026-01-31T12:00Z, or 15m, 2h, 7d ago"
PARTS = {
    "state": Part("STATE,...", read_states, f"some of {', '.join(STATES)}, with commas between"),
    "status": Part("502|5xx|gone", read_status, "of the answer; `gone`: the sender had left"),
    "route": Part("PATH", read_route, "a route's path; `*` stands for any text"),
    "source": Part("NAME", str, "a source's name; `*` stands for any text"),
    "event": Part("EVENT", str, "an event; `*` stands for any text"),
    "text": Part("TEXT", str, "a text in the call, its JSON, the ids or the error, in any case"),
    "group": Part("GROUP", read_group, "the id of a group of failures"),
    "since": Part("TIME", read_time, f"received after this: {_WHEN}"),
    "until": Part("TIME", read_time, f"received before this: {_WHEN}"),
}
