"""What the API does: a coroutine function for each operation, with its models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_type_hints

from pydantic import BaseModel

from gateway.admin.api import schema
from gateway.archive.reading import reading
from gateway.audit import LOOK, MUTE, REPLAY, RESOLVE
from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.history.gateways import Gateways
from gateway.history.history import ALL, OTHERS, History
from gateway.journal.entry import Entry
from gateway.journal.filter import Filter, read_until
from gateway.journal.reading import Reader
from gateway.journal.replay import because_of, choose, refusals, replaying
from gateway.journal.store import JournalStore

#: Seconds for which the journal is looked through at once.
PATIENCE = 0.2
#: Types of errors: only where a delivery may have run, `again` replays it all the same.
NOT_REPLAYED, MAY_HAVE_RUN = "not-replayed", "may-have-run"


class APIError(Exception):
    """The request cannot be served; ``type``, ``status`` and ``headers`` are of its answer."""

    def __init__(self, status: int, type_: str, detail: str, **headers: str):
        super().__init__(detail)
        self.status, self.type = status, type_
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


async def newest(
    config: Config, chosen: Filter, before: str, least: int, most: int = 0, seconds: float = 0.0
) -> tuple[list[Entry], str, Reader]:
    """Return `least` of the newest deliveries, and up to `most` in so many `seconds`.

    With them comes the position after which there may be more ("": there are none), and the reader.
    """
    found: list[Entry] = []
    end = monotonic() + seconds
    async with (
        reading(config) as reader,
        aclosing(reader.find(chosen, before, PATIENCE)) as entries,
    ):
        async for entry in entries:
            if len(found) >= least and (len(found) >= most or monotonic() > end):
                return found, found[-1].position, reader
            found.append(entry)
    return found, reader.reached, reader


async def list_deliveries(config: Config, wanted: schema.PageWanted) -> schema.Page:
    """List deliveries, the newest first."""
    found, after, reader = await newest(config, wanted.filter(), wanted.before, wanted.limit)
    deliveries = [schema.Delivery.of(entry) for entry in found]
    return schema.Page(deliveries=deliveries, next=after or None, problems=reader.problems)


async def get_delivery(config: Config, wanted: schema.One) -> schema.WholeDelivery:
    """Return one delivery with the call of its task."""
    async with reading(config) as reader:
        return schema.WholeDelivery.whole(await _known(reader, wanted.id))


async def replay_delivery(config: Config, wanted: schema.ReplayWanted) -> schema.Replayed:
    """Run a delivery's task again, as another task."""
    async with JournalStore.opened(config) as store:
        entry = await _known(store, wanted.id)
        _, others = await choose(store, [wanted.id], wanted.again)
    if others:
        raise APIError(409, MAY_HAVE_RUN, because_of(others[0][1]))
    async with replaying(config) as replayer:
        try:
            begun = await replayer.run(entry, wanted.again)
        except GatewayError as exc:
            raise APIError(503, "unavailable", f"it may have been replayed: {exc}") from exc
    if begun.problem:
        why = f"{begun.problem}: task {begun.task_id}" if begun.task_id else begun.problem
        if begun.unavailable:
            raise APIError(503, "unavailable", why)
        raise APIError(409, MAY_HAVE_RUN if begun.may_have_run else NOT_REPLAYED, why)
    return schema.Replayed.of(begun)


async def replay_deliveries(config: Config, wanted: schema.ReplaysWanted) -> schema.Replays:
    """Run the tasks of all deliveries that a filter takes again, the oldest first.

    Where more than `limit` are found, repeat the request with `next` as `after`, and with the `to`
    of a dry run, so that nothing which was received since is replayed as well.
    """
    chosen = wanted.filter()
    if chosen == Filter():
        raise APIError(400, "bad-request", "say which: give at least one filter, such as state")
    async with JournalStore.opened(config) as store:
        found, others = await choose(store, chosen, wanted.again, wanted.after, wanted.to)
        # Nobody waits longer than a minute for an answer.
        most = wanted.limit if wanted.rate is None else max(int(60 * wanted.rate), 1)
        now = found[: min(most, wanted.limit)]
        refused = await refusals(config, store, now) if wanted.dry_run else {}
    if wanted.dry_run:
        replayed = [
            schema.Replayed(delivery_id=delivery_id, task_id="", problem=why)
            for delivery_id, why in refused.items()
        ]
        done = len(now)
    else:
        replayed = await _replay(config, now, wanted.again, wanted.rate)
        done = len(replayed)
        if wanted.rate and replayed and len(found) > done:
            await asyncio.sleep(1 / wanted.rate)  # as the next request may follow at once
    return schema.Replays(
        replayed=replayed,
        would_be=[entry.id for entry in now if entry.id not in refused] if wanted.dry_run else [],
        left_out=schema.Replays.others(others),
        left=len(found) - done,
        next=now[done - 1].position if done and len(found) > done else None,
        to=found[-1].position if found else None,
    )


async def list_failures(config: Config, wanted: schema.Nothing) -> schema.FailureGroups:
    """List the groups of failures, the one that has failed last first."""
    async with JournalStore.opened(config) as store:
        groups = [schema.FailureGroup(**each.as_object()) for each in await store.groups()]
    return schema.FailureGroups(groups=groups, notify=config.notify.kind if config.notify else "")


async def mute_failures(config: Config, wanted: schema.MuteWanted) -> schema.Done:
    """Tell nothing of a group of failures for a while."""
    return await _change_group(config, wanted.id, read_until(wanted.until))


async def resolve_failures(config: Config, wanted: schema.OneGroup) -> schema.Done:
    """Say that a group of failures is resolved; it comes back when one fails again."""
    return await _change_group(config, wanted.id, None)


async def _change_group(config: Config, group: str, muted: datetime | None) -> schema.Done:
    async with JournalStore.opened(config) as store:
        if not await store.change_group(group, muted):
            raise APIError(404, "not-found", "there is no such group")
    return schema.Done()


async def replay_failures(config: Config, wanted: schema.GroupReplayWanted) -> schema.Replays:
    """Run the tasks of all deliveries of a group again, as `replay_deliveries` does."""
    options = wanted.model_dump(exclude={"id"})
    return await replay_deliveries(config, schema.ReplaysWanted(group=wanted.id, **options))


async def test_notification(config: Config, wanted: schema.Nothing) -> schema.Done:
    """Send a test to whom `[notify]` names."""
    from gateway.failures.telling import send_test

    if config.notify is None:
        raise APIError(404, "not-found", "there is no [notify] in the configuration")
    await send_test(config)
    return schema.Done(said="A test was sent: see whether it has arrived.")


async def _replay(
    config: Config, chosen: Sequence[Entry], again: bool, rate: float | None
) -> list[schema.Replayed]:
    """Replay deliveries; return how that began, up to one for which a server did not answer."""
    done: list[schema.Replayed] = []
    async with replaying(config) as replayer:
        try:
            async for begun in replayer.run_all(chosen, again, rate):
                done.append(schema.Replayed.of(begun))
        except GatewayError as exc:  # what was replayed before has to be told
            problem = f"it may have been replayed: {exc}"
            unknown = chosen[len(done)].id
            done.append(schema.Replayed(delivery_id=unknown, task_id="", problem=problem))
    return done


async def _known(reader: Reader, delivery_id: str) -> Entry:
    entry = await reader.get(delivery_id)
    if entry is None:
        raise APIError(404, "not-found", "there is no such delivery")
    return entry


async def get_history(history: History, wanted: schema.HistoryWanted) -> schema.Past:
    """Return rates, statuses and latencies of the past."""
    if wanted.route not in (ALL, OTHERS, *history.known_routes):
        routes = ", ".join([*history.known_routes, OTHERS])
        raise APIError(404, "not-found", f"there is no such route; there are {routes}")
    return schema.Past.of(wanted, history.read(wanted.range, wanted.route), history.routes)


async def list_gateways(gateways: Gateways, wanted: schema.Nothing) -> schema.Seen:
    """List the gateways of this deployment, and by what they differ."""
    return schema.Seen.of(gateways)


@dataclass(frozen=True)
class Operation:
    """An operation of the API; its docstring and its annotations describe it."""

    method: str
    path: str
    run: Callable[[Any, Any], Awaitable[BaseModel]]
    #: What the log says of it: see `gateway.audit`.
    audited: str = ""
    #: The type of what it asks: with the configuration it is the journal.
    subject: type = Config

    @property
    def pattern(self) -> str:
        """Its path, as Tornado has it."""
        return self.path.replace("{id}", "([^/]+)")

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").strip().partition("\n")[0]

    @property
    def parameters(self) -> type[schema.Parameters]:
        found: type[schema.Parameters] = get_type_hints(self.run)["wanted"]
        return found

    @property
    def answer(self) -> type[BaseModel]:
        found: type[BaseModel] = get_type_hints(self.run)["return"]
        return found


OPERATIONS = (
    Operation("GET", "/api/deliveries", list_deliveries),
    Operation("GET", "/api/deliveries/{id}", get_delivery, LOOK),
    Operation("POST", "/api/deliveries/{id}/replay", replay_delivery, REPLAY),
    Operation("POST", "/api/replays", replay_deliveries, REPLAY),
    Operation("GET", "/api/failures", list_failures),
    Operation("POST", "/api/failures/{id}/mute", mute_failures, MUTE),
    Operation("POST", "/api/failures/{id}/resolve", resolve_failures, RESOLVE),
    Operation("POST", "/api/failures/{id}/replay", replay_failures, REPLAY),
    Operation("POST", "/api/notify/test", test_notification),
    Operation("GET", "/api/history", get_history, subject=History),
    Operation("GET", "/api/gateways", list_gateways, subject=Gateways),
)
DOCUMENT = "/api/openapi.json"
