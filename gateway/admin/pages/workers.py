"""The page of workers: which ones answer, what they run, and which one hangs."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.admin.pages.asked import Look
from gateway.admin.pages.view import View
from gateway.amqp.workers import CONSUMER_TIMEOUT, Running, Worker
from gateway.config.settings import Config
from gateway.config.task import worker_command

#: A task whose callers wait hangs when it has run for so many of their deadlines.
_DEADLINES = 10
#: Seconds before a worker's last answer in which the one that replaces it may have begun.
_TURN = 15.0


class Row(NamedTuple):
    """A worker as it is listed; ``worker`` is None where it does not answer any more.

    ``longest`` are the seconds of its longest task, None: it runs none; ``limit`` are those after
    which that one hangs.
    """

    name: str
    state: str
    worker: Worker | None
    running: list[Running]
    longest: float | None
    limit: float
    seen: float


class Workers(View):
    """Lists the workers that consume the routes' queues, the worst first."""

    path, template = "workers", "workers.html"

    async def content(self, *path: str) -> dict[str, Any]:
        look = await self.shared.asked.look()
        consumers = {name: many for name, (_, many) in look.queues.items()}
        idle = sorted(name for name, many in consumers.items() if not many)
        return {
            "command": start_command(self.config),
            "idle": idle, "look": look, "opened": self.get_query_argument("open", ""),
            "rows": rows(look, self.shared.asked.seen, limits(self.config)),
        }  # fmt: skip


def start_command(config: Config) -> str:
    """Return the shell command that starts a worker of all queues."""
    variable = f"GATEWAY_FAIR_QUEUES={config.fair_setting} " if config.fair_setting else ""
    return variable + worker_command(config.consumed_as)


def limits(config: Config) -> dict[str, float]:
    """Return for each task whose callers wait the seconds after which it hangs."""
    found: dict[str, float] = {}
    for route in config.routes:
        waits = route.answer == "wait" and not route.prefer
        limit = min(_DEADLINES * route.deadline, CONSUMER_TIMEOUT) if waits else CONSUMER_TIMEOUT
        for task, its in (
            (route.task, limit),
            *((also.task, CONSUMER_TIMEOUT) for also in route.also),
        ):
            found[task] = max(found.get(task, 0.0), its)
    return found


def rows(look: Look, seen: dict[str, tuple[float, Worker]], limits: dict[str, float]) -> list[Row]:
    """Return the workers that have answered now or before: lost ones, hanging ones, the others."""
    rows = []
    young = {name: each for name, each in look.workers.items() if each.uptime is not None}

    def over(task: Running) -> float:
        return look.at - task.began - limits.get(task.task, CONSUMER_TIMEOUT)

    for name, (at, before) in seen.items():
        worker = look.workers.get(name)
        running = sorted(worker.running or [], key=lambda task: task.began) if worker else []
        worst = max(running, key=over) if running else None
        shown = worst if worst and over(worst) > 0 else running[0] if running else None
        longest = max(look.at - shown.began, 0.0) if shown else None
        limit = limits.get(shown.task, CONSUMER_TIMEOUT) if shown else CONSUMER_TIMEOUT
        # Where workers cannot be asked, it is not known that one is lost.
        state = "online" if worker else "unknown" if look.unasked else "lost"
        if state == "lost":
            since = look.at - at + _TURN
            new = next((n for n, each in young.items() if _replaces(each, before, since)), None)
            if new is not None:
                del young[new]  # it replaces one
                state = "replaced"
        elif longest is not None and longest > limit:
            state = "hangs"
        rows.append(Row(name, state, worker, running, longest, limit, at))
    order = {"lost": 0, "hangs": 1, "replaced": 3}
    return sorted(rows, key=lambda row: (order.get(row.state, 2), row.name))


def _replaces(worker: Worker, before: Worker, seconds: float) -> bool:
    """Has a worker begun within so many seconds, for the queues of one that is silent?"""
    queues = before.queues or set()
    return bool(queues) and queues <= (worker.queues or set()) and (worker.uptime or 0) < seconds
