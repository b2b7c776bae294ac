"""What the API takes and answers, as models, of which its OpenAPI document is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gateway.history.gateways import KINDS, Gateways, Line
from gateway.history.history import RANGES
from gateway.history.ring import LATER, STATUSES, Slot
from gateway.journal.entry import GONE, STATES, Entry
from gateway.journal.filter import PARTS, Filter, read_until
from gateway.journal.groups import AGAIN, MUTED, NEW, RESOLVED, STILL
from gateway.journal.replay import Replay
from gateway.journal.store import POSITION

T = TypeVar("T")
State = Annotated[str, Field(json_schema_extra={"enum": [*STATES]})]
#: The most deliveries of a page, and of one request to replay.
PAGE = 500


class Parameters(BaseModel):
    """What a request has in its query and its path; other names are errors."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


def _part(name: str) -> Any:
    return Field("", description=PARTS[name].help)


class Wanted(Parameters):
    """Which deliveries; what is left out does not matter."""

    state: str = _part("state")
    status: str = _part("status")
    route: str = _part("route")
    source: str = _part("source")
    event: str = _part("event")
    text: str = _part("text")
    group: str = _part("group")
    since: str = _part("since")
    until: str = _part("until")

    @field_validator(*PARTS)
    @classmethod
    def _readable(cls, text: str, info: Any) -> str:
        if text:
            PARTS[info.field_name].read(text)
        return text

    def filter(self) -> Filter:
        texts = {name: getattr(self, name) for name in PARTS}
        return Filter(**{name: PARTS[name].read(text) for name, text in texts.items() if text})


class PageWanted(Wanted):
    """Which deliveries, and which page of them."""

    limit: int = Field(50, ge=1, le=PAGE, description="how many at most")
    before: str = Field("", pattern=POSITION, description="the `next` of the page before")


class ReplayOptions(Parameters):
    """How deliveries are replayed."""

    limit: int = Field(100, ge=1, le=PAGE, description="how many at most")
    after: str = Field("", pattern=POSITION, description="the `next` of the answer before")
    to: str = Field("", pattern=POSITION, description="`to` of the dry run: nothing newer")
    again: bool = Field(False, description="also what another try or replay may have run")
    rate: float | None = Field(
        None, ge=1 / 60, le=1e6, description="how many a second; a request takes a minute at most"
    )
    dry_run: bool = Field(False, description="only say what would be replayed")


class ReplaysWanted(ReplayOptions, Wanted):
    """Which deliveries are replayed; at least one filter is needed."""


class Nothing(Parameters):
    """No parameters."""


class OneGroup(Parameters):
    """A group of failures by its id."""

    id: str = Field(pattern="^[0-9a-f]{16}$", description="the group's id")


class MuteWanted(OneGroup):
    """A group that is to be muted."""

    until: str = Field(description="2026-01-31T12:00Z, or 15m, 2h, 7d from now; 0s: no longer")

    @field_validator("until")
    @classmethod
    def _readable(cls, text: str) -> str:
        read_until(text)
        return text


class GroupReplayWanted(ReplayOptions, OneGroup):
    """A group whose deliveries are to be replayed."""


class One(Parameters):
    """A delivery by its id."""

    id: str = Field(min_length=1, max_length=200, description="the delivery's id")


class ReplayWanted(One):
    """A delivery that is to be replayed."""

    again: bool = Field(False, description="also if another try or replay may have run it")


class HistoryWanted(Parameters):
    """Which part of the history."""

    range: Literal["10m", "6h", "14d"] = Field(
        "10m", description="by the second, by ten seconds, or by five minutes"
    )
    route: str = Field("", description="the route's path, or `others`; empty: all routes")


class RefusedRequest(BaseModel):
    """A request that was refused before a task could be called, or that no route took."""

    method: str
    path: str
    truncated: bool = Field(description="does the call have only a part of its body, or none?")


class Delivery(BaseModel):
    """A delivery and what became of it. docs/delivery.md describes the states."""

    id: str
    received_at: str = Field(description="ISO 8601")
    route: str
    source: str
    event: str
    remote: str
    state: State
    status: int | None = Field(description="of the answer; null: not given, or the sender had left")
    gone: bool = Field(description="had the sender left before the answer?")
    seconds: float = Field(description="from the request to the answer")
    published: float | None = Field(description="seconds until its message was published")
    error: str = Field(
        description="why the answer was an error, how the task has failed, or why no route took it"
    )
    attempts: int | None = Field(description="of its task: Celery's retries and one; null: unknown")
    ended_at: str = Field(description="when the end of its task was noticed, in ISO 8601; or empty")
    task: str
    task_id: str
    queue: str
    replays: int
    replaying: str = Field(description="the task id of a replay that may have been interrupted")
    identity: str = Field(description="the same for all tries of a delivery; or empty")
    traceparent: str
    request: RefusedRequest | None = Field(description="null: it had a task to be called")

    @classmethod
    def of(cls, entry: Entry, **more: Any) -> Self:
        """Make it from an entry of the journal; `more` are further fields."""
        delivery = entry.delivery
        values = {name: getattr(entry, name, delivery.get(name, "")) for name in cls.model_fields}
        empty = {name: values[name] or None for name in ("status", "attempts", "request")}
        return cls(**{**values, **empty, "gone": entry.status == GONE, **more})


class TaskCall(BaseModel):
    """What a task is called with."""

    args: list[Any]
    keywords: dict[str, Any] = Field(serialization_alias="kwargs")


class Run(BaseModel):
    """A run of a delivery's task, as it was known when the delivery was published again."""

    state: State
    error: str = ""
    attempts: int | None = None
    begun_at: str = ""
    ended_at: str = ""
    resent_at: str = Field(description="when it was published again, in ISO 8601")
    by: str = Field("", description="who has done that, as the log names them; or empty")


class WholeDelivery(Delivery):
    """A delivery with the call of its task."""

    params: dict[str, str]
    query_string: str
    call: TaskCall | None = Field(description="null: it is not kept, see `keep_bodies`")
    redacted: list[str] = Field(description="the pointers whose values are not kept")
    begun_at: str = Field(description="when it was noticed that a worker has begun it; or empty")
    late_at: str = Field(description="when its late answer had ended; or empty")
    runs: list[Run] = Field(description="the last runs before a replay, the oldest first")
    edited_from: str = Field(description="the id of the delivery of which it is a copy; or empty")
    replayable: bool = Field(description="can its message be published again as it was?")

    @classmethod
    def whole(cls, entry: Entry) -> Self:
        args, kwargs = entry.arguments()
        return cls.of(
            entry,
            params=entry.delivery.get("params", {}),
            call=TaskCall(args=args, keywords=kwargs) if entry.call else None,
            replayable=not entry.unsendable,
        )


class Page(BaseModel):
    """Some deliveries, the newest first."""

    deliveries: list[Delivery]
    next: str | None = Field(description="`before` of the next page; null: there is none")
    problems: list[str] = Field(description="why the journal or the archive could not be read")


class Replayed(BaseModel):
    """How the replay of a delivery has begun."""

    delivery_id: str
    task_id: str = Field(description="of the new task; with a problem: of one that may run")
    problem: str = Field(description="why it was not published, or may not have been; or empty")

    @classmethod
    def of(cls, replay: Replay) -> Self:
        return cls.model_validate(replay, from_attributes=True)


class LeftOut(BaseModel):
    """A delivery that is not replayed, because of another try of it."""

    delivery_id: str
    because_of: str = Field(description="the id of the other try")
    state: State = Field(description="of the other try")


class Replays(BaseModel):
    """What was replayed, what would be (`dry_run`), and how many are left for the next request."""

    replayed: list[Replayed] = Field(description="with `dry_run`: those that cannot be, and why")
    would_be: list[str]
    left_out: list[LeftOut]
    left: int
    next: str | None = Field(description="`after` of the next request; null: nothing is left")
    to: str | None = Field(description="the newest of those that were found; null: there are none")

    @staticmethod
    def others(pairs: Sequence[tuple[Entry, Entry]]) -> list[LeftOut]:
        return [
            LeftOut(delivery_id=entry.id, because_of=other.id, state=other.state)
            for entry, other in pairs
        ]


class Past(BaseModel):
    """Rates, statuses and latencies by slots of time, the oldest first; docs/metrics.md has more.

    Where a value is null, the gateway did not run, or there was no request.
    """

    range: str
    route: str
    routes: list[str] = Field(description="those that are counted apart; all others are `others`")
    step: int = Field(description="seconds of a slot")
    since: str = Field(description="when the first slot begins, in ISO 8601")
    seconds: list[float] = Field(
        description="for which the gateway ran, and which the slot has the counts of"
    )
    received: list[int | None] = Field(description="requests that were answered")
    statuses: dict[str, list[int | None]] = Field(
        description="of them, by status; 5xx are those that have no list of their own"
    )
    failed_later: list[int | None] = Field(
        description="accepted deliveries whose task has failed; only of all routes"
    )
    waiting: list[float | None] = Field(description="requests under way, in the mean")
    p50: list[float | None] = Field(description="seconds in which half of them were answered")
    p99: list[float | None] = Field(description="the same for 99 of 100")

    @classmethod
    def of(cls, wanted: HistoryWanted, slots: Sequence[Slot], routes: list[str]) -> Self:
        def each(value: Callable[[Slot], T]) -> list[T | None]:
            return [value(slot) if slot.seconds else None for slot in slots]

        since = datetime.fromtimestamp(slots[0].time, UTC).isoformat()
        by_status = (each(lambda slot, at=at: slot.counts[at]) for at in range(len(STATUSES)))  # type: ignore[misc]
        return cls(
            range=wanted.range, route=wanted.route, routes=routes, step=RANGES[wanted.range][0],
            since=since, seconds=[round(slot.seconds, 1) for slot in slots],
            received=each(lambda slot: slot.received),
            statuses=dict(zip(STATUSES, by_status, strict=True)),
            failed_later=each(lambda slot: slot.counts[LATER]),
            waiting=each(lambda slot: round(slot.waiting, 3)),
            p50=each(lambda slot: slot.quantile(0.5)), p99=each(lambda slot: slot.quantile(0.99)),
        )  # fmt: skip


class DifferenceSeen(BaseModel):
    """By what a gateway differs from the one that was asked."""

    kind: Annotated[str, Field(json_schema_extra={"enum": [*KINDS]})]
    text: str
    wrong: bool = Field(description="false: it may differ for a while, as in an upgrade")


class GatewaySeen(Line):
    """A gateway as it has told of itself, which it does every few seconds."""

    is_lost: bool = Field(description="has it not been heard of for a while?")
    differences: list[DifferenceSeen] = Field(description="from the gateway that was asked")


class Seen(BaseModel):
    """The gateways of a deployment."""

    asked: str = Field(description="the name of the gateway that was asked")
    problem: str = Field(description="why the others are not known now; or empty")
    gateways: list[GatewaySeen]

    @classmethod
    def of(cls, gateways: Gateways) -> Self:
        found: dict[str, list[DifferenceSeen]] = {line.name: [] for line in gateways.lines}
        for each in gateways.differences:
            found[each.gateway].append(DifferenceSeen.model_validate(each, from_attributes=True))
        seen = [
            GatewaySeen(**line.model_dump(), is_lost=line.lost, differences=found[line.name])
            for line in gateways.lines
        ]
        return cls(asked=gateways.own.name, problem=gateways.problem, gateways=seen)


class FailureGroup(BaseModel):
    """Failures with the same route, task, end, and type and text of the error."""

    id: str
    state: str = Field(json_schema_extra={"enum": [NEW, AGAIN, STILL, MUTED, RESOLVED]})
    end: State = Field(description="of its deliveries")
    route: str
    task: str
    type: str = Field(description="of the error; or empty")
    text: str = Field(description="of the error, with placeholders such as {n} and {id}")
    count: int
    first: str = Field(description="ISO 8601, as are the other times")
    last: str
    muted: str = Field(description="until when; or empty")
    resolved: str = Field(description="when it was said to be; or empty")
    again: str = Field(description="when it has come back after that; or empty")
    latest: list[str] = Field(description="the ids of the four that have failed last")
    hours: list[int] = Field(description="how many in each of the last 24 hours, the oldest first")


class FailureGroups(BaseModel):
    """All groups of failures, the one that has failed last first."""

    groups: list[FailureGroup]
    notify: str = Field(description="the `kind` of `[notify]`; or empty")


class Done(BaseModel):
    """It was done."""

    said: str = Field("", description="what is to be seen now; or empty")


class Problem(BaseModel):
    """An error, as RFC 9457 describes it."""

    type: str
    title: str
    status: int
    detail: str
