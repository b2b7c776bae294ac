"""A route: which requests it takes, the task they become, and how they are answered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gateway.answer import TEXT, Answer, of_outcome
from gateway.config import pointers
from gateway.config.late import Late
from gateway.config.pointers import KEY, MAX_NAME, Pointer, pointing
from gateway.config.redaction import Place, Redaction
from gateway.config.task import FurtherTask, TaskSettings, dropped
from gateway.delivery import PRIVATE_HEADERS, Delivery
from gateway.errors import BadRequest, RequestError
from gateway.model import Seconds, matching
from gateway.outcome import SUCCESS, Outcome
from gateway.sources.base import Source, Verified, as_list

PARAM = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
#: The path of result URLs; no route may use it.
RESULTS = "/results/"
#: The most different events of a batch: each is compared with the events of each route.
MAX_EVENTS = 1_000

# A request's path is decoded before it is compared with this.
_PATH = "has to begin with /, without a space, ?, # or %; write what %.. stands for, as in /café"
_idempotency = pointing(f"auto|none|{KEY}", "is auto, none, header:NAME or json:/pointer")
_content_type = matching(
    r"[\x20-\x7e]+", "has printable ASCII characters only, as in text/plain; charset=utf-8"
)
#: All statuses below a number, except some.
_final = re.compile(r"below ([2-6]\d\d)(?:, but (\d{3}(?:, \d{3})*))?").fullmatch


#: What a value in `when` may be: one of these.
_Wanted = Annotated[list[str | int | bool], BeforeValidator(as_list), Field(min_length=1)]


@cache
def final_statuses(text: str) -> frozenset[int]:
    """Return the statuses that `Route.final` names: later tries get the same answer.

    Raises ValueError where the text is no such one.
    """
    if (found := _final(text)) is None:
        raise ValueError("is written as in: below 500, but 408, 425, 429")
    end, without = found.groups("0")
    return frozenset(range(200, int(end))) - {int(each) for each in without.split(",")}


class Reading(NamedTuple):
    """How a task's result is read; the fields are those of its `Route`."""

    content_type: str
    final: str
    runs_once: bool

    def read(self, outcome: Outcome) -> tuple[Answer | None, bool]:
        """Return the answer for `outcome`, and whether it is final, so that later tries get it.

        There is no answer where the task has failed, or where its result cannot be one. Only a
        failed task lets the next try run it again, unless the route's tasks run once.
        """
        if outcome.state != SUCCESS:
            return None, self.runs_once
        try:
            answer = of_outcome(outcome, self.content_type)
        except RequestError:
            return None, True
        return answer, answer.status in final_statuses(self.final)


class Route(TaskSettings):
    """One path, or some events of the source on it, and the task that they become.

    In a `Config` it is complete: settings that the file leaves out have the source's default, or
    the gateway's. Before that, 0 and "" mean that a setting was left out. Times are in seconds.
    """

    path: Annotated[str, matching(r"/[^\s?#%]*", _PATH)]
    """begins with `/`; `{name}` stands for one segment"""
    source: str | None = None
    """a name from `[sources]`: that source verifies the requests; without one the route is
    unsigned"""
    events: list[str] | None = Field(None, min_length=1)
    """(default: all) the source's events that this route takes, as in `["push", "issues.*"]`; [a
    batch has several](sources.md#what-has-to-be-readable)"""
    when: dict[Pointer, _Wanted] = {}
    """(default: all) the deliveries that this route takes, by the values at [pointers](#pointers):
    `{ "json:/status" = ["paid", "refunded"], "header:x-env" = "live*" }`. All of them have to fit;
    `*` stands for any characters"""
    methods: list[Literal["GET", "POST", "PUT"]] = []
    """(default: the source's, or `["POST"]`) the methods of its deliveries: `GET`, `POST`, `PUT`;
    [of a GET the query stands for the body](sources.md#other-methods)"""
    answer: Literal["wait", "accept", "wait-then-accept"] = "wait"
    """`wait`: the task's result, else 504; `accept`: 202 once the broker has the message;
    `wait-then-accept`: the result until the deadline, then `fallback`
    ([delivery.md](delivery.md))"""
    deadline: Seconds = 0.0
    """(default: the source's, or `timeout`) seconds from the request's arrival"""
    tries: int = Field(0, ge=1, le=100)
    """(default: the source's, or 1) how often the sender tries; earlier tries are held until the
    last one"""
    retry_after: Seconds = 0.0
    """(default: the source's) seconds between its tries"""
    fallback: str | None = None
    """(default: the source's, or a 202) the body of the 200 that `wait-then-accept` gives at the
    deadline. On a route with a source, `accept` gives it, too"""
    prefer: bool = False
    """obey `Prefer: respond-async` and `Prefer: wait=N`"""
    journal: bool = True
    """keep its deliveries in the journal, where there is one"""
    redact: list[Place] = []
    """[pointers](#pointers) to values that nothing which the gateway keeps may have, as
    `["json:/card/number", "header:x-national-id"]`; [the task gets
    them](delivery.md#what-is-not-kept)"""
    idempotency: Annotated[str, _idempotency] = "auto"
    """where a delivery's identity comes from. `auto`: the source; `header:NAME`; `json:/pointer`;
    `none`"""
    idempotency_scope: Literal["caller", "route"] = "caller"
    """on an unsigned route: `caller`: a key belongs to the caller who sends it, known by its
    `Authorization` and `Cookie`; `route`: all callers share their keys"""
    final: str = "below 500, but 408, 425, 429"
    """the statuses of a task's answers that later tries get, too; after any other status the next
    try runs the task again"""
    content_type: Annotated[str, _content_type] = ""
    """(default: the source's, or `text/plain; charset=utf-8`) of a `str` result"""
    durable: bool = False
    """make messages persistent, so that they survive a restart of the broker"""
    also: Annotated[list[FurtherTask], Field(max_length=16)] = []
    """[further tasks](#further-tasks) of the same delivery"""
    task_id: Literal["random", "identity"] = "random"
    """`identity`, with `accept`: the task's id depends on the delivery's identity only, so that it
    is the same however often the sender sends it. A later try does not run such a task again, even
    if the task has failed. A delivery for which its source names no identity has a random id"""
    revoke: bool = False
    """with `wait` and without an identity: a task whose caller has disconnected, or whose deadline
    has passed, is revoked, so that no worker begins it. A task that has begun goes on. Each
    revocation goes to all workers; one that runs one task at a time (`solo`) may hear of it too
    late"""
    late: Late | None = None
    """where a result goes that comes after the answer: a sender's name, as `"slack"`, or a block
    ([late.md](late.md))"""

    @model_validator(mode="after")
    def _consistent(self) -> Route:
        # Also of its further tasks, as one that was wrong by itself would hide all else.
        further = (
            f"also[{i}].{text}" for i, task in enumerate(self.also) for text in task.problems()
        )
        if found := [*self.problems(), *further]:
            raise ValueError("\n".join(found))
        return self

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        params = PARAM.findall(self.path)
        if len(set(params)) != len(params) or "{" in PARAM.sub("", self.path):
            yield "path: write each parameter as {name}, with a different name each"
        if any(len(name) > MAX_NAME for name in params):
            yield f"path: a parameter's name has at most {MAX_NAME} characters"
        if self.path.startswith(RESULTS):
            yield f"path: {RESULTS} is reserved for result URLs; choose another path"
        for setting, place in self._all_places():
            kind, _, name = place.partition(":")
            if kind == "param" and name not in params:
                yield f"{setting}: the path has no parameter {name}"
        if self.ignore_result and (self.answer != "accept" or self.prefer):
            yield 'ignore_result: nobody may wait for the result; set answer = "accept"'
        if self.task_id == "identity" and (self.answer != "accept" or self.prefer):
            yield (
                "task_id: only a task that nobody waits for has an id of its "
                'delivery; set answer = "accept"'
            )
        if self.revoke and (self.answer != "wait" or self.prefer):
            yield (
                "revoke: a task whose delivery was accepted is wanted without a "
                'caller; set answer = "wait"'
            )
        if self.late is not None and (
            (self.answer == "wait" and not self.prefer) or self.ignore_result
        ):
            yield (
                "late: only what was answered without its result is answered late; set answer to "
                "wait-then-accept or accept, without ignore_result"
            )
        if self.events is not None and self.source is None:
            yield "events: only a source knows the event; name it in `source`"
        if self.answer != "wait" or self.prefer:
            yield from dropped(self)
        yield from self._of_redaction()

    def _of_redaction(self) -> Iterator[str]:
        """Yield what cannot be redacted: it is kept in another place, or sent from there."""
        named = {*pointers.pointers_in(self.queue), *pointers.pointers_in(self.routing_key)}
        late = () if self.late is None else self.late.places
        for place in self.redact:
            if place in named:
                yield f"redact: {place} names the queue, and so it is kept in RabbitMQ"
            if any(_within(each, place) for each in late):
                yield f"redact: a late answer needs {place}, which is kept until that is sent"

    def _all_places(self) -> Iterator[tuple[str, str]]:
        yield from self.places()
        for i, further in enumerate(self.also):
            yield from ((f"also[{i}].{setting}", place) for setting, place in further.places())
        yield from (("when", place) for place in self.when)
        yield from (("redact", place) for place in self.redact)

    @field_validator("final")
    @classmethod
    def _statuses(cls, text: str) -> str:
        final_statuses(text)
        return text

    def completed(self, scheme: type[Source] | None, timeout: float, amqp: bool) -> Route:
        """Return the route with the defaults for all settings that were left out.

        `timeout` is the gateway's, in seconds; `amqp` is whether the broker is an AMQP one.
        """
        if self.idempotency == "auto":
            identified = scheme is not None and scheme.identifies
        else:
            identified = self.idempotency != "none"
        # Without confirms it is not known whether an earlier try was taken, so tries cannot join.
        tries = scheme.tries if scheme and identified and amqp else 1
        fallback = scheme.fallback if scheme and self.fallback is None else self.fallback
        route = self.model_copy(
            update={
                "deadline": self.deadline or (scheme and scheme.deadline) or timeout,
                "tries": self.tries or tries,
                "retry_after": self.retry_after or (scheme.retry_after if scheme else 0.0),
                "fallback": fallback,
                "content_type": self.content_type or (scheme.content_type if scheme else TEXT),
                "idempotency": self.idempotency if identified else "none",
                "methods": self.methods or list(scheme.methods if scheme else ("POST",)),
            }
        )
        # Filled-in values do not count as set, so that a child fills them in itself.
        route.model_fields_set.intersection_update(self.model_fields_set)
        return route

    # Not one of pydantic's private attributes: those are slow, and each request reads this.
    @cached_property
    def identified(self) -> bool:
        """Do deliveries have an identity, by which later tries are recognized?"""
        return self.idempotency != "none"

    @property
    def runs_once(self) -> bool:
        """Is a failed task not run again? Its id would be that of the stored failure."""
        return self.task_id == "identity"

    @property
    def hold(self) -> float:
        """The time from the first try's arrival to the last one's, in seconds."""
        return (self.tries - 1) * self.retry_after

    @cached_property
    def redaction(self) -> Redaction | None:
        """What finds the values that are not kept; None: there are none."""
        return Redaction(self.redact) if self.redact else None

    def takes_event(self, event: str) -> bool:
        """Tell whether one of `events` is the name or the pattern of `event`, if there are any."""
        return self.events is None or any(pointers.glob(each)(event) for each in self.events)

    @cached_property
    def takes(self) -> Callable[[Delivery], bool]:
        """The function that tells whether the route takes a delivery, as `when` says."""
        return pointers.matcher(self.when)

    @cached_property
    def _chosen_key(self) -> Callable[[Delivery], str] | None:
        return pointers.finder(self.idempotency) if self.takes_chosen_keys else None

    def identity(self, delivery: Delivery, verified: Verified) -> str:
        """Return a text that is the same for all tries of `delivery`, and for no other delivery.

        Only for a route whose deliveries are `identified`. It is empty where this one has no
        identity. Raises `BadRequest` where the value that the operator has configured as the key is
        missing.
        """
        own = self._chosen_key(delivery) if self._chosen_key else verified.identity
        if not own:
            return ""
        params = sorted(delivery.params.items())
        caller = self._caller(delivery)
        return json.dumps(
            [delivery.source, delivery.route, self.task, params, verified.account, caller, own]
        )

    def _caller(self, delivery: Delivery) -> list[str]:
        """Return the credentials that distinguish callers who may have chosen the same key."""
        if self.source is not None or self.idempotency_scope == "route":
            return []
        return [delivery.headers.get(name, "") for name in sorted(PRIVATE_HEADERS)]

    @cached_property
    def reading(self) -> Reading:
        """How it reads the results of its tasks."""
        return Reading(self.content_type, self.final, self.runs_once)

    @property
    def takes_chosen_keys(self) -> bool:
        """Does a header or JSON value that the operator chose identify a delivery?"""
        return self.idempotency.startswith(("header:", "json:"))


def _within(place: str, other: str) -> bool:
    """Tell whether the value at one pointer is a part of that at the other one, or has it."""
    if not (place.startswith("json:") and other.startswith("json:")):
        return place == other or (other == "body" and place.startswith(("json:", "form:", "xml:")))
    return f"{place}/".startswith(f"{other}/") or f"{other}/".startswith(f"{place}/")


def taking(routes: Iterable[Route], event: str) -> Iterable[Route]:
    """Return the routes that take `event`, and then those that take a part of it.

    A batch has several names, which are joined by commas: a route that takes all of them takes it.
    Raises `BadRequest` where it has over `MAX_EVENTS` different ones.
    """
    if "," not in event:
        return (route for route in routes if route.takes_event(event))
    names = set(event.split(","))
    if len(names) > MAX_EVENTS:
        raise BadRequest(f"The delivery has over {MAX_EVENTS} different events.")

    def whole(route: Route) -> bool:
        return route.takes_event(event) or all(map(route.takes_event, names))

    fitting = [route for route in routes if whole(route) or any(map(route.takes_event, names))]
    return sorted(fitting, key=whole, reverse=True)
