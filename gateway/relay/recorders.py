"""Record how requests have ended: in the journal, and in the log."""

from __future__ import annotations

from random import random

from gateway import request_log
from gateway.delivery import traceparent_of
from gateway.journal.entry import IGNORED, REFUSED
from gateway.journal.refusals import Kept
from gateway.journal.writing import Journal
from gateway.relay.reply import Reply


class JournalRecorder:
    """Writes deliveries to the journal, and requests without a message, where it has room."""

    def __init__(self, journal: Journal):
        self._journal = journal

    def ended(self, reply: Reply) -> None:
        message, refusals = reply.message, self._journal.refusals
        if not reply.kept:
            return
        if message is not None:
            published = reply.published
            answered = (
                str(reply.status),
                f"{reply.seconds:.6f}",
                "" if published is None else f"{published:.6f}",
                reply.reason,
                str(reply.attempts or ""),
            )
            ids = reply.task_id or message.task_id, reply.identity
            self._journal.write(message, *ids, reply.state, answered, reply.begun)
        elif (
            refusals is not None
            and reply.reason
            and (reply.status >= 400 or reply.state == IGNORED)
        ):
            state = IGNORED if reply.state == IGNORED else REFUSED
            about = Kept(reply.delivery_id, state, reply.path, reply.source, reply.event)
            refusals.write(reply.kept_request, about, reply.status, reply.seconds, reply.reason)


class LogRecorder:
    """Logs a line for each error, and for a `share` of the other requests."""

    def __init__(self, share: float, strategy: str):
        self._share, self._strategy = share, strategy

    def ended(self, reply: Reply) -> None:
        if 100 <= reply.status < 400 and random() >= self._share:
            return
        request, published, seconds = reply.kept_request, reply.published, reply.seconds
        steps = {}
        if published is not None:
            steps["published_ms"] = round(published * 1e3, 3)
            steps["waited_ms"] = round((seconds - published) * 1e3, 3)
        joined = f"an earlier try has published the task {reply.task_id}" if reply.joined else ""
        request_log.write(
            request.method,
            request.path,
            reply.status,
            seconds,
            reply.reason or joined,
            delivery=reply.delivery_id,
            task=reply.task_id,
            trace=reply.trace.trace_id or traceparent_of(request.headers)[3:35],
            route=reply.path,
            source=reply.source,
            event=reply.event,
            state=reply.state,
            strategy=self._strategy,
            remote=request.remote,
            **steps,
        )
