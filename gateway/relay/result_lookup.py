"""Answer a GET of a result's URL."""

from __future__ import annotations

import asyncio

from gateway.errors import MethodNotAllowed, ResultsUnavailable
from gateway.relay.context import Context
from gateway.relay.in_flight import InFlight
from gateway.relay.reply import Reply
from gateway.relay.result_urls import Ticket


class ResultLookup(InFlight):
    """Looks up the result that `ticket` names, and answers with it."""

    __slots__ = ("_task", "_ticket")

    def __init__(self, context: Context, reply: Reply, deadline: float, ticket: Ticket):
        super().__init__(context, reply, deadline)
        self._ticket = ticket
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to fetch the result from the result store."""
        self.enter(self.reply.request.size)
        self._task = self.context.steps.run(self, self._fetch())

    async def _fetch(self) -> None:
        self.give(await self.context.result_urls.fetch(self._ticket))

    def _expire(self) -> None:
        self.release()
        self.refuse(ResultsUnavailable())

    def release(self) -> None:
        if self._task is not None:
            self._task.cancel()


def check_method(method: str) -> None:
    """Raise `MethodNotAllowed` for any method but GET and HEAD."""
    if method not in ("GET", "HEAD"):
        raise MethodNotAllowed(
            f"Send a GET to a result's URL, not a {method[:20]}.", headers={"Allow": "GET, HEAD"}
        )
