"""The times that senders sign: what fits a form of them, how it is read and written."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gateway.errors import OutOfTolerance, SignatureMissing, Unverified
from gateway.sources import jwt
from gateway.sources.block import Block
from gateway.sources.places import Place, Seen
from gateway.sources.readers import Readers


def _iso(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as exc:
        raise Unverified("The timestamp is not a date and time.") from exc


class Unit(NamedTuple):
    """A form of times: what fits it, how it is called, how it is read and written."""

    fits: Callable[[str], Any]
    called: str
    read: Callable[[str], float]
    write: Callable[[float], str]


_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
_ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"
# Eleven digits of seconds are enough until the year 5138.
_UNITS = {
    "s": Unit(
        re.compile(r"[0-9]{1,11}").fullmatch, "a number of seconds", int, lambda now: str(int(now))
    ),
    "ms": Unit(
        re.compile(r"[0-9]{1,14}").fullmatch,
        "a number of milliseconds",
        lambda text: int(text) / 1000,
        lambda now: str(int(now * 1000)),
    ),
    "iso": Unit(
        re.compile(_DATE + "(" + _ZONE + ")?").fullmatch,
        "a date and time",
        _iso,
        lambda now: datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
    ),
}
#: Without a zone nothing says where a time ends, if nothing separates it from what follows.
_ZONED = _UNITS["iso"]._replace(
    fits=re.compile(_DATE + _ZONE).fullmatch, called="a date and time with a zone"
)


def unit_of(block: Block) -> Unit:
    """Return the form of a sender's times."""
    together = "}{" in block.signed
    return _ZONED if together and block.unit == "iso" else _UNITS[block.unit or "s"]


def time_check(readers: Readers, tolerance: float) -> Callable[[Seen], None] | None:
    """Return a function that checks the time; None: the sender sends none."""
    block = readers.block
    if block.is_jwt:
        return lambda seen: jwt.check_times(seen.claims, seen.request.received_at, tolerance)
    if not block.time:
        return None
    read, missing = readers.first(block.time), Place.parse(block.time[0]).missing
    any_form, (fits, called, seconds, _) = not (block.unit or tolerance), unit_of(block)

    def check_time(seen: Seen) -> None:
        text = read(seen)
        if text is None or text == "":
            raise SignatureMissing(missing)
        if any_form:
            return
        if not fits(text := str(text)):
            raise Unverified(f"The timestamp is not {called}.")
        if tolerance and abs(seen.request.received_at - seconds(text)) > tolerance:
            raise OutOfTolerance(f"The timestamp is not within {tolerance:g} seconds of now.")

    return check_time
