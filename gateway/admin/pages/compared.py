"""Two deliveries side by side: in which fields, headers and lines of the body they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, NamedTuple

from pydantic import Field

from gateway.admin.api.schema import One
from gateway.admin.pages.bodies import lines
from gateway.admin.pages.delivery import facts, sent
from gateway.admin.pages.view import View
from gateway.admin.pages.widgets import lasting
from gateway.archive.reading import reading
from gateway.audit import LOOK
from gateway.journal.entry import SUCCEEDED, Entry
from gateway.journal.filter import Filter, status
from gateway.journal.reading import Reader

#: Lines that are compared, and characters of each that are shown.
_LINES, _WIDE = 1_000, 400
_AROUND = 3  # lines that are the same, before and after those that differ
_BUDGET = 0.3  # seconds for which a delivery to compare with is looked for


class ComparedWanted(One):
    """Which two deliveries are compared."""

    other: str = Field("", max_length=200, description="the id of the other delivery")


class Row(NamedTuple):
    """What one has on the left, and the other on the right; None: it has no such line."""

    name: str
    left: str | None
    right: str | None

    @property
    def differs(self) -> bool:
        return self.left != self.right


class Compare(View):
    """Compares a delivery with another one: without its id, with the newest that has succeeded."""

    path, template = "deliveries", "compare.html"

    async def content(self, *path: str) -> dict[str, Any]:
        wanted = self.parameters(ComparedWanted, {"id": path[0]})
        async with reading(self.config) as reader:
            left = await self.delivery(wanted.id, reader)
            other = wanted.other.strip() or left.edited_from or await _good(reader, left)
            right = await self.delivery(other, reader) if other else None
        shown: dict[str, Any] = {"entry": left, "given": wanted.other, "right": right}
        if right is None:
            return shown
        bodies = self.may("bodies")
        pair = (left, right)
        if bodies:
            for each in pair:
                self.audit(LOOK, id=each.id)
        (its, its_body), (others, other_body) = map(sent, pair)
        left_lines = lines(its_body, its, _LINES)
        right_lines = lines(other_body, others, _LINES)
        return shown | {
            "fields": pairs(*(_fields(each, bodies) for each in pair)),
            "headers": pairs(its, others) if bodies else (),
            "body": body(left_lines, right_lines) if bodies else (),
            "bodies": bodies,
            "cut": max(len(left_lines), len(right_lines)) > _LINES,
        }


async def _good(reader: Reader, entry: Entry) -> str:
    """Return the id of the newest other delivery of the same kind that has succeeded, or ""."""
    event = entry.delivery["event"]
    wanted = Filter(state=frozenset({SUCCEEDED}), route=entry.path, event=event)
    async with aclosing(reader.find(wanted, patience=_BUDGET)) as entries:
        async for each in entries:
            # A path or an event may have a star, which in a filter stands for any text.
            kind = each.path == entry.path and each.delivery["event"] == event
            if kind and each.id != entry.id:
                return each.id
    return ""


def _fields(entry: Entry, bodies: bool) -> dict[str, str]:
    attempts = str(entry.attempts) if entry.attempts > 1 else ""
    own = {
        "State": entry.state,
        "Error": entry.error,
        "Status": status(entry),
        "Answered after": "" if entry.status is None else lasting(entry.seconds),
        "Attempts of its task": attempts,
        "Sent again": str(entry.replays or ""),
        "Received": entry.delivery["received_at"],
        "From": entry.delivery.get("remote", ""),
    }
    return own | facts(entry, bodies)


def pairs(left: Mapping[str, str], right: Mapping[str, str]) -> list[Row]:
    """Return what either side has, with an empty text where the other side lacks it."""
    names = list(dict.fromkeys([*left, *right]))
    rows = (Row(name, left.get(name, ""), right.get(name, "")) for name in names)
    return [row for row in rows if row.left or row.right]


def body(left: Sequence[str], right: Sequence[str]) -> list[Row]:
    """Return the lines of two bodies beside each other: those that differ, and some around them.

    ``name`` is the number of the line; "…" stands for lines that are the same.
    """
    left, right = ([line[:_WIDE] for line in side[:_LINES]] for side in (left, right))
    found: list[Row] = []
    for group in SequenceMatcher(None, left, right).get_grouped_opcodes(_AROUND):
        if group[0][1] or group[0][3]:
            found.append(Row("…", "", ""))
        for _, a, b, c, d in group:
            found += _beside(left, right, range(a, b), range(c, d))
    return found


def _beside(left: Sequence[str], right: Sequence[str], its: range, others: range) -> Iterator[Row]:
    for one, other in zip_longest(its, others):
        number = str((other if one is None else one) + 1)
        texts = None if one is None else left[one], None if other is None else right[other]
        yield Row(number, *texts)
