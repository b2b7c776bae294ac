"""A GET of a result's URL."""

from __future__ import annotations

import asyncio

from gateway.answer import Answer
from gateway.errors import MethodNotAllowed, ResultsUnavailable
from gateway.relay.attempt import attempt
from gateway.relay.context import Context
from gateway.relay.in_flight import InFlight
from gateway.relay.reply import Reply
from gateway.relay.result_urls import Ticket


class ResultLookup(InFlight):
    """Answers with the result that `ticket` names."""

    __slots__ = ("_task", "_ticket")

    def __init__(self, context: Context, reply: Reply, deadline: float, ticket: Ticket):
        super().__init__(context, reply, deadline)
        self._ticket = ticket
        self._task: asyncio.Task[Answer] | None = None

    def start(self) -> None:
        """Begin to ask the result store."""
        self.enter(self.reply.request.size)
        self._task = asyncio.create_task(self.context.result_urls.fetch(self._ticket))
        self._task.add_done_callback(self._fetched)

    def _fetched(self, task: asyncio.Task[Answer]) -> None:
        if not task.cancelled():
            attempt(self, lambda: self.give(task.result()))

    def _expire(self) -> None:
        self.release()
        self.refuse(ResultsUnavailable())

    def release(self) -> None:
        if self._task is not None:
            self._task.cancel()


def check_method(method: str) -> None:
    """Raise `MethodNotAllowed` for a method that no result's URL takes."""
    if method not in ("GET", "HEAD"):
        raise MethodNotAllowed("Send a GET.", headers={"Allow": "GET, HEAD"})
