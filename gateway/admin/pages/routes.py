"""The page of routes: how they answer, their queues, and their configuration as it is in force."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

from pydantic import BaseModel

from gateway.admin.api.operations import PATIENCE
from gateway.admin.pages.counted import Counted
from gateway.admin.pages.delivery import timeline
from gateway.admin.pages.view import View
from gateway.clock import time
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.journal.entry import Entry
from gateway.journal.filter import Filter

#: Settings that mean nothing without another one.
_NEEDS = {
    **dict.fromkeys(("queue_limit", "queue_expires", "static_queue"), "queue_pattern"),
    "fair_queues": "fair_by",
    "declare": "queue",
}
_NEWEST, _AGE = 200, timedelta(days=1)  # of deliveries whose parts are told
_HIDDEN = "**********"  # what pydantic writes in place of a secret


class Routes(View):
    """Lists the routes; one of them, `open`, with its configuration."""

    path, template = "routes", "routes.html"

    async def content(self, *path: str) -> dict[str, Any]:
        config, answers = self.config, Counted(self.supervisor).answers()
        look = await self.shared.asked.look()
        rows = []
        for number, route in enumerate(config.routes):
            counts = [look.queues[name] for name in route.queue_names if name in look.queues]
            missing = sorted(look.missing.intersection(route.queue_names))
            rows.append({
                "id": number, "route": route, "answers": answers.get(route.path), "scheme":
                config.sources[route.source].scheme if route.source else "",
                "waiting": sum(waiting for waiting, _ in counts) if counts else None,
                "consumers": sum(many for _, many in counts) if counts else None,
                "missing": missing, "queues": [(each, look.queues.get(each)) for each in
                route.queue_names],
            })  # fmt: skip
        opened = self.get_query_argument("open", "")
        found: list[Entry] = []
        if opened and opened in answers:  # "": those that no route has taken
            since = datetime.fromtimestamp(time(), UTC) - _AGE
            found, _ = await self.latest(Filter(route=opened, since=since), _NEWEST, PATIENCE)
        return {
            "in_force": in_force, "look": look, "opened": opened, "rows": rows,
            "stages": stages(config, found), "started": self.supervisor.started,
        }  # fmt: skip


class Stage(NamedTuple):
    """How long a part of deliveries took, in seconds: of how many, the median and the longest."""

    name: str
    many: int
    median: float
    most: float


def stages(config: Config, entries: Iterable[Entry]) -> list[Stage]:
    """Return the parts of deliveries, as the timeline of each has them; a refused one has none."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        for event in () if entry.request else chain(*timeline(config, entry)):
            if event.at and not event.name.startswith("Sent"):  # by a person, at any time
                seconds[event.name].append(event.at - event.since)
    return [Stage(name, len(times), median(times), max(times)) for name, times in seconds.items()]


def settings(model: BaseModel, without: set[str]) -> list[tuple[str, str, bool, bool]]:
    """Return the settings of a file, of a route or of the gateway, as `in_force` does."""
    found = []
    for name, value in model.model_dump(mode="json", exclude=without).items():
        if value not in (None, "", [], {}, False):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found.append((name, text, name not in model.model_fields_set, _HIDDEN in text))
    return found


def in_force(config: Config, route: Route) -> list[tuple[str, str, bool, bool]]:
    """Return each setting of a route: name, value, whether it is the default's, and a secret.

    Settings that are off are left out.
    """
    found = [
        each
        for each in settings(route, {"path"})
        if each[0] not in _NEEDS or getattr(route, _NEEDS[each[0]])
    ]
    if route.source:
        own = config.sources[route.source].model_dump(mode="json", exclude_unset=True)
        for name, value in own.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if name == "secrets":
                many = len(value) if isinstance(value, list) else 1
                text = "1 key" if many == 1 else f"{many} keys; the first signs what is sent"
            found.append((f"source.{name}", text, False, name == "secrets" or _HIDDEN in text))
    return found
