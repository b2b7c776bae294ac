"""The page that asks before many deliveries are sent again, and what does it then."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from gateway.admin.api.operations import replay_deliveries
from gateway.admin.api.schema import ReplaysWanted
from gateway.admin.pages.deliveries import absolute
from gateway.admin.pages.view import View
from gateway.audit import REPLAY
from gateway.journal.filter import PARTS

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

    async def post(self) -> None:
        await self.served(self._send())

    async def _send(self) -> None:
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
