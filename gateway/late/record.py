"""A late answer that is to be sent, and what becomes of it; no I/O, and no clock of its own.

    waiting ──> sending ──> ended: answered | failed | uncertain | dropped
       ^           |
       +───────────+   it was not taken, or a request that replaces may be sent once more

It is *sending* before the request is sent, until `due`. If it is still *sending* after that, a
process has ended in between, and the sender may have taken the answer. Each change is written only
if no other process has changed the record meanwhile, so of several processes one sends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

WAITING, SENDING, ENDED = "waiting", "sending", "ended"
#: How it has ended. *Dropped*: nothing is to be sent.
ANSWERED, FAILED, UNCERTAIN, DROPPED = "answered", "failed", "uncertain", "dropped"
ENDS = (ANSWERED, FAILED, UNCERTAIN, DROPPED)

#: What a request has shown: the answer was taken, will never be, was not this time, or it is not
#: known whether it was.
TAKEN, REFUSED, NOT_TAKEN, UNKNOWN = "taken", "refused", "not taken", "unknown"

#: Seconds from one look for a task's result to the next, where no message has told of it.
LOOK = 5.0
#: Seconds for which a process may be sending: two requests, and two for a token.
LEASE = 30.0
_FIRST, _LONGEST = 1.0, 60.0  # seconds between two tries, without a Retry-After
#: What a field's annotation means for its value in JSON.
_TYPES: dict[str, Any] = {
    "str": str, "str | None": str | None, "int": int, "float": int | float, "bool": bool,
    "dict[str, Any]": dict,
}  # fmt: skip


@dataclass(slots=True, frozen=True)
class Verdict:
    """What a request has shown, why, and the seconds that the sender wants to have passed."""

    kind: str
    reason: str = ""
    after: float = 0.0


@dataclass(slots=True, frozen=True)
class Terms:
    """How often an answer may be sent, and whether the same one may be sent again."""

    tries: int
    replaces: bool


@dataclass(slots=True, frozen=True)
class Record:
    """A late answer.

    ``key`` is that of the route's `late`, ``values`` are what that needs of the delivery. ``due``
    is when it is to be looked at again, ``expires`` until when the sender takes it, in seconds
    since the epoch by the store's clock. ``message`` is the request's body, once the task has
    ended. ``doubt``: an earlier request may have been taken. ``told``: the journal knows the
    ``end``. ``given``: nothing is sent, as an answer has the result.
    """

    task_id: str
    delivery_id: str
    route: str
    key: str
    values: dict[str, Any]
    traceparent: str
    due: float
    expires: float
    state: str = WAITING
    tries: int = 0
    message: str | None = None
    doubt: bool = False
    end: str = ""
    reason: str = ""
    told: bool = False
    given: bool = False

    def dump(self) -> str:
        """Return the record as JSON, without what is the default."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return json.dumps({f.name: value for f, value in values if value != f.default})

    @classmethod
    def load(cls, text: bytes | str) -> Record:
        """Return the record that `dump` has written; a field of another version is left out.

        Raises ValueError, TypeError or AttributeError for anything else.
        """
        known = {each.name: _TYPES[str(each.type)] for each in fields(cls)}
        found = {name: value for name, value in json.loads(text).items() if name in known}
        if wrong := [name for name, value in found.items() if not isinstance(value, known[name])]:
            raise TypeError(f"of another type: {', '.join(wrong)}")
        if (end := found.get("end", "")) not in ("", *ENDS):
            raise ValueError(f"an unknown end: {end}")
        return cls(**found)

    def looked_at(self, terms: Terms, now: float) -> Record | None:
        """Return its new state if its time is over, or its process has ended; None: neither."""
        if self.state == SENDING and now >= self.due:
            killed = Verdict(UNKNOWN, "the gateway has ended while it was sending")
            return self.after(killed, terms, now)
        if self.state == WAITING and now >= self.expires:
            why = "it was not taken" if self.message else "the task has not ended"
            return self.lost(f"{why} while the sender takes late answers")
        return None

    def ready(self, now: float) -> bool:
        """May it be sent, if the task has ended?"""
        return self.state == WAITING and (self.message is None or now >= self.due)

    def begin(self, message: str, now: float) -> Record:
        """Return it as it is written before `message` is sent."""
        return replace(self, state=SENDING, tries=self.tries + 1, message=message, due=now + LEASE)

    def after(self, verdict: Verdict, terms: Terms, now: float) -> Record:
        """Return it as it is after a request, which it was `SENDING`."""
        doubt = self.doubt or verdict.kind == UNKNOWN
        if verdict.kind == TAKEN:
            return self.ended(ANSWERED)
        if verdict.kind == REFUSED or (doubt and not terms.replaces):
            return self.lost(verdict.reason, doubt)
        pause = max(verdict.after, min(_FIRST * 2 ** (self.tries - 1), _LONGEST))
        if self.tries >= terms.tries:
            return self.lost(f"{verdict.reason} ({self.tries} tries)", doubt)
        if now + pause >= self.expires:
            return self.lost(f"{verdict.reason}; the sender takes no answer any more", doubt)
        return replace(self, state=WAITING, due=now + pause, doubt=doubt)

    def ended(self, end: str, reason: str = "") -> Record:
        """Return it as it is at its end; it needs no more space than that takes."""
        gone: dict[str, Any] = {"message": None, "values": {}, "due": 0.0}
        return replace(self, state=ENDED, end=end, reason=reason, told=end == DROPPED, **gone)

    def lost(self, reason: str, doubt: bool = False) -> Record:
        """Return it as it is at its end, where it was not taken, or in `doubt` may have been."""
        return self.ended(UNCERTAIN if doubt or self.doubt else FAILED, reason)

    @property
    def settled(self) -> bool:
        """Has it begun, or ended so that it remains as it is?"""
        begun = self.doubt or self.given or self.state == SENDING
        return begun or self.end in (ANSWERED, FAILED, UNCERTAIN)

    @property
    def taken(self) -> bool:
        """Has the sender got the answer by now, or may it?"""
        return self.state == SENDING or self.doubt or self.end in (ANSWERED, UNCERTAIN)
