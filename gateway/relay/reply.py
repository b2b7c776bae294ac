"""The one answer to a request, and everything that is recorded of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from gateway import answer, request_log
from gateway.answer import Answer
from gateway.celery_message import Message
from gateway.delivery import Request
from gateway.errors import RequestError
from gateway.journal.store import GONE
from gateway.relay.context import Context

log = logging.getLogger(__name__)

Respond = Callable[[Answer], None]


class Reply:
    """Answers `request` once, by calling `respond`, and counts and records the answer.

    ``path`` (the route's), ``delivery_id``, ``task_id`` and ``message`` are filled in as they
    become known: what is recorded names them. ``applied`` is the answer's Preference-Applied.
    """

    __slots__ = (
        "_context", "_respond", "answered", "applied", "delivery_id", "message", "path",
        "request", "task_id",
    )  # fmt: skip

    def __init__(self, context: Context, request: Request, respond: Respond):
        self._context = context
        self._respond: Respond | None = respond
        self.request = request
        self.answered = False
        self.path = ""
        self.delivery_id = ""
        self.task_id = ""
        self.applied = ""
        self.message: Message | None = None

    @property
    def closed(self) -> bool:
        """Is nobody there to be answered, as the sender has left or has been answered?"""
        return self._respond is None

    def give(self, given: Answer, error: str = "") -> None:
        """Answer, unless that is done or the sender has gone.

        `error` says why it is not the answer of a task.
        """
        respond = self._respond
        if respond is not None:
            self.answered = True
            if self.applied:
                given.headers["Preference-Applied"] = self.applied
            seconds = monotonic() - self.request.arrived
            self._context.metrics.answered(self.path, given.status, seconds)
            respond(given)
            self._respond = None  # now that nothing else has to be answered
            self._record(given.status, error)

    def refuse(self, error: RequestError) -> None:
        """Answer with `error`; a 5xx is a line in the log."""
        self.delivery_id = self.delivery_id or self._context.ids.new()
        if error.status >= 500:
            # The types are few: lines are limited by their text before it is filled in.
            text = f"%d {error.type}: %s (route %s, delivery %s, task %s)"
            ids = (self.path or "none", self.delivery_id, self.task_id or "none")
            log.warning(text, error.status, error, *ids)
        given = answer.of_error(error, self.delivery_id, self.task_id)
        self.give(given, f"{error.type}: {error}")

    def release(self) -> None:
        """Nothing is waited for yet."""

    def close(self) -> None:
        """The sender has gone: nobody is answered any more."""
        self._respond = None
        self._context.metrics.add("gateway_clients_gone_total")
        self._record(GONE)

    def _record(self, status: int, error: str = "") -> None:
        context, message, request = self._context, self.message, self.request
        seconds = monotonic() - request.arrived
        if context.journal is not None and message is not None:
            task_id = self.task_id or message.task_id
            context.journal.write(message, task_id, status, seconds, error)
        if context.log_requests:
            request_log.write(request.method, request.path, status, seconds, self.delivery_id)
