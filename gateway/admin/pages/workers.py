"""The page of workers: which ones answer, what they run, and which one hangs."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.admin.pages.asked import Look
from gateway.admin.pages.view import View
from gateway.strategies.workers import Running, Worker

#: Seconds after which RabbitMQ takes its messages from a worker, unless it is configured otherwise:
#: https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout
LONG = 1_800.0


class Row(NamedTuple):
    """A worker as it is listed; ``worker`` is None where it does not answer any more.

    ``longest`` are the seconds of its longest task, None: it runs none.
    """

    name: str
    state: str
    worker: Worker | None
    running: list[Running]
    longest: float | None
    seen: float


class Workers(View):
    """Lists the workers that consume the routes' queues, the worst first."""

    path, template = "workers", "workers.html"

    async def content(self, *path: str) -> dict[str, Any]:
        look = await self.known.asked.look()
        consumers = {name: many for name, (_, many) in look.queues.items()}
        idle = sorted(name for name, many in consumers.items() if not many)
        return {
            "command": f"celery -A YOUR_APP worker -Q {','.join(self.config.queues)}",
            "idle": idle, "look": look, "opened": self.get_query_argument("open", ""),
            "long": LONG, "rows": listed(look, self.known.asked.seen),
        }  # fmt: skip


def listed(look: Look, seen: dict[str, float]) -> list[Row]:
    """Return the workers that have answered now or before: lost ones, hanging ones, the others."""
    rows = []
    for name, at in seen.items():
        worker = look.workers.get(name)
        running = sorted(worker.running or [], key=lambda task: task.began) if worker else []
        longest = max(look.at - running[0].began, 0.0) if running else None
        # Where workers cannot be asked, it is not known that one is lost.
        state = "online" if worker else "unknown" if look.unasked else "lost"
        if longest is not None and longest > LONG:
            state = "hangs"
        rows.append(Row(name, state, worker, running, longest, at))
    order = {"lost": 0, "hangs": 1}
    return sorted(rows, key=lambda row: (order.get(row.state, 2), row.name))
