"""How deliveries of the journal are printed: a line each, or JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from gateway.cli import shown
from gateway.journal.entry import Entry
from gateway.journal.filter import status
from gateway.journal.groups import Group
from gateway.outcome import Outcome

_LINE = "{:<24} {:<36} {:<13} {:>6} {:>9}  {}"
_ERROR = 80  # characters of an error that are shown
#: What is known of a delivery beside what its message has.
_KNOWN = (
    "state", "task", "task_id", "queue", "status", "seconds", "published", "error", "attempts",
    "ended_at", "replays", "replaying", "identity", "request", "redacted", "begun_at", "late_at",
    "runs",
)  # fmt: skip
_GROUP = "{:<20} {:<16} {:<8} {:>9}  {}"
GROUPS = _GROUP.format("last", "group", "state", "count", "route, task, error")
HEAD = _LINE.format("received", "delivery", "state", "status", "ms", "route, event, error")


def line(entry: Entry, as_object: bool = False) -> str:
    """Return a delivery in one line: as JSON, or in columns below `HEAD`."""
    if as_object:
        return as_json(about(entry))
    delivery = entry.delivery
    received = datetime.fromisoformat(delivery["received_at"])
    at = received.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    milliseconds = f"{entry.seconds * 1e3:,.1f}"
    error = entry.error if len(entry.error) <= _ERROR else f"{entry.error[: _ERROR - 3]}..."
    what = " ".join(filter(None, (entry.path, delivery["event"], error)))
    columns = (at, entry.id, entry.state, status(entry), milliseconds, what)
    return shown(_LINE.format(*columns).rstrip())


def group_line(group: Group, as_object: bool) -> str:
    """Return a group of failures in one line: as JSON, or in columns below `GROUPS`."""
    if as_object:
        return as_json(group.as_object())
    last = datetime.fromtimestamp(group.last / 1000, UTC)
    about = group.about
    error = ": ".join(filter(None, (about.type, about.text)))
    what = " ".join(filter(None, (about.route, about.task, about.state, error)))
    columns = (f"{last:%Y-%m-%dT%H:%M:%SZ}", group.id, group.state, f"{group.count:,}", what)
    return shown(_GROUP.format(*columns))


def about(entry: Entry) -> dict[str, Any]:
    """Return what is known of a delivery beside its call; ``status`` None: it has no answer."""
    known = {name: getattr(entry, name) for name in _KNOWN}
    empty = {name: known[name] or None for name in ("status", "attempts", "request")}
    return entry.delivery | known | empty


def outcome_text(outcome: Outcome) -> str:
    """Return how a task has ended: its final state, and the error if there is one."""
    return shown(f"{outcome.state}: {outcome.error}") if outcome.error else outcome.state


def as_json(value: dict[str, Any], **options: Any) -> str:
    """Return JSON in which characters that a terminal would interpret are escaped."""
    return "\n".join(map(shown, json.dumps(value, **options).split("\n")))
