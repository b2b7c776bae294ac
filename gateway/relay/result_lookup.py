"""Answer a GET of a result's URL."""

from __future__ import annotations

from gateway.errors import MethodNotAllowed, ResultsUnavailable
from gateway.relay.context import Context
from gateway.relay.in_flight import InFlight
from gateway.relay.reply import Reply
from gateway.relay.result_urls import Ticket


class ResultLookup(InFlight):
    """Looks up the result that `ticket` names, and answers with it."""

    __slots__ = ("_ticket",)

    def __init__(self, context: Context, reply: Reply, deadline: float, ticket: Ticket):
        super().__init__(context, reply, deadline)
        self._ticket = ticket

    def start(self) -> None:
        """Begin to fetch the result from the result store."""
        self.enter(self.reply.request.size)
        self.run(self._answer())

    async def _answer(self) -> None:
        self.give(await self.context.result_urls.fetch(self._ticket))

    def _expire(self) -> None:
        self.release()
        self.refuse(ResultsUnavailable())

    def release(self) -> None:
        self._cancel_step()


def check_method(method: str) -> None:
    """Raise `MethodNotAllowed` for any method but GET and HEAD."""
    if method not in ("GET", "HEAD"):
        raise MethodNotAllowed(
            f"Send a GET to a result's URL, not a {method[:20]}.", headers={"Allow": "GET, HEAD"}
        )
