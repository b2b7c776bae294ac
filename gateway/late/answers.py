"""Send the results of tasks that end after their requests were answered.

Before such a request is answered, a record of what may have to be sent is written to Redis
(`gateway.late.record`). The process that has written it listens for the result, and every process
looks at each record from time to time, so a result is sent whichever of them has ended. Who sends
writes that first, and what became of it afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import random
from asyncio import Future, Semaphore
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway import background
from gateway.background import Service, Tasks, Work, keep_on
from gateway.celery_message import decode_result
from gateway.clock import monotonic, time_ns
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.delivery import Delivery
from gateway.errors import GatewayError, ResultUnusable, StateUnavailable, StoreError
from gateway.failpoints import LATE_BEGUN, LATE_ENDED, LATE_GIVEN, LATE_KEPT, LATE_SENT, Failpoint
from gateway.http_client import NotAllowed
from gateway.journal.entry import ANSWERED_LATE, LATE_FAILED, LATE_UNCERTAIN, End, ended
from gateway.journal.writing import Journal
from gateway.late import record as states
from gateway.late.record import ANSWERED, DROPPED, FAILED, LOOK, UNCERTAIN, Record, Verdict
from gateway.late.sender import Sender
from gateway.late.store import Found, Records
from gateway.metric_table import LATE_ANSWERS
from gateway.metrics import Metrics
from gateway.outcome import Outcome
from gateway.stores.results import Results

if TYPE_CHECKING:
    from gateway.tracing.tracer import Tracer

log = logging.getLogger(__name__)

_PAUSE = 0.5  # seconds between two looks for records whose time has come
#: Late answers that a process sends to one host at once, and those of one host that it holds then:
#: further ones stay in Redis, and their results are not read.
_SENDING, _HELD = 100, 200
#: Seconds for which it is tried to write what has to be sent, and what became of a request; in
#: which it is written that one is about to be sent, or else it is not; between two attempts.
_KEEP_FOR, _END_FOR, _BEGIN_FOR, _AGAIN = 15.0, 30.0, 3.0, 0.5
_DRAIN = 8.0  # seconds for what is being sent when the process ends
_STATES = {ANSWERED: ANSWERED_LATE, FAILED: LATE_FAILED, UNCERTAIN: LATE_UNCERTAIN}


class LateAnswers(Service):
    """Keeps, awaits and sends late answers; absent where no route has any."""

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        results: Results,
        journal: Journal | None,
        tracer: Tracer | None,
        failpoint: Failpoint,
    ):
        self._metrics, self._failpoint, self._most = metrics, failpoint, config.max_in_flight
        self._journal, self._tracer = journal, tracer
        self._records = Records(config)
        self._results, self._subscription = results, results.subscription
        self._prefix = results.prefix
        self._routes: dict[tuple[str, str], Route] = {}
        self._senders: dict[tuple[str, str], Sender] = {}
        for route in config.routes:
            if route.late is not None:
                options = config.sources[route.source] if route.source else None
                self._routes[_key(route)] = route
                self._senders[_key(route)] = Sender(route.late, options)
                for end in states.ENDS:
                    metrics.place(LATE_ANSWERS, route.path, end)  # so that it is there, at zero
        #: The channels of results, by task id, with when to stop (monotonic) and what to call.
        self._listening: dict[str, tuple[float, Callable[[bytes | None], object]]] = {}
        self._begun = Tasks()
        #: By host, so that a slow one keeps no other waiting; the hosts are those of the routes.
        self._places = defaultdict[str, Semaphore](lambda: Semaphore(_SENDING))
        #: The tasks whose results are being sent, or wait for a place, and to which host.
        self._sending: dict[str, str] = {}

    def _work(self) -> Work:
        problem = "late answers have to wait"
        yield "late answers", keep_on(self._look_for_due, _PAUSE / 2, log.warning, problem)

    async def start(self) -> None:
        await self._records.redis.start()
        await super().start()

    async def stop(self) -> None:
        """Let what is being sent end, for a while: others take over the rest."""
        await super().stop()
        for task_id in [*self._listening]:
            self._forget(task_id)
        await self._begun.stop(_DRAIN)
        await self._records.redis.stop()
        for sender in self._senders.values():
            sender.close()

    def held(self) -> dict[str, int]:
        """Return how many results are listened for, and how many steps are under way."""
        return {"late answers": len(self._listening), "late steps": len(self._begun)}

    # What the relay calls ----------------------------------------------------------------------

    def expect(
        self,
        route: Route,
        delivery: Delivery,
        task_id: str,
        age: float,
        deadline: float,
        give: Callable[[], bool | None],
    ) -> None:
        """Write a record, then `give` the answer without a result, which tells whether it was.

        `age` is the time since the first try, in seconds. `give` is called as
        `background.when_done` says.
        """
        assert route.late is not None
        path, key = _key(route)
        sender, values = self._senders[path, key], route.late.values(delivery)
        record = Record(task_id, delivery.id, path, key, values, delivery.traceparent, 0.0, 0.0)
        try:
            sender.check(values)
        except KeyError as exc:  # as most of a sender's deliveries, it is not to be answered late
            log.info("a delivery has no %s (route %s, delivery %s)", exc.args[0], path, delivery.id)
            if give():
                self._metrics.count(LATE_ANSWERS, path, DROPPED)
            return
        except NotAllowed as exc:
            if give():
                self._fail(record, str(exc))
            return
        kept = self._begun.run(self._keep(record, sender.window(values, age)))
        background.when_done(kept, partial(self._give, kept, give, record), deadline)

    def yields(
        self,
        task_id: str,
        deadline: float,
        give: Callable[[bool], object],
        *,
        doubtful: bool = False,
    ) -> None:
        """Call `give` with whether the task's result was sent late, so that a try does not get it.

        If it was not, it will not be. It will be if a try waits for that and it is `doubtful` that
        the sender of this one still reads: its request may have waited for a frozen process, while
        a later one was answered. `deadline` as for `expect`.
        """
        found = asyncio.ensure_future(self._take_back(task_id, doubtful))

        def then() -> None:
            if not found.done():
                log.warning("Redis does not say whether the result of task %s was sent", task_id)
            give(found.done() and found.result())

        background.when_done(found, then, deadline)

    async def _keep(self, record: Record, seconds: float) -> Found | None:
        """Write a new record, whose sender takes it for `seconds`; None: another try has one."""
        until, end = monotonic() + _KEEP_FOR, monotonic() + seconds
        while True:
            try:
                return await self._write(record, end)
            except StateUnavailable:
                if monotonic() >= until:
                    raise
                await asyncio.sleep(_AGAIN)

    async def _write(self, record: Record, end: float) -> Found | None:
        """Write a new record, which ends at `end` (monotonic); None: another try has one.

        A record that another try has dropped, as its sender had left, is replaced. One that waits
        gets a new version, so that the other try does not drop it any more: this one is going to be
        answered.
        """
        while True:
            found = await self._records.get(record.task_id)
            if found.record.settled:
                return None
            kept = found.record
            if kept.state != states.WAITING:
                kept = replace(record, due=found.now + LOOK, expires=end + found.ahead)
            if await self._records.swap(kept, found):
                break
        self._failpoint.reach(LATE_KEPT)
        # An earlier attempt may have written it, whose answer was lost.
        return found.replaced(kept) if kept.delivery_id == record.delivery_id else None

    def _give(
        self, kept: Future[Found | None], give: Callable[[], bool | None], record: Record
    ) -> None:
        given = bool(give())
        if given:
            self._failpoint.reach(LATE_GIVEN)
        kept.add_done_callback(partial(self._given, given, record))

    def _given(self, given: bool, record: Record, kept: Future[Found | None]) -> None:
        if kept.cancelled():  # the process ends: it asks and tells Redis nothing any more
            if given:
                self._fail(record, "it was not written to Redis before the process ended")
        elif (exc := kept.exception()) is not None:
            if given:
                text = f"it could not be written to Redis: {exc.__cause__ or exc}"
                self._run(self._fail_alone(record, text))
        elif (found := kept.result()) is not None:
            if given:
                self._listen(record.task_id, found.record.expires - found.now)
            else:  # the sender has disconnected, or has got an error
                self._run(self._drop(found))

    async def _fail_alone(self, record: Record, reason: str) -> None:
        """Tell it as `_fail` does, unless another try has a record: then that is what is told."""
        with suppress(StateUnavailable):
            found = await self._records.get(record.task_id)
            if found.record.settled or not found.record.end:
                return
        self._fail(record, reason)

    def _fail(self, record: Record, reason: str) -> None:
        """Tell that nothing will be sent, where the record is not written."""
        text = "a result will not be sent late: %s (route %s, delivery %s, task %s)"
        log.warning(text, reason, record.route, record.delivery_id, record.task_id)
        self._metrics.count(LATE_ANSWERS, record.route, FAILED)
        self._run(self._tell(record, End(LATE_FAILED, reason)))

    async def _drop(self, found: Found, given: bool = False) -> bool:
        """End a record without sending anything, unless it has changed; tell whether it had not."""
        dropped = replace(found.record.ended(DROPPED), given=given)
        if not await self._records.swap(dropped, found):
            return False
        if not found.record.end:
            await self._ended(found.replaced(dropped))
        return True

    async def _take_back(self, task_id: str, doubtful: bool) -> bool:
        """Let nothing be sent for a task any more; True: something has been, or may have been.

        If it is `doubtful` who reads the answer, what waits to be sent remains, which is True, too.
        """
        try:
            while True:
                found = await self._records.get(task_id)
                if found.record.settled:
                    return found.record.taken
                if doubtful and found.record.state == states.WAITING:
                    # With a new version, the other try does not drop it any more.
                    if await self._records.swap(found.record, found):
                        return True
                    continue
                # Also where there is none: that of an earlier try may not be written yet.
                if await self._drop(found, given=True):
                    return False
        except StateUnavailable as exc:
            log.warning("it is not known whether a late answer was sent: %s", exc.__cause__)
        return False

    # Results -----------------------------------------------------------------------------------

    def _listen(self, task_id: str, seconds: float) -> None:
        if task_id in self._listening:
            return
        if len(self._listening) >= self._most:
            self._forget(next(iter(self._listening)))

        def on_message(_: bytes | None) -> None:
            self._run(self._look_at(task_id))

        self._listening[task_id] = monotonic() + seconds, on_message
        self._subscription.add(self._prefix + task_id, on_message)
        self._run(self._look_when_subscribed(task_id))

    def _forget(self, task_id: str) -> None:
        if task_id in self._listening:
            _, on_message = self._listening.pop(task_id)
            self._subscription.remove(self._prefix + task_id, on_message)

    async def _look_when_subscribed(self, task_id: str) -> None:
        await self._subscription.ready(self._prefix + task_id)
        await self._look_at(task_id)

    async def _look_at(self, task_id: str) -> None:
        """See whether a task has ended; where that fails, the next look will."""
        await self._look([await self._records.get(task_id)])

    async def _look_for_due(self) -> bool:
        """Look at those whose time has come; tell whether there may be more."""
        now = monotonic()
        for task_id in [key for key, (until, _) in self._listening.items() if until <= now]:
            self._forget(task_id)
        try:
            due = await self._records.due()
            await self._look(due)
        except StateUnavailable as exc:
            raise StoreError(str(exc.__cause__)) from exc
        if not due:
            # By chance, as else the same one of several gateways would always be the first.
            await asyncio.sleep(random.uniform(0, _PAUSE))
        return bool(due)

    async def _look(self, due: list[Found]) -> None:
        """Send those whose task has ended, and end those whose time is over."""
        unread = dict[str, Found]()
        for found in due:
            record = found.record
            if record.task_id in self._sending or self._is_anothers(found):
                continue
            if record.state != states.WAITING:  # another process has seen the result
                self._forget(record.task_id)
            if (changed := self._looked_at(found)) is not None:
                self._run(self._end(found, changed))
            elif record.ready(found.now) and self._has_room(record):
                if record.message is None:
                    unread[record.task_id] = found
                else:
                    self._begin(record, self._send(found, record.message))
            elif record.end and not record.told:
                self._run(self._ended(found))
        async for task_id, payload in self._results.stored([*unread]):
            outcome = decode_result(payload)
            found = unread[task_id]
            # Another look may have begun while this one asked for the result.
            if (
                outcome is not None
                and task_id not in self._sending
                and self._has_room(found.record)
            ):
                self._begin(found.record, self._send_first(found, outcome))

    def _has_room(self, record: Record) -> bool:
        """May one more be sent, or wait, to the host of a record?"""
        return list(self._sending.values()).count(self._host(record)) < _HELD

    def _begin(self, record: Record, step: Coroutine[None, None, None]) -> None:
        """Begin to send an answer, whose task is not listened for any more."""
        self._forget(record.task_id)
        self._sending[record.task_id] = self._host(record)
        self._run(step).add_done_callback(lambda _: self._sending.pop(record.task_id))

    def _is_anothers(self, found: Found) -> bool:
        """Is it left to a gateway with another configuration, as long as it may be sent?"""
        record = found.record
        known = (record.route, record.key) in self._senders
        return not (known or record.end) and found.now < record.expires

    def _looked_at(self, found: Found) -> Record | None:
        """Return a record's new state if it has ended by now; None: it has not."""
        record = found.record
        sender = self._senders.get((record.route, record.key))
        if sender is not None:
            return record.looked_at(sender.terms, found.now)
        sent = record.state == states.SENDING
        return None if record.end else record.lost("the `late` of its route has changed", sent)

    # Sending -----------------------------------------------------------------------------------

    async def _send_first(self, found: Found, outcome: Outcome) -> None:
        """Send what a task has returned, or write how the record ends without a message."""
        record, message = self._message(found.record, outcome)
        end = ended(outcome)
        del outcome  # a message is much shorter than a result may be
        with suppress(GatewayError):  # who follows the journal's tasks writes it, too
            await self._tell(record, end)
        if message is None:
            await self._end(found, record)
        else:
            await self._send(found, message)

    async def _send(self, found: Found, message: str) -> None:
        sender = self._senders[found.record.route, found.record.key]
        async with self._places[self._host(found.record)]:
            since, record = monotonic(), found.record.begin(message, found.now)
            if not await self._swap(record, found, states.LEASE):
                return  # another process has it
            begun = found.replaced(record)
            if monotonic() - since > _BEGIN_FOR:  # the rest of the lease may be too short
                await self._end(begun, replace(found.record, message=message, due=found.now))
                return
            self._failpoint.reach(LATE_BEGUN)
            began = time_ns()
            verdict = await sender.send(record)
            self._failpoint.reach(LATE_SENT)
        self._trace(record, sender, verdict, began)
        await self._end(begun, record.after(verdict, sender.terms, begun.now))

    def _host(self, record: Record) -> str:
        """Return the host to which a record's message goes; empty: it goes nowhere."""
        sender = self._senders.get((record.route, record.key))
        return sender.host(record) if sender else ""

    def _message(self, record: Record, outcome: Outcome) -> tuple[Record, str | None]:
        """Return the message for a task's outcome, or how the record ends without one."""
        key = record.route, record.key
        sender, route, done = self._senders[key], self._routes[key], ended(outcome)
        answer, _ = route.reading.read(outcome)
        if answer is None:
            error = done.error or done.state
            if route.redact:  # the text of an exception may have a value that is not kept
                error = error.partition(": ")[0]
            return record.ended(FAILED, f"the task has no answer: {error}"), None
        if answer.status >= 300:
            return record.ended(FAILED, f"the task's answer has the status {answer.status}"), None
        try:
            return record.ended(DROPPED), sender.message(answer, record.values)
        except (ResultUnusable, KeyError) as exc:
            return record.ended(FAILED, str(exc)), None

    async def _end(self, found: Found, record: Record) -> None:
        """Write what became of a record, unless another process has."""
        try:
            written = await self._swap(record, found, _END_FOR)
        except StateUnavailable as exc:
            log.error(
                "what became of a late answer is not written: %s (delivery %s: %s)",
                exc.__cause__, record.delivery_id, record.end or record.state,
            )  # fmt: skip
            return
        if written and record.end:
            self._failpoint.reach(LATE_ENDED)
            await self._ended(found.replaced(record))

    async def _swap(self, record: Record, found: Found, seconds: float) -> bool:
        """Write a record as `Records.swap` does, and try for `seconds` until it is known."""
        until, doubt = monotonic() + seconds, False
        while True:
            try:
                if await self._records.swap(record, found):
                    return True
                # What an earlier attempt has sent may have been executed nevertheless.
                return doubt and (await self._records.get(record.task_id)).record == record
            except StateUnavailable:
                if monotonic() >= until:
                    raise
                doubt = True
                await asyncio.sleep(_AGAIN)

    async def _ended(self, found: Found) -> None:
        """Tell how a record has ended; where the journal cannot be written, a later look will."""
        record = found.record
        self._forget(record.task_id)
        if not record.told:
            await self._tell(record, End(_STATES[record.end], record.reason))
            if not await self._records.swap(replace(record, told=True), found):
                return  # another process has told it
        self._metrics.count(LATE_ANSWERS, record.route, record.end)
        if record.end in (FAILED, UNCERTAIN):
            log.warning(
                "late answer %s: %s (route %s, delivery %s, task %s)", record.end, record.reason,
                record.route, record.delivery_id, record.task_id,
            )  # fmt: skip

    async def _tell(self, record: Record, end: End) -> None:
        if self._journal is not None:
            await self._journal.settle(record.delivery_id, record.task_id, end)

    def _trace(self, record: Record, sender: Sender, verdict: Verdict, began: int) -> None:
        if self._tracer is None or not record.traceparent:
            return
        about = {
            "http.route": record.route,
            "gateway.delivery.id": record.delivery_id,
            "gateway.task.id": record.task_id,
        }
        error = "" if verdict.kind == states.TAKEN else verdict.kind
        method = sender.late.method
        self._tracer.late(record.traceparent, method, about, error, began)

    def _run(self, step: Coroutine[None, None, object]) -> asyncio.Task[Any]:
        return self._begun.run(step, self._stepped)

    def _stepped(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or (exc := task.exception()) is None:
            return
        if isinstance(exc, GatewayError):
            log.warning("a late answer has to wait: %s", exc.__cause__ or exc)
        else:
            log.error("a late answer could not be sent", exc_info=exc)


def _key(route: Route) -> tuple[str, str]:
    """Return what records know a route by: what is sent depends on it, and on nothing else."""
    assert route.late is not None
    return route.path, f"{route.late.key} {route.content_type}"
