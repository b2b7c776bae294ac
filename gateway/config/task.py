"""The task that a delivery becomes: its name, arguments, options, and where its message goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from math import inf
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.celery_message import Message, Options, embedding, encode_body, encode_call
from gateway.config import dynamic as dynamic_queues
from gateway.config import pointers
from gateway.config.pointers import KEY, MAX_NAME, Pointer
from gateway.delivery import Delivery
from gateway.errors import BadRequest
from gateway.model import Model, Seconds, matching
from gateway.sources.fields import MISSING

_ordering_key = matching(
    f"{KEY}|param:[a-z0-9_]+", "is written as json:/pointer, header:NAME or param:name"
)
_fair_by = matching(
    rf"{KEY}|query:[^\r\n]+|param:[a-z_][a-z0-9_]*|remote|source",
    "is written as json:/pointer, header:NAME, query:NAME, param:name, remote or source",
)
#: What the names of a route's fair queues have after the name of its `queue`.
_FAIR = ".fair."
#: The largest priority that AMQP can carry.
_HIGHEST = 255
#: The headers of Celery's protocol, which `message_headers` must not replace.
_CELERYS = frozenset(Message("", "", "", b"", {}).headers()) | {"stamps", "stamped_headers"}


def _short(text: str) -> str:
    if len(text.encode()) > MAX_NAME:
        raise ValueError(f"has over {MAX_NAME} bytes, which AMQP does not allow")
    return text


Queue = Annotated[str, Field(min_length=1), AfterValidator(_short)]


class Argument(Model):
    """A value of the delivery, and what stands for it where the delivery has none."""

    place: Pointer = Field(alias="from")
    default: Any = MISSING

    def extractor(self) -> Callable[[Delivery], Any]:
        """Return the function that extracts the value, and raises `BadRequest` without one."""
        extract, place, default = pointers.extractor(self.place), self.place, self.default

        def found(delivery: Delivery) -> Any:
            value = extract(delivery)
            if value is MISSING:
                value = default
            if value is MISSING:
                raise BadRequest(f"{place} is missing.")
            return value

        return found


def _argument(value: Any) -> Any:
    return {"from": value} if isinstance(value, str) else value


ArgumentSetting = Annotated[Argument, BeforeValidator(_argument)]


class TaskSettings(Model):
    """Which task is called, how, and where its message goes. Times are in seconds.

    Without `args` and `kwargs` it is called as ``task(query, headers, body)``.
    """

    task: str = Field("api.core.main", min_length=1)
    args: list[ArgumentSetting] | None = None
    kwargs: dict[str, ArgumentSetting] | None = None
    queue: Annotated[Queue, AfterValidator(pointers.check_template)] = "celery"
    queue_pattern: Annotated[str, AfterValidator(dynamic_queues.check_pattern)] | None = None
    queue_limit: int = Field(100, ge=1, le=1_000)
    queue_expires: float = Field(600.0, ge=4, le=86_400)
    static_queue: Queue = "celery"
    queues: list[Queue] | None = Field(None, min_length=2)
    ordering_key: Annotated[str, _ordering_key] | None = None
    fair_by: Annotated[str, _fair_by] | None = None
    fair_queues: int = Field(16, ge=4, le=128)
    declare: bool = True
    queue_type: Literal["classic", "quorum"] = "classic"
    queue_arguments: dict[str, str | int | bool] = {}
    exchange: Queue | None = None
    routing_key: Annotated[str, AfterValidator(_short), AfterValidator(pointers.check_template)] = (
        ""
    )
    message_headers: dict[Queue, Pointer] = {}
    priority: Annotated[int, Field(ge=0, le=_HIGHEST)] | Pointer | None = None
    countdown: Seconds | None = None
    expires: Seconds | None = None
    time_limit: int | None = Field(None, ge=1, le=86_400)
    soft_time_limit: int | None = Field(None, ge=1, le=86_400)
    ignore_result: bool = False
    link_error: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _task_consistent(self) -> TaskSettings:
        dynamic_queues.check(self)
        own = not self.dynamic and (self.queue_type != "classic" or self.queue_arguments)
        if own and "celery" in self.queue_names:
            raise ValueError(
                "queue: `celery` cannot have a queue_type or queue_arguments, because Celery "
                "declares it without; give the queue another name"
            )
        self._check_fairness()
        if (self.queues is None) != (self.ordering_key is None) and self.fair_by is None:
            raise ValueError(
                "ordering_key: set it together with queues, a list of two or more (queues: with "
                "ordering_key or fair_by)"
            )
        if self.queues and len(set(self.queues)) != len(self.queues):
            raise ValueError("queues: name each queue only once")
        if self.exchange is None and self.routing_key:
            raise ValueError("routing_key: set it together with exchange; `queue` names a queue")
        if self.exchange is not None and ("queue" in self.model_fields_set or self.queues):
            raise ValueError("exchange: its bindings name the queues; leave out queue and queues")
        if self.countdown is not None and self.queue_type == "quorum":
            raise ValueError(
                "countdown: a worker would hold the message back beside its prefetch limit, which "
                "quorum queues do not allow; use a classic queue"
            )
        if (self.expires or inf) <= (self.countdown or 0):
            raise ValueError("expires: has to be above countdown, or the task would never run")
        if (self.soft_time_limit or 0) >= (self.time_limit or inf):
            raise ValueError("soft_time_limit: has to be below time_limit")
        for name in self.message_headers:
            if name in _CELERYS:
                raise ValueError(f"message_headers: {name} is one of Celery's own")
        for name in self.kwargs or ():
            if not name.isidentifier():
                raise ValueError(f"kwargs: {name!r} is no name of an argument")
        return self

    def _check_fairness(self) -> None:
        if self.fair_by is None:
            if "fair_queues" in self.model_fields_set:
                raise ValueError("fair_queues: set it together with fair_by")
            return
        if self.ordering_key is not None:
            raise ValueError(
                "fair_by: it spreads a publisher's deliveries over two queues, and ordering_key "
                "keeps them in one; leave out one of the two"
            )
        if self.queues is not None and "fair_queues" in self.model_fields_set:
            raise ValueError("fair_queues: `queues` says how many there are; leave out one of them")
        if self.exchange is not None:
            raise ValueError(
                "fair_by: an exchange chooses the queues itself; leave out one of them"
            )
        if "{" in self.queue:
            raise ValueError("fair_by: the name of its queue cannot have pointers; leave out one")
        _short(self.queue_names[-1])

    def places(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each setting that has a pointer, and the pointer."""
        for argument in self.args or ():
            yield "args", argument.place
        for argument in (self.kwargs or {}).values():
            yield "kwargs", argument.place
        for place in self.message_headers.values():
            yield "message_headers", place
        for place in pointers.pointers_in(self.routing_key):
            yield "routing_key", place
        for place in pointers.pointers_in(self.queue):
            yield "queue", place
        if isinstance(self.priority, str):
            yield "priority", self.priority
        if self.ordering_key is not None:
            yield "ordering_key", self.ordering_key
        if self.fair_by is not None:
            yield "fair_by", self.fair_by

    # Not a property: each request reads it.
    @cached_property
    def dynamic(self) -> bool:
        """Are its queues declared on first use, by names that have pointers?"""
        return self.queue_pattern is not None

    @property
    def queue_names(self) -> list[str]:
        """The queues to which its messages may go; none where an exchange chooses them.

        Of a route with dynamic queues it is the static one.
        """
        if self.exchange is not None:
            return []
        if self.fair_by is not None:
            made = (f"{self.queue}{_FAIR}{number}" for number in range(self.fair_queues))
            return self.queues or list(made)
        return self.queues or [self.static_queue if self.dynamic else self.queue]

    def arguments(self) -> dict[str, str | int | bool]:
        """Return the arguments with which its queues are declared, but for dynamic ones."""
        if self.dynamic:
            return {}
        kind = {} if self.queue_type == "classic" else {"x-queue-type": self.queue_type}
        return {**kind, **self.queue_arguments}

    def message(
        self,
        delivery: Delivery,
        task_id: str,
        store: bool,
        persistent: bool,
        expires: float | None,
        queue: str = "",
    ) -> Message:
        """Return the message for `delivery`.

        `store` asks the worker to store its result; `expires`, in seconds since the epoch, is the
        time after which nobody needs the task; `queue` is its queue where that is chosen already.
        Raises `BadRequest` where a value is missing.
        """
        message = Message(
            task_id=task_id,
            task=self.task,
            queue=queue or self._destination(delivery),
            body=self._call(delivery),
            delivery=delivery.table(store=store and not self.ignore_result),
            persistent=persistent,
            expires=expires,
            options=self._options,
        )
        if self._special:
            self._set_options(message, delivery)
        return message

    def _set_options(self, message: Message, delivery: Delivery) -> None:
        if self.countdown is not None:
            message.eta = delivery.received_at + self.countdown
        if self.expires is not None:
            own = delivery.received_at + self.expires
            message.expires = own if message.expires is None else min(own, message.expires)
        if isinstance(self.priority, int):
            message.priority = self.priority
        elif self._priority is not None:
            message.priority = self._priority(delivery)
        if self.message_headers:
            message.extra = {name: find(delivery) for name, find in self._extra.items()}

    # Not pydantic's private attributes: those are slow, and each request reads these. -----------

    @cached_property
    def _special(self) -> bool:
        some = (self.countdown, self.expires, self.priority)
        return bool(self.message_headers) or any(each is not None for each in some)

    @cached_property
    def _options(self) -> Options:
        return Options(
            exchange=self.exchange or "",
            time_limit=self.time_limit,
            soft_time_limit=self.soft_time_limit,
            ignore_result=self.ignore_result,
            delayed=self.countdown is not None,
        )

    @cached_property
    def _destination(self) -> Callable[[Delivery], str]:
        """The function that returns a delivery's queue, or its routing key."""
        if self.exchange is not None:
            return pointers.filler(self.routing_key)
        if self.queues and self.ordering_key:
            return pointers.chooser(self.ordering_key, self.queues)
        if self.queue_pattern is not None:
            return _allowed(self.queue, self.queue_pattern)
        if self.fair_by is not None:
            # `relay/fairness.py` chooses again; without it one of the two is as good as the other.
            return lambda delivery: self.fair_pair(delivery)[0]
        return lambda _delivery: self.queue

    @cached_property
    def fair_pair(self) -> Callable[[Delivery], tuple[str, str]]:
        """The function that returns the two queues of a delivery's publisher; with `fair_by`."""
        return pointers.pair_chooser(self.fair_by or "source", self.queue_names)

    @cached_property
    def _call(self) -> Callable[[Delivery], bytes]:
        """The function that encodes the call of the task."""
        embed = embedding(self.link_error)
        if self.args is None and self.kwargs is None:
            return lambda delivery: encode_body(
                delivery.query, delivery.headers, delivery.body, embed
            )
        args = [argument.extractor() for argument in self.args or ()]
        kwargs = {name: argument.extractor() for name, argument in (self.kwargs or {}).items()}
        return lambda delivery: encode_call(
            [find(delivery) for find in args],
            {name: find(delivery) for name, find in kwargs.items()},
            embed,
        )

    @cached_property
    def _priority(self) -> Callable[[Delivery], int] | None:
        return pointers.number(self.priority, _HIGHEST) if isinstance(self.priority, str) else None

    @cached_property
    def _extra(self) -> dict[str, Callable[[Delivery], str]]:
        return {name: pointers.finder(place) for name, place in self.message_headers.items()}


class FurtherTask(TaskSettings):
    """A task that a delivery starts beside the route's own; nobody waits for its result."""

    task: str = Field(min_length=1)
    ignore_result: bool = True

    @cached_property
    def written(self) -> str:
        """What the configuration says of this task, as one text."""
        return self.model_dump_json(exclude_unset=True)

    @model_validator(mode="after")
    def _static(self) -> FurtherTask:
        if self.dynamic:
            raise ValueError("queue: only the route's own task may have a dynamic queue")
        if self.fair_by is not None:
            raise ValueError("fair_by: only the route's own task may have fair queues")
        return self


def _allowed(template: str, pattern: str) -> Callable[[Delivery], str]:
    """Return the function that fills `template`; it raises `BadRequest` outside `pattern`."""
    fill, fits = pointers.filler(template), re.compile(pattern).fullmatch
    places = " and ".join(pointers.pointers_in(template))

    def filled(delivery: Delivery) -> str:
        name = fill(delivery)
        if not fits(name):
            raise BadRequest(f"{places} may not have this value: there is no queue {name!r}.")
        return name

    return filled
