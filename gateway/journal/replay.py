"""Replay deliveries from the journal, each as a new task: of several tries at most one."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gateway import audit
from gateway.amqp import broker
from gateway.amqp.publisher import publisher_for
from gateway.celery_message import TaskIds, decode_result
from gateway.clock import monotonic
from gateway.config.pointers import pointers_in
from gateway.config.route import taking
from gateway.config.settings import Config
from gateway.errors import (
    BrokerUnavailable,
    GatewayError,
    NotConfirmed,
    NotFound,
    RequestError,
    StoreError,
    Unroutable,
)
from gateway.journal.entry import DONE, OPEN, RECEIVED, Entry, divided, ended, iso_now, order
from gateway.journal.filter import Filter
from gateway.journal.reading import Reader
from gateway.journal.store import BEGUN, INTERRUPTED, NOT_ANSWERED, UNDER_WAY, JournalStore
from gateway.metrics import Metrics
from gateway.outcome import Outcome
from gateway.pending_task import PendingTask
from gateway.stores import result_store
from gateway.stores.pipeline import asking

_PAUSE = 0.1  # seconds between queries
_RUNS = 20  # earlier runs of a delivery that are kept

Publish = Callable[[Entry, str], Awaitable[None]]


@asynccontextmanager
async def publishing(config: Config) -> AsyncIterator[Publish]:
    """Connect to the broker and yield a coroutine function that publishes a delivery.

    The function publishes the delivery's message under a task id and returns when it is confirmed.
    It raises `NotConfirmed` where it is not known whether the broker has the message, and another
    `RequestError` where the broker does not have it. Connecting raises `BrokerUnavailable`.
    """
    metrics = Metrics()
    publisher = publisher_for(config, metrics)

    async def publish(entry: Entry, task_id: str) -> None:
        deadline = monotonic() + config.confirm_timeout + 1
        pending = PendingTask(entry.message(task_id), deadline)
        publisher.publish(pending)
        error = await pending.until_confirmed()
        try:
            # A queue that crashes may have a message that it rejects: only this one is nowhere.
            if isinstance(error, Unroutable):
                raise error
            if error is not None:
                raise NotConfirmed from error
        finally:
            del error, pending  # its traceback refers to this frame: end the reference cycle

    await publisher.start()
    try:
        end = monotonic() + (broker.CONNECT_TIMEOUT + 1) * len(config.brokers)
        while publisher.error and monotonic() < end:
            await asyncio.sleep(_PAUSE)
        if publisher.error:
            raise BrokerUnavailable(publisher.error)
        yield publish
    finally:
        await publisher.stop()
        metrics.close()


def aimed(config: Config, entry: Entry) -> Entry:
    """Return `entry` with the task and the queue that its route has today; the call stays.

    An accepted message in a queue that no worker consumes any more would be lost in silence. A
    dynamic queue may be gone, or may expire together with its messages, so the static one is used.
    Raises `NotFound` where no route, or more than one, could be meant.
    """
    path, event = entry.delivery["route"], entry.delivery["event"]
    routes = [*taking((route for route in config.routes if route.path == path), event)]
    same = [route for route in routes if route.task == entry.task]
    for route in same:
        if route.dynamic and re.fullmatch(route.queue_pattern or "", entry.queue):
            return replace(entry, queue=route.static_queue)
        exchange = entry.options.get("exchange")
        if entry.queue in route.queue_names or (exchange and exchange == route.exchange):
            return entry
    several = same or routes
    if len(several) != 1:
        found = "no route has" if not several else f"{len(several)} routes have"
        raise NotFound(
            f"no route leads to its task {entry.task} in the queue {entry.queue} any more, and "
            f"{found} the path {path}" + (f" for the event {event}" if event else "") + " in this "
            "configuration: name the gateway's own with --config, or GATEWAY_CONFIG"
        )
    (route,) = several
    if pointers_in(route.routing_key):
        raise NotFound(f"{path} has a new exchange, and a routing key that only a request has")
    queue = (route.queue_names or [route.routing_key])[0]
    options = {**entry.options, "exchange": route.exchange or ""}
    return replace(entry, task=route.task, queue=queue, options=options)


def uneditable(config: Config, entry: Entry) -> str:
    """Return why a delivery cannot be published with another call; "": it can."""
    if any(route.redact for route in config.routes if route.path == entry.path):
        return "its route has `redact`, and an edited call is kept as a whole"
    return entry.unsendable


async def outcomes(
    config: Config, task_ids: Sequence[str], wait: float = 0.0
) -> AsyncGenerator[tuple[str, Outcome], None]:
    """Yield the outcomes of the tasks as they are stored, for at most `wait` seconds.

    It has a connection of its own: a caller that may stop early closes it (`contextlib.aclosing`).
    Raises `gateway.errors.GatewayError` where the result store does not answer.
    """
    if not config.results:
        return
    end, waiting, prefix = monotonic() + wait, list(task_ids), result_store.key_prefix(config)
    async with asking(config) as ask:
        while waiting:
            async for task_id, payload in result_store.stored(ask, prefix, tuple(waiting)):
                if (outcome := decode_result(payload)) is not None:
                    waiting.remove(task_id)
                    yield task_id, outcome
            if monotonic() >= end:
                return
            await asyncio.sleep(_PAUSE)


@dataclass(frozen=True)
class Replay:
    """How the replay of a delivery has begun: as the task ``task_id``, or why not.

    With both, it is not known whether the broker has the task. ``unavailable``: the problem is the
    broker, and not what the journal has. ``may_have_run``: an earlier replay was interrupted, or
    what was chosen has succeeded since; with `again` it is published all the same.
    """

    delivery_id: str
    task_id: str = ""
    problem: str = ""
    unavailable: bool = False
    may_have_run: bool = False


class Replayer:
    """Replays deliveries, and writes that to the journal: none is replayed twice unnoticed.

    What is about to be published is written before, and whether it was taken, after. Where a
    replay was interrupted in between, the next one says so, and publishes nothing unless it is
    asked for `again`; then it does so under the same task id.
    """

    def __init__(self, store: JournalStore, publish: Publish):
        self._store = store
        self._publish = publish
        self._ids = TaskIds()

    async def run(self, chosen: Entry, again: bool = False) -> Replay:
        """Publish a delivery, and return when the broker has confirmed or refused it.

        A delivery that was replayed, or has succeeded, after it was `chosen` is not replayed again;
        `chosen` may be without its call. Raises `gateway.errors.GatewayError` where the journal's
        store does not answer.
        """
        gone = Replay(chosen.id, problem="it is not in the journal any more")
        entry = await self._store.get(chosen.id)
        if entry is None:
            return gone
        if entry.task_id != chosen.task_id:
            why = f"another replay has just run it: task {entry.task_id}"
            return Replay(entry.id, problem=why)
        if entry.state in DONE and chosen.state not in DONE and not again:
            why = f"its state is {entry.state} by now; see `again`"
            return Replay(entry.id, problem=why, may_have_run=True)
        if entry.unsendable:
            why = f"cannot be replayed as it was: {entry.unsendable}"
            return Replay(entry.id, problem=why)
        made = self._ids.new()
        begun = await self._store.begin_replay(entry.id, made, entry.task_id, again)
        if begun.how == INTERRUPTED:
            why = "an earlier replay was interrupted, and may run; see `again`"
            return Replay(entry.id, begun.task_id, why, may_have_run=True)
        if begun.how != BEGUN:
            now = "publishes it just now" if begun.how == UNDER_WAY else "has just run it"
            why = f"another replay {now}: task {begun.task_id}"
            return Replay(entry.id, problem=why) if begun.task_id else gone
        task_id = begun.task_id
        resent = {"resent_at": iso_now(), "by": audit.acting.get()}
        try:
            await self._publish(entry, task_id)
        except NotConfirmed:
            with suppress(GatewayError):  # its time ends by itself
                await self._store.end_replay(entry.id, task_id, taken=None)
            return Replay(entry.id, task_id, "not confirmed, but may run", unavailable=True)
        except RequestError as exc:
            # One that was interrupted before may run as this task.
            taken = False if begun.task_id == made else None
            await self._store.end_replay(entry.id, task_id, taken=taken)
            return Replay(entry.id, problem=f"not taken: {exc}", unavailable=exc.status >= 500)
        try:
            # The run before may have ended meanwhile, or its end may have been written only now.
            entry = await self._store.get(entry.id) or entry
            runs = [*entry.runs, entry.run() | resent]
            if not await self._store.end_replay(entry.id, task_id, taken=True, runs=runs[-_RUNS:]):
                raise StoreError("it has lost that the replay had begun")
        except GatewayError as exc:
            why = f"it was published, which the journal does not have: {exc}"
            return Replay(entry.id, task_id, why, unavailable=True)
        return Replay(entry.id, task_id)

    async def run_edited(self, entry: Entry, call: bytes) -> Replay:
        """Publish a delivery with another `call`, as a new one that names it in ``edited_from``.

        The new one has no identity, as it is no try of its sender. It is written, and then begins
        as a replay does; what the broker has not taken is removed again.
        """
        own = {"id": self._ids.new(), "received_at": iso_now(), "remote": "", "traceparent": ""}
        delivery = {**entry.delivery, **own, "edited_from": entry.id}
        new = replace(entry, delivery=delivery, task_id="")
        names = ("delivery", "task", "queue", "options")
        about = {name: getattr(new, name) for name in names}
        texts = divided(about, self._store.keep_bodies)
        await self._store.write([(new.id, RECEIVED, 0, "", *NOT_ANSWERED, *texts, call)])
        begun = await self.run(new)
        if begun.problem and not begun.task_id:
            written = await self._store.get(new.id)
            if written is not None:
                await self._store.erase(written)
        return begun

    async def run_all(
        self, chosen: Sequence[Entry], again: bool = False, rate: float | None = None
    ) -> AsyncIterator[Replay]:
        """Replay deliveries one after the other, at most `rate` a second, as `run` does.

        Meanwhile their senders may try again: for other tries it is asked as often as takes a fifth
        of the time.
        """
        due = asks = monotonic()
        others: dict[str, Entry] = {}
        for number, entry in enumerate(chosen):
            if rate:
                await asyncio.sleep(due - monotonic())
                due = max(due, monotonic()) + 1 / rate  # what was late is not caught up on
            if not again and (asked := monotonic()) >= asks:
                others = await superseded(self._store, chosen[number:])
                asks = monotonic() + 4 * (monotonic() - asked)
            if (other := others.get(entry.id)) is not None:
                yield Replay(entry.id, problem=because_of(other), may_have_run=True)
            else:
                yield await self.run(entry, again)

    async def settle(self, delivery_id: str, task_id: str, outcome: Outcome) -> None:
        """Write how a replay's task has ended, so that it is known even if no gateway runs.

        A gateway writes it as well, and counts it.
        """
        await self._store.settle(delivery_id, task_id, ended(outcome), counts=False)


@asynccontextmanager
async def replaying(config: Config) -> AsyncIterator[Replayer]:
    """Connect to the journal's store and to the broker, and yield what replays deliveries."""
    async with JournalStore.opened(config) as store, publishing(config) as publish:

        async def publish_today(entry: Entry, task_id: str) -> None:
            await publish(aimed(config, entry), task_id)

        yield Replayer(store, publish_today)


# Which deliveries are replayed -------------------------------------------------------------------


async def choose(
    reader: Reader, wanted: Sequence[str] | Filter, again: bool, after: str = "", to: str = ""
) -> tuple[list[Entry], list[tuple[Entry, Entry]]]:
    """Return what to replay of the deliveries with the ids `wanted`, or of those that it takes.

    With each that is left out comes the try because of which it is; `again` leaves out none. All
    are without their calls, in the order of their arrival or in that of the ids. A filter takes no
    requests that were refused before they had a message, and with the positions `after` and `to`
    only deliveries after the one, and not after the other. Raises
    `gateway.errors.GatewayError` where one of the ids is not in the journal.
    """
    if isinstance(wanted, Filter):
        least, most = order(after), order(to) or (math.inf,)
        if after:
            since = _at(least[0])
            wanted = replace(wanted, since=max(since, wanted.since or since))
        if to:
            until = _at(most[0] + 1)
            wanted = replace(wanted, until=min(until, wanted.until or until))
        async with aclosing(reader.find(wanted)) as found:
            chosen = [
                each
                async for each in found
                if not each.request and least < order(each.position) <= most
            ][::-1]
    else:
        chosen = await reader.get_all(wanted)
    others = {} if again else await superseded(reader, chosen)
    left = [entry for entry in chosen if entry.id not in others]
    return left, [(entry, others[entry.id]) for entry in chosen if entry.id in others]


async def superseded(reader: Reader, chosen: Sequence[Entry]) -> dict[str, Entry]:
    """Return by id those of the `chosen` deliveries that should not be replayed, and why.

    That is another try of the same delivery: one that has succeeded, else one whose task may still
    run, else the newest of those that were chosen.
    """
    ids = {entry.id for entry in chosen}
    identities = frozenset(entry.identity for entry in chosen if entry.identity)
    best: dict[str, Entry] = {}
    if identities:
        async with aclosing(reader.find(Filter(identities=identities))) as newest_first:
            async for entry in newest_first:
                best.setdefault(entry.identity, entry)
                if _weight(entry, ids) > _weight(best[entry.identity], ids):
                    best[entry.identity] = entry
    others = {entry.id: best.get(entry.identity, entry) for entry in chosen}
    return {key: other for key, other in others.items() if other.id != key}


async def refusals(config: Config, reader: Reader, chosen: Sequence[Entry]) -> dict[str, str]:
    """Return by id those of the `chosen` deliveries that cannot be published again, and why."""
    found = {}
    for each in chosen:
        entry = await reader.get(each.id)  # with its call
        try:
            if entry is not None and entry.unsendable:
                found[each.id] = f"cannot be replayed as it was: {entry.unsendable}"
            elif entry is not None:
                aimed(config, entry)
        except NotFound as exc:
            found[each.id] = f"not taken: {exc}"
    return found


def because_of(other: Entry) -> str:
    """Say why a delivery is not replayed which is superseded by an `other` one."""
    return f"{other.id} is another try of the same delivery, {other.state}; see `again`"


def _at(ms: float) -> datetime:
    return datetime.fromtimestamp(min(ms / 1000, 2.5e11), UTC)  # a later one is no time any more


def _weight(entry: Entry, chosen: set[str]) -> tuple[bool, bool, bool]:
    runs = entry.state in OPEN or bool(entry.replaying)
    return entry.state in DONE, runs, entry.id in chosen
