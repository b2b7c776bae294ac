"""The page of deliveries: filters, how many have which state, and the list itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from gateway.admin.api.operations import PATIENCE
from gateway.admin.api.schema import PageWanted
from gateway.admin.pages.view import View
from gateway.admin.pages.widgets import tone
from gateway.archive.reading import reading
from gateway.clock import monotonic, time
from gateway.config.settings import Config
from gateway.journal.entry import (
    ACCEPTED,
    ANSWERED_LATE,
    DEAD_LETTERED,
    EXPIRED,
    FAILED,
    IGNORED,
    LATE_FAILED,
    LATE_UNCERTAIN,
    RECEIVED,
    REFUSED,
    REPLAYED,
    RUNNING,
    STATES,
    Entry,
)
from gateway.journal.filter import PARTS, Filter
from gateway.journal.reading import Reader

#: How many of the newest are counted at most, and for how many seconds.
_COUNTED, _BUDGET = 1_000, 0.1
_COLUMNS = 80  # of the histogram
#: Each tab: its name, the state whose symbol it has, and its states as the filter has them.
TABS = (
    ("All", "", ""),
    ("Not done", FAILED, ",".join((FAILED, DEAD_LETTERED, EXPIRED))),
    ("Refused", REFUSED, REFUSED),
    ("Late", LATE_UNCERTAIN, ",".join((ANSWERED_LATE, LATE_FAILED, LATE_UNCERTAIN))),
    ("On its way", RUNNING, ",".join((RECEIVED, ACCEPTED, RUNNING, REPLAYED))),
    ("Ignored", IGNORED, IGNORED),
)
_WORDS = re.compile(rf'({"|".join(PARTS)}):("[^"]*"|\S+)')


class Shown(PageWanted):
    """Which deliveries the page shows; ``q`` is what was typed."""

    q: str = Field("", description="`name:value` for a filter; the rest is searched for")


def typed(text: str) -> dict[str, str]:
    """Return the filters that somebody has typed: ``route:/orders* refund``."""
    found = {name: value.strip('"') for name, value in _WORDS.findall(text)}
    rest = " ".join(_WORDS.sub("", text).split())
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
            "kept": kept, "parts": PARTS, "states": STATES, "tabs": TABS,
            "tab": next((name for name, _, some in TABS if some == wanted.state), ""),
        }  # fmt: skip
        if not kept:
            return shown
        chosen = wanted.filter()
        # Who gets the link sees the same, whenever they follow it.
        shown["shared"] = self.link(**absolute(chosen))
        async with reading(self.config) as reader:
            found, more = await _counted(reader, chosen, wanted.limit)
            rows = [each for each in found if not chosen.state or each.state in chosen.state]
            older = rows[wanted.limit - 1].position if len(rows) > wanted.limit else ""
            if chosen.text or wanted.before or (more and not older):
                rows, older = await _listed(reader, chosen, wanted)
            shown |= {"rows": rows[: wanted.limit], "older": older, "problems": reader.problems}
            # When those were received up to which it has looked, where there was no more time.
            shown["reached"] = older and older == reader.reached and int(older.split("-")[0]) / 1e3
        return shown | _drawn(self, chosen, found, more) | {"commands": first_commands(self.config)}


async def _listed(reader: Reader, chosen: Filter, wanted: PageWanted) -> tuple[list[Entry], str]:
    """Return a page, and the position after which the next one begins ("": there is none)."""
    rows: list[Entry] = []
    async with aclosing(reader.find(chosen, wanted.before, PATIENCE)) as entries:
        async for entry in entries:
            if len(rows) == wanted.limit:
                return rows, rows[-1].position
            rows.append(entry)
    return rows, reader.reached


async def _counted(reader: Reader, chosen: Filter, least: int) -> tuple[list[Entry], bool]:
    """Return the newest deliveries in whatever state, and whether there are more.

    More than `least`, if there are so many. A text is searched for once only: nothing is counted.
    """
    found: list[Entry] = []
    if chosen.text:
        return found, False
    end = monotonic() + _BUDGET
    wanted = replace(chosen, state=frozenset())
    async with aclosing(reader.find(wanted, patience=PATIENCE)) as entries:
        async for entry in entries:
            if len(found) > least and (len(found) >= _COUNTED or monotonic() > end):
                return found, True
            found.append(entry)
    return found, bool(reader.reached)


def _drawn(view: View, chosen: Filter, found: Sequence[Entry], more: bool) -> dict[str, Any]:
    """Return the counts of the tabs, and the bars over time."""
    if not found:
        return {"counts": None, "histogram": (), "more": False, "seen": 0}
    states = Counter(entry.state for entry in found)
    counts = {
        name: sum(states[each] for each in some.split(",")) if some else len(found)
        for name, _, some in TABS
    }
    times = [datetime.fromisoformat(each.delivery["received_at"]).timestamp() for each in found]
    newest = chosen.until.timestamp() if chosen.until else time()
    oldest = min(times) if more or not chosen.since else chosen.since.timestamp()
    step = max((newest - oldest) / _COLUMNS, 1e-3)
    series: dict[str, list[float]] = {each: [0.0] * _COLUMNS for each in ("bad", "warn", "fill")}
    for entry, at in zip(found, times, strict=True):
        its_tone = tone(entry.state)
        column = min(max(int((at - oldest) / step), 0), _COLUMNS - 1)
        series[its_tone if its_tone in series else "fill"][column] += 1

    def brush(column: int) -> str:
        edges = (oldest + step * column, oldest + step * (column + 1))
        since, until = (_iso(each) for each in edges)
        return view.link(since=since, until=until, before="")

    form = "second" if newest - oldest < 600 else "short" if newest - oldest < 64_800 else "date"
    axis = [oldest + (newest - oldest) * part / 4 for part in range(5)]
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
    base = f"http://{config.host}:{config.port}"
    for route in config.routes:
        if route.source:
            return [f"gateway send --as {route.source} {base}{route.path}"]
        return [f"curl --data hello {base}{route.path}"]
    return []


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
