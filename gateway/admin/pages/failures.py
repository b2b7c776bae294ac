"""The page of failures: groups, of which one is opened in place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gateway.admin.api.operations import APIError
from gateway.admin.pages.view import View
from gateway.admin.pages.widgets import escape, lasting, token
from gateway.archive.reading import reading
from gateway.errors import GatewayError
from gateway.journal.groups import MUTED, OPEN, RESOLVED, Group

#: Each tab: its name, and the states of its groups.
TABS = (("Open", OPEN), ("Muted", (MUTED,)), ("Resolved", (RESOLVED,)))
_SORTS = ("last", "count", "first")
#: For how long a group can be muted: what the API reads, and what people do.
SPANS = {"1h": "1 hour", "8h": "8 hours", "1d": "1 day", "7d": "7 days"}
_NEAR = 3600.0  # seconds from a start to a failure, from which on they have nothing in common
_RATE = "20"  # deliveries a second that are sent again
_placeholder = re.compile(r"\{(n|id|text|address|url|time)\}")


class Failures(View):
    """Lists the groups of failures; with the id of one it is opened."""

    path, template = "failures", "failures.html"

    async def content(self, *path: str) -> dict[str, Any]:
        if not self.config.journal:
            return {"kept": False}
        groups, problem, untold = await self.shared.groups.get(fresh=True)
        if problem:
            raise GatewayError(problem)
        opened = next((each for each in groups if each.id == path[0]), None)
        if path[0] and opened is None:
            why = "There is no such group of failures, or none any more."
            raise APIError(404, "not-found", why)
        found, began = [], ""
        if opened:
            async with reading(self.config) as reader:
                found = [await reader.get(each) for each in dict.fromkeys(opened.latest)]
            began = before(opened, await self._starts(opened))
        names = {state: name for name, states in TABS for state in states}
        tab = names[opened.state] if opened else self.get_query_argument("tab", "Open")
        sort = self.get_query_argument("sort", "last")
        key = sort if sort in _SORTS else "last"
        rows = [each for each in groups if names[each.state] == tab]
        rows.sort(key=lambda each: getattr(each, key), reverse=True)
        return {
            "kept": True, "markup": markup, "notify": self.config.notify, "sort": key,
            "counts": {name: sum(names[g.state] == name for g in groups) for name, _ in TABS},
            "latest": [entry for entry in found if entry is not None and entry.error],
            "began": began, "opened": opened, "rate": _RATE, "rows": rows, "spans": SPANS,
            "story": story, "tab": tab, "untold": untold,
        }  # fmt: skip

    async def _starts(self, group: Group) -> list[tuple[float, str]]:
        """Return when what can have brought a failure has started, as far as it is known."""
        found = [(at, f"gateway {which}") for at, which in self.shared.starts]
        look = await self.shared.asked.recent()
        if look is None:
            return found
        for name, worker in look.workers.items():
            if worker.uptime is not None and group.about.task in (worker.tasks or ()):
                found.append((look.at - worker.uptime, f"worker {name}"))
        return found


def markup(text: str) -> str:
    """Return an error's text with its placeholders as tags."""
    return _placeholder.sub(lambda found: token(found[1], "hidden"), escape(text))


def before(group: Group, starts: Iterable[tuple[float, str]]) -> str:
    """Say what had started last before a group has begun, or has come back; "": nothing near."""
    began = (group.again or group.first) / 1000
    near = [(at, who) for at, who in starts if 0 <= began - at < _NEAR]
    if not near:
        return ""
    at, who = max(near)
    what = "It came back" if group.again else "That was"
    return f"{what} {lasting(began - at, 1)} after {who} had started."


def story(group: Group) -> str:
    """Say in a sentence how it goes on."""
    hour, day = group.hours[-1], sum(group.hours)
    parts = [f"{day:,} in the last 24 hours, {hour:,} in this one." if day else "None for a day."]
    if group.again:
        parts.append("It was resolved, and has come back.")
    return " ".join(parts)
