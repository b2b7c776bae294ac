"""The page of deliveries: filters, how many have which state, and the list itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any
from urllib.parse import urlencode

from pydantic import Field

from gateway.admin.api.operations import newest, replay_deliveries
from gateway.admin.api.schema import PageWanted, ReplaysWanted
from gateway.admin.pages.view import View
from gateway.admin.pages.widgets import tone
from gateway.audit import REPLAY
from gateway.clock import time
from gateway.config.settings import Config
from gateway.journal import entry as states
from gateway.journal.entry import Entry, order
from gateway.journal.filter import PARTS, Filter
from gateway.shell import quoted

#: How many of the newest are counted at most, and for how many seconds.
_COUNTED, _BUDGET = 1_000, 0.05
_COLUMNS = 80  # of the histogram
#: Each tab: its name, the state whose symbol it has, and its states as the filter has them.
TABS = (
    ("All", "", ""),
    ("Not done", states.FAILED, ",".join((states.FAILED, states.DEAD_LETTERED, states.EXPIRED))),
    ("Refused", states.REFUSED, states.REFUSED),
    ("Late", states.LATE_UNCERTAIN,
     ",".join((states.ANSWERED_LATE, states.LATE_FAILED, states.LATE_UNCERTAIN))),
    ("On its way", states.RUNNING,
     ",".join((states.RECEIVED, states.ACCEPTED, states.RUNNING, states.REPLAYED))),
    ("Ignored", states.IGNORED, states.IGNORED),
)  # fmt: skip
_WORDS = re.compile(rf'(?<!\S)({"|".join(PARTS)}):("[^"]*"|\S+)')


class Shown(PageWanted):
    """Which deliveries the page shows; ``q`` is what was typed."""

    q: str = Field("", description="`name:value` for a filter; the rest is searched for")


def typed(text: str) -> dict[str, str]:
    """Return the filters that somebody has typed: ``route:/orders* refund``."""
    found = {name: value.strip('"') for name, value in _WORDS.findall(text)}
    rest = " ".join([found.pop("text", ""), *_WORDS.sub("", text).split()]).strip()
    return found | ({"text": rest} if rest else {})


class Deliveries(View):
    """Lists what journal and archive have."""

    path, template = "deliveries", "deliveries.html"

    async def content(self, *path: str) -> dict[str, Any]:
        wanted = self.parameters(Shown, {})
        if "q" in self.request.query_arguments:
            self.redirect(self.link(**{"q": "", "before": "", **typed(wanted.q)}))
            return {}
        kept = bool(self.config.journal or self.config.archive)
        filters = {name: value for name in PARTS if (value := getattr(wanted, name))}
        shown: dict[str, Any] = {
            "about": about, "before": wanted.before, "commands": (), "filters": filters,
            "kept": kept, "parts": PARTS, "states": states.STATES, "tabs": TABS,
            "tab": next((name for name, _, takes in TABS if takes == wanted.state), ""),
        }  # fmt: skip
        if not kept:
            return shown
        chosen = wanted.filter()
        # Who gets the link sees the same, whenever they follow it.
        shown["shared"] = self.link(**absolute(chosen))
        found: list[Entry] = []
        more = older = ""
        if not chosen.text:  # a text is searched for once only
            anyhow = replace(chosen, state=frozenset())
            found, more, reader = await newest(
                self.config, anyhow, "", wanted.limit + 1, _COUNTED, _BUDGET
            )
        last = order(wanted.before) if wanted.before else (inf,)
        rows = [each for each in found if order(each.position) < last and chosen.takes(each)]
        if len(rows) > wanted.limit:
            older = rows[wanted.limit - 1].position
        elif not (chosen.text or chosen.state or wanted.before):
            older = more
        elif chosen.text or more:  # there may be some that are not among those found
            rows, older, reader = await newest(self.config, chosen, wanted.before, wanted.limit)
        shown |= {"rows": rows[: wanted.limit], "older": older, "problems": reader.problems}
        # When those were received up to which it has looked, where there was no more time.
        shown["reached"] = older and older == reader.reached and order(older)[0] / 1e3
        shown["commands"] = first_commands(self.config)
        return shown | _drawn(self, chosen, found, bool(more))


_AT_ONCE = 100  # deliveries that one request sends again


class Again(View):
    """Says how many deliveries of a filter would be sent again, and how many are left out."""

    path, template, allowed = "deliveries", "again.html", "GET, POST"

    async def content(self, *path: str) -> dict[str, Any]:
        wanted = self.parameters(ReplaysWanted, {})
        filters = {name: value for name in PARTS if (value := getattr(wanted, name))}
        shown: dict[str, Any] = {"back": self.link("deliveries", **filters), "filters": filters}
        if filters and not self.live:  # the journal may be long: the page asks for the rest itself
            return shown | {"would": None}
        times = absolute(wanted.filter())  # what is shown is sent, also a minute later
        would = await replay_deliveries(
            self.config, wanted.model_copy(update=times | {"dry_run": True, "limit": 1})
        )
        bounds = times | {"to": would.to or ""}
        return shown | {
            "first": self.link(**bounds, limit="1"),
            "many": len(would.would_be) + would.left,
            "send": self.link(**bounds),
            "would": would,
        }

    async def act(self, *path: str) -> None:
        wanted = self.parameters(ReplaysWanted, {})
        one = wanted.limit == 1
        self.audit(REPLAY, **wanted.model_dump(exclude_defaults=True))
        done = await replay_deliveries(
            self.config, wanted.model_copy(update={"limit": 1 if one else _AT_ONCE})
        )
        problems = [f"{each.delivery_id}: {each.problem}" for each in done.replayed if each.problem]
        answer: dict[str, Any] = {"taken": len(done.replayed) - len(problems), "problems": problems}
        if one and done.replayed:
            answer["go"] = self.link(f"deliveries/{done.replayed[0].delivery_id}")
        elif done.next and not one:
            query = wanted.model_dump(exclude_defaults=True) | {"after": done.next}
            answer["more"] = f"again?{urlencode(query)}"
        self.finish(answer)


def _drawn(view: View, chosen: Filter, found: Sequence[Entry], more: bool) -> dict[str, Any]:
    """Return the counts of the tabs, and the bars over time."""
    if not found:
        return {"counts": None, "histogram": (), "more": False, "seen": 0}
    found_states = Counter(entry.state for entry in found)
    counts = {
        name: sum(found_states[each] for each in takes.split(",")) if takes else len(found)
        for name, _, takes in TABS
    }
    times = [datetime.fromisoformat(each.delivery["received_at"]).timestamp() for each in found]
    end = chosen.until.timestamp() if chosen.until else time()
    begin = min(times) if more or not chosen.since else chosen.since.timestamp()
    step = max((end - begin) / _COLUMNS, 1e-3)
    series: dict[str, list[float]] = {each: [0.0] * _COLUMNS for each in ("bad", "warn", "fill")}
    for entry, at in zip(found, times, strict=True):
        its_tone = tone(entry.state)
        column = min(max(int((at - begin) / step), 0), _COLUMNS - 1)
        series[its_tone if its_tone in series else "fill"][column] += 1

    def brush(column: int) -> str:
        edges = (begin + step * column, begin + step * (column + 1))
        since, until = (_iso(each) for each in edges)
        return view.link(since=since, until=until, before="")

    form = "second" if end - begin < 600 else "short" if end - begin < 64_800 else "date"
    axis = [begin + (end - begin) * part / 4 for part in range(5)]
    return {
        "axis": axis, "axis_form": form, "brush": brush, "counts": counts,
        "histogram": list(series.items()), "more": more, "seen": len(found),
    }  # fmt: skip


def about(entry: Entry) -> str:
    """Say in a few words what a delivery is about: its event, and what its path has."""
    delivery = entry.delivery
    parts = [delivery.get("event", ""), *delivery.get("params", {}).values()]
    return " · ".join(filter(None, parts)) or delivery.get("source", "")


def absolute(chosen: Filter) -> dict[str, str]:
    """Return the times of a filter as parameters that stay the same, whenever they are read."""
    times = {name: at for name in ("since", "until") if (at := getattr(chosen, name))}
    return {name: _iso(at.timestamp()) for name, at in times.items()}


def first_commands(config: Config) -> list[str]:
    """Return what somebody can type to send a first delivery to this gateway."""
    if not config.routes:
        return []
    route = config.routes[0]
    program = f"gateway send --as {quoted(route.source)}" if route.source else "curl --data hello"
    return [f"{program} {quoted(config.local_url + route.path)}"]


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
