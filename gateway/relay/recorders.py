"""Record how requests have ended: in the journal, and in the log."""

from __future__ import annotations

from random import random

from gateway import request_log
from gateway.delivery import traceparent_of
from gateway.journal.entry import IGNORED, REFUSED
from gateway.journal.refusals import Kept
from gateway.journal.writing import Journal
from gateway.relay.in_flight import InFlight


class JournalRecorder:
    """Writes deliveries to the journal, and requests without a message, where it has room."""

    def __init__(self, journal: Journal):
        self._journal = journal

    def ended(self, it: InFlight) -> None:
        message, refusals = it.message, self._journal.refusals
        if not it.kept:
            return
        if message is not None:
            published = it.published
            answered = (
                str(it.status),
                f"{it.seconds:.6f}",
                "" if published is None else f"{published:.6f}",
                it.reason,
                str(it.end.attempts or ""),
            )
            ids = it.task_id or message.task_id, it.identity
            self._journal.write(message, *ids, it.state, answered, it.begun)
        elif refusals is not None and it.reason and (it.status >= 400 or it.state == IGNORED):
            state = IGNORED if it.state == IGNORED else REFUSED
            about = Kept(
                it.delivery_id,
                state,
                it.path,
                it.endpoint.name,
                it.event,
            )
            refusals.write(it.request, about, it.status, it.seconds, it.reason)


class LogRecorder:
    """Logs a line for each error, and for a `share` of the other requests."""

    def __init__(self, share: float, strategy: str):
        self._share, self._strategy = share, strategy

    def ended(self, it: InFlight) -> None:
        if 100 <= it.status < 400 and random() >= self._share:
            return
        request, published, seconds = it.request, it.published, it.seconds
        steps = {}
        if published is not None:
            steps["published_ms"] = round(published * 1e3, 3)
            steps["waited_ms"] = round((seconds - published) * 1e3, 3)
        joined = f"an earlier try has published the task {it.task_id}" if it.joined else ""
        request_log.write(
            request.method,
            request.path,
            it.status,
            seconds,
            it.reason or joined,
            delivery=it.delivery_id,
            task=it.task_id,
            trace=it.trace.trace_id or traceparent_of(request.headers)[3:35],
            route=it.path,
            source=it.endpoint.name,
            event=it.event,
            state=it.state,
            strategy=self._strategy,
            remote=request.remote,
            **steps,
        )
