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

    def ended(self, done: InFlight) -> None:
        message, refusals = done.message, self._journal.refusals
        if not done.kept:
            return
        if message is not None:
            published = done.published
            answered = (
                str(done.status),
                f"{done.seconds:.6f}",
                "" if published is None else f"{published:.6f}",
                done.reason,
                str(done.end.attempts or ""),
            )
            ids = done.task_id or message.task_id, done.identity
            begun = done.begun
            # Then the message is not written again: redacting it takes long where it is large.
            there = begun is not None and begun.done() and begun.result()
            kept = message if there else done.recorded(message)
            self._journal.write(kept, *ids, done.state, answered, whole=not there)
        elif refusals is not None and done.reason and (done.status >= 400 or done.state == IGNORED):
            state = IGNORED if done.state == IGNORED else REFUSED
            about = Kept(done.delivery_id, state, done.path, done.endpoint.name, done.event)
            refusals.write(done.whole_request, about, done.status, done.seconds, done.reason)


class LogRecorder:
    """Logs a line for each error, and for a `share` of the other requests."""

    def __init__(self, share: float, strategy: str):
        self._share, self._strategy = share, strategy

    def ended(self, done: InFlight) -> None:
        if 100 <= done.status < 400 and random() >= self._share:
            return
        request, published, seconds = done.kept_request, done.published, done.seconds
        steps = {}
        if published is not None:
            steps["published_ms"] = round(published * 1e3, 3)
            steps["waited_ms"] = round((seconds - published) * 1e3, 3)
        joined = f"an earlier try has published the task {done.task_id}" if done.joined else ""
        request_log.write(
            request.method,
            request.path,
            done.status,
            seconds,
            done.reason or joined,
            delivery=done.delivery_id,
            task=done.task_id,
            trace=done.trace.trace_id or traceparent_of(request.headers)[3:35],
            route=done.path,
            source=done.endpoint.name,
            event=done.event,
            state=done.state,
            strategy=self._strategy,
            remote=request.remote,
            **steps,
        )
