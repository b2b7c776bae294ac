"""The first page: what is wrong now, and how the gateway has done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from gateway.admin.api.operations import APIError
from gateway.admin.pages.asked import Look
from gateway.admin.pages.deliveries import first_commands
from gateway.admin.pages.view import View
from gateway.admin.pages.widgets import escape, lasting, number, tone
from gateway.clock import monotonic, time
from gateway.config.route import Route
from gateway.history.gateways import Line
from gateway.history.ring import Slot, total
from gateway.journal.groups import MUTED, RESOLVED
from gateway.process import health

#: By range: how many slots of the history a column of the plots has.
_GROUP = {"10m": 5, "6h": 30, "14d": 36}
_ALL = "*"  # all gateways, in the place of one's name
#: How many requests, and which share of them, are worth a row.
_FEW, _SHARE = 5, 0.05
_WIDTH, _HEIGHT = 1_000, 56  # of a plot
_KEPT = 5.0  # seconds for which the lines of routes are shown again


@dataclass
class Trouble:
    """Something that needs somebody: its state, and what is told of it as markup.

    ``since`` is a time (epoch, or ISO 8601; "": not known), ``hours`` are counts for bars, and
    ``link`` the path of a page, with its query. ``route`` is the path of the route whose failures
    it tells.
    """

    state: str
    what: str
    why: str = ""
    since: float | str = ""
    hours: Sequence[float] = ()
    link: str = ""
    go: str = ""
    query: dict[str, str] = field(default_factory=dict)
    route: str = ""


class Overview(View):
    """Says first what is wrong, and then the numbers."""

    path, template, ranged = "", "overview.html", True

    async def content(self, *path: str) -> dict[str, Any]:
        answers, look = await asyncio.gather(
            health.ask(self.supervisor.children), self.shared.asked.recent()
        )
        read = self.shared.history.read
        slots = read(self.range, group=_GROUP[self.range])
        rows, gateways = self._routes(), self.shared.gateways
        chosen = self._chosen()
        step = slots[1].time - slots[0].time
        first, last = slots[0].time, slots[-1].time + step
        begun = [each for each in self.shared.starts if first < each[0]]
        names = (each.name for each in gateways.lines if each.name != gateways.own.name)
        return {
            "begun": begun, "chosen": chosen, "commands": first_commands(self.config),
            "choices": [("", "This gateway"), *((each, each) for each in names),
                        (_ALL, "All gateways")],
            "figures": summed(chosen) if chosen else self._figures(slots), "gateways": gateways,
            "nothing": not any(slot.received for slot in read("14d", group=288)),
            "others": read("10m", "others")[-1], "plots": _plots(slots),
            "queues": most_waiting(look), "rows": rows, "share": share, "spark_of": self._spark,
            "span": {"10m": "10 minutes", "6h": "6 hours", "14d": "14 days"}[self.range],
            "over": marked([min((at - first) / (last - first), 1.0) for at, _ in begun]),
            "step": lasting(step, 1),
            "troubles": await self._troubles(answers, rows),
            "well": _well_since(read("6h")),
            "ready": health.serves(self.supervisor, answers),
        }  # fmt: skip

    async def _troubles(self, answers: health.Answers, rows: list[dict[str, Any]]) -> list[Trouble]:
        """Return what is wrong, and then what is worth a look."""
        away = "A server is away" if health.ready(answers) else "No route is served"
        found = [
            Trouble("down", f"<b>{away}</b>", escape(text), link="servers", go="Open servers")
            for text in health.failing(answers)
        ]
        found += [
            Trouble("no consumer", _said(text), link="routes", go="Open routes")
            for text in health.warnings(answers)
        ]
        for each in self.shared.gateways.differences:
            if each.wrong:
                state, how = "differs", "not as this gateway"
                if each.kind == "lost":
                    state = how = "lost"
                trouble = Trouble(state, f"<b>{escape(each.gateway)}</b> is {how}")
                trouble.why, trouble.link = f"{escape(each.text)}.", "#gateways"
                trouble.go = "See gateways"
                found.append(trouble)
        groups = await self._groups()
        found += groups
        for row in rows:
            found += _shares(row, any(row["path"] == each.route for each in groups))
        return sorted(found, key=lambda each: tone(each.state) != "bad")

    async def _groups(self) -> list[Trouble]:
        """Return the groups of failures that have failed in this hour or the one before."""
        groups, problem, untold = await self.shared.groups.get()
        if problem:
            what = "<b>The journal cannot be read</b>"
            return [Trouble("down", what, escape(problem), link="servers", go="Open servers")]
        found = []
        if untold:
            why = f"The last message could not be sent: {escape(untold.rstrip('.'))}."
            trouble = Trouble("down", "<b>Nobody is told of failures</b>", why)
            trouble.link, trouble.go = "failures", "Open failures"
            found.append(trouble)
        for group in groups:
            about, now = group.about, sum(group.hours[-2:])
            if now and group.state not in (MUTED, RESOLVED):
                text = ": ".join(filter(None, (about.type, about.text))) or about.state
                trouble = Trouble(about.state, f"<b>{escape(text)}</b> in {escape(about.route)}")
                trouble.why = f"{number(now)} in the last two hours, {number(group.count)} in all."
                trouble.since, trouble.hours = (group.again or group.first) / 1000, group.hours
                trouble.link, trouble.go = f"failures/{group.id}", "Open the group"
                trouble.route = about.route
                found.append(trouble)
        return found

    def _chosen(self) -> list[Line]:
        """Return the lines of the chosen gateways; none: this one's history is shown."""
        name, gateways = self.get_query_argument("gateway", ""), self.shared.gateways
        if name in ("", gateways.own.name):
            return []
        lines = [each for each in gateways.lines if name in (each.name, _ALL) and not each.lost]
        if not lines:
            raise APIError(404, "not-found", f"The gateway {name} is not heard of now.")
        return lines

    def _figures(self, slots: Sequence[Slot]) -> dict[str, Any]:
        now = total(self.shared.history.read("10m")[-60:])
        values: dict[str, Any] = {"rate": attrgetter("rate"), "share": share, "failed": not_done}
        return {
            "rate": now.rate, "rates": [slot.rate for slot in slots], "share": share(now),
            # Only where the history has some days.
            "usual": {name: self.shared.history.usual(value) for name, value in values.items()},
            "fails": bool(now.failed), "failed": not_done(now), "waiting": now.waiting,
            "waits": [slot.waiting for slot in slots],
            "p50": now.quantile(0.5), "p99": now.quantile(0.99),
        }  # fmt: skip

    def _routes(self) -> list[dict[str, Any]]:
        """Return the routes, the worst first."""
        routes: dict[str, Route] = {}
        for route in self.config.routes:
            routes.setdefault(route.path, route)
        rows = []
        for path, route in routes.items():
            if path in self.shared.history.routes:
                last = total(self.shared.history.read("10m", path))
                hours = self.shared.history.read("6h", path, 180)
                rows.append({
                    "path": path, "task": route.task, "source": route.source or "", "last": last,
                    "failed": [slot.failed for slot in hours],
                    "refused": [slot.refused for slot in hours],
                })  # fmt: skip
        return sorted(rows, key=lambda row: 1.0 if (good := share(row["last"])) is None else good)

    def _spark(self, path: str) -> list[float]:
        """Return the rates of a route; they are counted anew every few seconds only."""
        key, read = f"{self.range} {path}", self.shared.history.read
        at, rates = self.shared.lines.get(key, (0.0, []))
        if not rates or monotonic() - at > _KEPT:
            rates = [slot.rate for slot in read(self.range, path, _GROUP[self.range])]
            self.shared.lines[key] = monotonic(), rates
        return rates


def _shares(row: dict[str, Any], grouped: bool) -> Iterator[Trouble]:
    """Yield it if many requests of a route were refused, or failed, unless groups tell that."""
    last: Slot = row["last"]
    for state, many, what in (
        ("failed", 0 if grouped else last.failed, "fail"),
        ("refused", last.refused, "are refused"),
    ):
        if many >= _FEW and many > _SHARE * last.received:
            percent = f"{many / last.received:.0%}".replace("%", " %")
            trouble = Trouble(state, f"<b>{percent} of {escape(row['path'])}</b> {what}")
            trouble.why = f"{number(many)} of {number(last.received)} in the last 10 minutes."
            trouble.hours, trouble.link, trouble.go = row[state], "deliveries", "See them"
            trouble.query = {"route": row["path"], **failures(last)}
            if state == "refused":
                trouble.link, trouble.go, trouble.query = "sources", "Why?", {"open": row["source"]}
            yield trouble


def summed(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the figures of gateways together, by what each tells; latencies are the worst."""
    rate = sum(each.rate for each in lines)
    received = sum(each.rate * each.seconds for each in lines)
    bad = sum(each.failed + each.refused for each in lines)
    points = zip(*(each.received for each in lines), strict=False)  # of any version
    worst = {
        name: max((at for each in lines if (at := getattr(each, name)) is not None), default=None)
        for name in ("p50", "p99")
    }
    return worst | {
        "rate": rate, "rates": [sum(filter(None, point)) for point in points] or [0.0],
        "usual": dict.fromkeys(("rate", "share", "failed")), "failed": float(bad),
        "share": max(1 - bad / received, 0.0) if received else None,
        "fails": any(each.failed for each in lines),
        "waiting": sum(each.waiting for each in lines), "waits": [],
    }  # fmt: skip


def most_waiting(look: Look | None) -> dict[str, Any]:
    """Return how many messages wait in all queues, and in which one the most; empty: unknown."""
    if look is None or not look.queues:
        return {}
    name, (waiting, consumers) = max(look.queues.items(), key=lambda pair: pair[1][0])
    return {
        "waiting": sum(many for many, _ in look.queues.values()),
        "most": name if waiting else "", "its": waiting, "idle": not consumers,
    }  # fmt: skip


def marked(places: Iterable[float]) -> str:
    """Draw a dashed line at each place, from 0 to 1, of a plot."""
    lines = (f'x1="{at * _WIDTH:.1f}" x2="{at * _WIDTH:.1f}"' for at in places)
    return "".join(f'<line class="mark" {at} y1="0" y2="{_HEIGHT}"/>' for at in lines)


def _said(warning: str) -> str:
    """Write a warning as markup: what is wrong, and below it what to do."""
    what, _, remedy = warning.partition(": ")
    text = f"<b>{escape(what[0].upper() + what[1:])}</b>"
    return f"{text}<br>{escape(remedy.replace('`', ''))}" if remedy else text


def failures(slot: Slot) -> dict[str, str]:
    """Return the filter that finds most of what has failed."""
    answered = 2 * slot.errors >= slot.failed
    return {"status": "5xx"} if answered else {"state": "failed,dead-lettered,expired"}


def share(slot: Slot) -> float | None:
    """Return which share of the requests was neither refused nor failed; None: there were none."""
    good = slot.received - slot.refused - slot.failed
    return max(good, 0) / slot.received if slot.received else None


def not_done(slot: Slot) -> float:
    """Return how many requests a minute were refused or have failed."""
    return 60 * (slot.failed + slot.refused) / slot.seconds if slot.seconds else 0.0


def _well_since(slots: Sequence[Slot]) -> tuple[float, int]:
    """Return since when nothing has failed, as far as it is known, and how many have before."""
    failed = [slot for slot in slots if slot.failed]
    watched = [slot for slot in slots if slot.seconds]
    since = failed[-1].time + 10 if failed else watched[0].time if watched else time()
    return since, sum(slot.failed for slot in failed)


def _plots(slots: Sequence[Slot]) -> dict[str, Any]:
    """Return what the three plots draw, on one axis."""
    rates = [slot.rate if slot.seconds else None for slot in slots]
    p50 = [slot.quantile(0.5) for slot in slots]
    p99 = [slot.quantile(0.99) for slot in slots]
    most = max(filter(None, rates), default=0.0)
    slow = max(filter(None, p99), default=0.0)
    minutes = [slot.seconds / 60 or 1.0 for slot in slots]
    counts = [
        (kind, [many / minute for many, minute in zip(numbers, minutes, strict=True)])
        for kind, numbers in (
            ("bad", [slot.failed for slot in slots]),
            ("warn", [slot.refused for slot in slots]),
        )
    ]
    first, last = slots[0].time, 2 * slots[-1].time - slots[-2].time
    return {
        "rate": line(rates, most, filled=True), "most": most, "counts": counts, "slow": slow,
        "highest": max([5.0, *map(sum, zip(*(values for _, values in counts), strict=True))]),
        "p50": line(p50, slow), "p99": line(p99, slow, kind="dashed"),
        "axis": [first + (last - first) * part / 3 for part in range(4)],
    }  # fmt: skip


def line(values: Sequence[float | None], top: float, kind: str = "", filled: bool = False) -> str:
    """Draw values from 0 to `top`, each in the middle of its slot; there is a gap for a None."""
    step, top = _WIDTH / max(len(values), 1), top or 1.0
    parts: list[list[tuple[float, float]]] = [[]]
    for at, value in enumerate(values):
        if value is not None:
            parts[-1].append(((at + 0.5) * step, _HEIGHT - 1 - (_HEIGHT - 2) * value / top))
        elif parts[-1]:
            parts.append([])
    drawn = ""
    for part in filter(None, parts):
        if len(part) == 1:  # it would not be seen
            part.append((part[0][0] + step / 2, part[0][1]))
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in part)
        if filled:
            begin, end = part[0][0], part[-1][0]
            drawn += f'<polygon points="{begin:.1f},{_HEIGHT} {points} {end:.1f},{_HEIGHT}"/>'
        drawn += f'<polyline class="{kind}" points="{points}"/>'
    return drawn
