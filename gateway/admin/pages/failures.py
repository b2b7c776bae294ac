"""The page of failures: groups, of which one is opened in place."""

from __future__ import annotations

import re
from typing import Any

from gateway.admin.api import operations
from gateway.admin.api.operations import Refused
from gateway.admin.api.schema import MuteWanted, Nothing, OneGroup
from gateway.admin.pages.view import View
from gateway.admin.pages.widgets import escape, token
from gateway.journal.groups import AGAIN, MUTED, NEW, RESOLVED, STILL, Group
from gateway.journal.stores import store_for

#: Each tab: its name, and the states of its groups.
TABS = (("Open", (NEW, AGAIN, STILL)), ("Muted", (MUTED,)), ("Resolved", (RESOLVED,)))
_SORTS = ("last", "count", "first")
#: For how long a group can be muted: what the API reads, and what people do.
SPANS = {"1h": "1 hour", "8h": "8 hours", "1d": "1 day", "7d": "7 days"}
_RATE = "20"  # deliveries a second that are sent again
_placeholder = re.compile(r"\{(n|id|text|address|url|time)\}")


class Failures(View):
    """Lists the groups of failures; with the id of one it is opened."""

    path, template = "failures", "failures.html"

    async def content(self, *path: str) -> dict[str, Any]:
        if not self.config.journal:
            return {"kept": False}
        async with store_for(self.config).opened(self.config) as store:
            groups = await store.groups()
            opened = next((each for each in groups if each.id == path[0]), None)
            found = [await store.get(each) for each in opened.latest] if opened else []
        if path[0] and opened is None:
            raise Refused(404, "not-found", "There is no such group of failures, or none any more.")
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
            "opened": opened, "rate": _RATE, "rows": rows, "spans": SPANS, "story": story,
            "tab": tab,
        }  # fmt: skip


class Change(View):
    """Mutes a group, or says that it is resolved, as the API does."""

    allowed = "POST"

    async def post(self, group: str, what: str) -> None:
        await self.served(self._run(group, what))

    async def _run(self, group: str, what: str) -> None:
        if what == "mute":
            wanted = self.parameters(MuteWanted, {"id": group})
            await operations.mute_failures(self.config, wanted)
        else:
            await operations.resolve_failures(self.config, OneGroup(id=group))
        self.finish({})


class Test(View):
    """Sends a test to whom `[notify]` names."""

    allowed = "POST"

    async def post(self) -> None:
        await self.served(self._run())

    async def _run(self) -> None:
        await operations.test_notification(self.config, Nothing())
        self.finish({"said": "A test was sent: see whether it has arrived."})


def markup(text: str) -> str:
    """Return an error's text with its placeholders as tags."""
    return _placeholder.sub(lambda found: token(found[1], "hidden"), escape(text))


def story(group: Group) -> str:
    """Say in a sentence how it goes on."""
    hour, day = group.hours[-1], sum(group.hours)
    parts = [f"{day:,} in the last 24 hours, {hour:,} in this one." if day else "None for a day."]
    if group.again:
        parts.append("It was resolved, and has come back.")
    return " ".join(parts)
