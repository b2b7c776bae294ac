"""The archive's table, and a delivery as a row of it.

In PostgreSQL it has a partition for each day, by ``ms``.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import sqlalchemy as sa

from gateway.journal.entry import DAMAGED, Entry, known, order
from gateway.journal.groups import group_of

log = logging.getLogger(__name__)

METADATA = sa.MetaData()
_COMPARED = ("path", "source", "event", "failure")
DELIVERIES = sa.Table(
    "deliveries",
    METADATA,
    # The position in the journal, as two numbers: milliseconds since the epoch, and their number.
    sa.Column("ms", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("status", sa.Integer),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("published", sa.Float),
    *(sa.Column(name, sa.Integer, nullable=False) for name in ("attempts", "replays")),
    # What filters compare of `about` has at most `LONGEST` characters; `failure` is the group's id.
    # `about` is what never changes, and `call` the message's body; both are JSON.
    *(
        sa.Column(name, sa.Text, nullable=False)
        for name in (
            *("state", "task_id", "identity", "ended_at", "replaying", "error"),
            *(*_COMPARED, "about", "call"),
        )
    ),
    sa.Index("deliveries_id", "id"),
    sa.Index("deliveries_task_id", "task_id"),
    sa.Index("deliveries_state", "state", "ms", "seq"),
    # It has all that filters compare.
    sa.Index("deliveries_filters", "ms", "seq", "state", "status", *_COMPARED, "id"),
    postgresql_partition_by="RANGE (ms)",
)
#: What finds a text, by the database. SQLite's index has no copy of the texts, so the triggers have
#: to tell it what it had.
_TEXTS = {
    "postgresql": (
        "CREATE EXTENSION IF NOT EXISTS pg_trgm",
        "CREATE INDEX deliveries_text ON deliveries"
        " USING gin (lower(error || ' ' || call) gin_trgm_ops)",
    ),
    "sqlite": (
        "CREATE VIRTUAL TABLE deliveries_text USING fts5"
        "(error, call, content='deliveries', tokenize='trigram')",
        "CREATE TRIGGER deliveries_added AFTER INSERT ON deliveries BEGIN INSERT INTO "
        "deliveries_text(rowid, error, call) VALUES (new.rowid, new.error, new.call); END",
        "CREATE TRIGGER deliveries_removed AFTER DELETE ON deliveries BEGIN INSERT INTO "
        "deliveries_text(deliveries_text, rowid, error, call)"
        " VALUES ('delete', old.rowid, old.error, old.call); END",
    ),
}
for _name, _statements in _TEXTS.items():
    for _each in _statements:
        _made = sa.DDL(_each).execute_if(dialect=_name)  # type: ignore[no-untyped-call]
        sa.event.listen(DELIVERIES, "after_create", _made)
LONGEST = 200
_ABOUT = (
    "delivery", "task", "queue", "options", "identity", "request", "redacted", "begun_at",
    "late_at", "runs",
)  # fmt: skip
_OWN = (
    "state", "task_id", "status", "seconds", "published", "attempts", "replays", "ended_at",
    "replaying", "error",
)  # fmt: skip


def row(entry: Entry) -> dict[str, Any]:
    """Return the row of a delivery."""
    ms, seq = order(entry.position)
    about = {name: value for name in _ABOUT if (value := getattr(entry, name))}
    own = {name: getattr(entry, name) for name in _OWN}
    try:
        call = compact(json.loads(entry.call)) if entry.call else ""
    except DAMAGED as exc:
        log.warning(
            "the call of the delivery %s is damaged, and is not archived: %r", entry.id, exc
        )
        call = ""
    group = group_of(entry)
    compared = {name: entry.delivery.get(name, "") for name in ("source", "event")}
    compared["path"] = entry.path
    texts = {name: value[:LONGEST] for name, value in compared.items()}
    texts |= {"about": json.dumps(about), "identity": entry.identity, "call": call}
    texts |= {"id": entry.id, "failure": group.id if group else ""}
    found = {"ms": ms, "seq": seq, **own, **texts}
    return {name: storable(each) if isinstance(each, str) else each for name, each in found.items()}


def entry(found: Any, call: bool) -> Entry:
    """Return the delivery of a row; without its call, unless that is wanted."""
    own = {name: getattr(found, name) for name in _OWN}
    about = {"task": "", "queue": "", **known(found.about)}
    text = found.call.encode() if call else b""
    return Entry(**about, **own, call=text, position=f"{found.ms}-{found.seq}")


def compact(value: Any) -> str:
    """Return JSON without spaces and escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def storable(text: str) -> str:
    """Return `text` without what no database stores: zeros, and halves of characters."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def like(text: str, escaped: bool = False, numbers: bool = False) -> str:
    """Return a pattern that is like each text which has `text`, as `folded` has both.

    Letters outside ASCII stand for any text: not every database knows their other case. With
    `escaped` it is also like what has it within JSON, and within JSON in that, or with plus signs
    for spaces; with `numbers`, in JSON of ASCII alone.
    """

    def part(each: str) -> str:
        if each.lower() != each.upper() and each > "\x7f":
            return "%"
        if escaped and (each in '"\\/' or each < " "):
            return "%"
        if numbers and each > "~":
            return json.dumps(each)[1:-1].replace("\\", "%")
        return "_" if each in "%_\\" or (escaped and each == " ") else each

    return storable(f"%{''.join(map(part, text))}%")
