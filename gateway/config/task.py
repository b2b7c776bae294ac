"""The task that a delivery becomes: its name, arguments, options, and where its message goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from gateway.celery_message import Message, Options
from gateway.config import dynamic as dynamic_queues
from gateway.config import pointers, task_checks
from gateway.config.arguments import ArgumentSetting, call_encoder
from gateway.config.fair_names import FEWEST, MOST, fair_names
from gateway.config.pointers import KEY, Pointer, pointing
from gateway.delivery import Delivery
from gateway.errors import BadRequest
from gateway.model import Model, Seconds

_ordering_key = pointing(
    f"{KEY}|param:[a-z0-9_]+", "is written as json:/pointer, header:NAME or param:name"
)
_fair_by = pointing(
    rf"{KEY}|query:[^\r\n]+|param:[a-z_][a-z0-9_]*|remote|source",
    "is written as json:/pointer, header:NAME, query:NAME, param:name, remote or source",
)
#: The largest priority that AMQP can carry.
_HIGHEST = 255

Queue = Annotated[str, Field(min_length=1), AfterValidator(pointers.check_name)]


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
    fair_queues: int = Field(16, ge=FEWEST, le=MOST)
    declare: bool = True
    queue_type: Literal["classic", "quorum"] = "classic"
    queue_arguments: dict[str, str | int | bool] = {}
    exchange: Queue | None = None
    routing_key: Annotated[
        str, AfterValidator(pointers.check_name), AfterValidator(pointers.check_template)
    ] = ""
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
        task_checks.check(self)
        return self

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
            return self.queues or fair_names(self.queue, self.fair_queues)
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
        tracked: bool = False,
    ) -> Message:
        """Return the message for `delivery`.

        `store` asks the worker to store its result; `expires`, in seconds since the epoch, is the
        time after which nobody needs the task; `queue` is its queue where that is chosen already;
        `tracked` asks the app server to store that it has begun. Raises `BadRequest` where a value
        is missing.
        """
        message = Message(
            task_id=task_id,
            task=self.task,
            queue=queue or self._destination(delivery),
            body=self._call(delivery),
            delivery=delivery.table(store=store and not self.ignore_result),
            persistent=persistent,
            expires=expires,
            options=self._tracked if tracked else self._options,
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
    def _tracked(self) -> Options:
        return replace(self._options, track_started=not self.ignore_result)

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
        return call_encoder(self.args, self.kwargs, self.link_error)

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
        task_checks.check_further(self)
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
