"""What the API does: a coroutine function for each operation, with its models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel

from gateway.admin.api.schema import (
    Delivery,
    One,
    Page,
    PageWanted,
    Parameters,
    Replayed,
    Replays,
    ReplaysWanted,
    ReplayWanted,
    WholeDelivery,
)
from gateway.config.settings import Config
from gateway.journal import replay
from gateway.journal.entry import Entry
from gateway.journal.filter import Filter
from gateway.journal.reading import Reader, reading
from gateway.journal.replay import publishing
from gateway.journal.tries import choose
from gateway.stores import result_store


class Refused(Exception):
    """The request cannot be served; ``type``, ``status`` and ``headers`` are of its answer."""

    def __init__(self, status: int, type_: str, detail: str, **headers: str):
        super().__init__(detail)
        self.status, self.type = status, type_
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


async def list_deliveries(config: Config, wanted: PageWanted) -> Page:
    """List deliveries, the newest first."""
    found: list[Delivery] = []
    position = ""
    async with (
        reading(config) as reader,
        aclosing(reader.find(wanted.filter(), before=wanted.before)) as entries,
    ):
        async for entry in entries:
            if len(found) == wanted.limit:
                return Page(deliveries=found, next=position)
            found.append(Delivery.of(entry))
            position = entry.position
    return Page(deliveries=found, next=None)


async def get_delivery(config: Config, wanted: One) -> WholeDelivery:
    """Return one delivery with the call of its task."""
    async with reading(config) as reader:
        await _known(reader, wanted.id)
        (entry,) = await reader.get_all([wanted.id])
    return WholeDelivery.whole(entry)


async def replay_delivery(config: Config, wanted: ReplayWanted) -> Replayed:
    """Run a delivery's task again, as another task."""
    async with reading(config) as reader:
        await _known(reader, wanted.id)
        chosen, others = await choose(reader, [wanted.id], wanted.again)
        if others:
            ((_, other),) = others
            why = f"{other.id} is another try of the same delivery, {other.state}; see `again`"
            return Replayed(delivery_id=wanted.id, task_id="", problem=why)
        (replayed,) = await _replay(config, reader, chosen, wanted.again)
    return replayed


async def replay_deliveries(config: Config, wanted: ReplaysWanted) -> Replays:
    """Run the tasks of all deliveries that a filter takes again, the oldest first.

    Where more than `limit` are found, repeat the request with `next` as `after`.
    """
    chosen = wanted.filter()
    if chosen == Filter():
        raise Refused(400, "bad-request", "say which: give at least one filter, such as state")
    async with reading(config) as reader:
        found, others = await choose(reader, chosen, wanted.again)
        found = [entry for entry in found if _place(entry.position) > _place(wanted.after)]
        now = found[: wanted.limit]
        return Replays(
            replayed=[] if wanted.dry_run else await _replay(config, reader, now, wanted.again),
            would_be=[entry.id for entry in now] if wanted.dry_run else [],
            left_out=Replays.others(others),
            left=len(found) - len(now),
            next=now[-1].position if len(found) > len(now) else None,
        )


def _place(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split("-"))) if position else ()


async def _replay(
    config: Config, reader: Reader, chosen: Sequence[Entry], again: bool
) -> list[Replayed]:
    done = []
    async with result_store.asking(config, config.state) as ask, publishing(config) as publish:
        replays = replay.Replays(config, ask, publish)
        for each in chosen:
            entry = await reader.get(each.id)
            if entry is None:
                gone = "it is not in the journal any more"
                done.append(Replayed(delivery_id=each.id, task_id="", problem=gone))
            else:
                done.append(Replayed.of(await replays.run(entry, again)))
    return done


async def _known(reader: Reader, delivery_id: str) -> None:
    if await reader.get(delivery_id) is None:
        raise Refused(404, "not-found", "there is no such delivery in the journal")


@dataclass(frozen=True)
class Operation:
    """An operation of the API; its docstring and its annotations describe it."""

    method: str
    path: str
    run: Callable[[Config, Any], Awaitable[BaseModel]]

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").strip().partition("\n")[0]

    @property
    def parameters(self) -> type[Parameters]:
        found: type[Parameters] = get_type_hints(self.run)["wanted"]
        return found

    @property
    def answer(self) -> type[BaseModel]:
        found: type[BaseModel] = get_type_hints(self.run)["return"]
        return found


OPERATIONS = (
    Operation("GET", "/api/deliveries", list_deliveries),
    Operation("GET", "/api/deliveries/{id}", get_delivery),
    Operation("POST", "/api/deliveries/{id}/replay", replay_delivery),
    Operation("POST", "/api/replays", replay_deliveries),
)
#: The stream of changes, which is no answer with an end.
CHANGES = "/api/changes"
DOCUMENT = "/api/openapi.json"
