"""Audit lines in the log: who has looked at a body, replayed deliveries, or erased some.

Also who has muted a group of failures, or has said that it is resolved.
"""

from __future__ import annotations

import hashlib
import logging
from contextvars import ContextVar
from datetime import datetime

# Not a child of `gateway`: of that logger's lines with the same text only ten a second are written.
log = logging.getLogger("audit")

LOOK, REPLAY, ERASURE, MUTE, RESOLVE = "look", "replay", "erasure", "mute", "resolve"
#: Whom `note` has named last in this task: who does what follows; "": nobody is known.
acting: ContextVar[str] = ContextVar("acting", default="")


def note(what: str, who: str, **about: object) -> None:
    """Log who has done what (`LOOK` and so on), and to which deliveries or group."""
    acting.set(who)
    known = {name: _plain(value) for name, value in about.items() if value not in ("", None)}
    pairs = "".join(f" {name}={value!r}" for name, value in known.items())
    log.info("%s by %s%s", what, who, pairs, extra={"fields": {"audit": what, "by": who, **known}})


def _plain(value: object) -> object:
    """Return a part of a filter as it is written on the command line."""
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else value


def digest(text: str) -> str:
    """Return what stands for the text of an erasure, which is kept nowhere."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
