"""The task that a delivery becomes: its name, arguments, options, and where its message goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gateway.celery_message import Message, MessageOptions, encodable
from gateway.config import dynamic as dynamic_queues
from gateway.config import pointers
from gateway.config.arguments import ArgumentSetting, call_encoder
from gateway.config.pointers import KEY, Pointer, pointing
from gateway.delivery import Delivery
from gateway.errors import BadRequest
from gateway.model import Model, Seconds

# The bounds and names of fair queues. Workers consume them: `appserver.fair` has the same ones, and
# a test compares both. It is not imported here, as an app may have a module of that name.
FEWEST, MOST = 4, 128  # fair queues of one name
_FAIR = ".fair."


def fair_names(queue: str, number: int) -> list[str]:
    """Return the names of the `number` fair queues of `queue`.

    With 0 it is `queue` alone: it is one of a route's `queues`, or it is not fair.
    """
    return [f"{queue}{_FAIR}{n}" for n in range(number)] or [queue]


def fair_name_of(queue: str) -> str:
    """Return the name of which `queue` is a fair queue; its own where it is none."""
    return queue.partition(_FAIR)[0]


_ordering_key = pointing(
    f"{KEY}|param:[a-z0-9_]+", "is written as json:/pointer, header:NAME or param:name"
)
_fair_by = pointing(
    rf"{KEY}|query:[^\r\n]+|param:[a-z_][a-z0-9_]*|remote|source",
    "is written as json:/pointer, header:NAME, query:NAME, param:name, remote or source",
)
#: The largest priority that AMQP can carry.
_HIGHEST = 255
#: What a worker reads from a message's headers beside those of the protocol: attributes and methods
#: of its request, which a header of that name replaces, and how the body is compressed.
_READ = (
    "args", "as_execution_options", "callbacks", "called_directly", "chain", "children", "chord",
    "clear", "compression", "correlation_id", "delivery_info", "errbacks", "get", "group_index",
    "headers", "hostname", "is_eager", "kwargs", "logfile", "loglevel", "properties",
    "replaced_task_nesting", "reply_to", "soft_time_limit", "stamped_headers", "stamps", "taskset",
    "time_limit", "update", "utc",
)  # fmt: skip
#: Headers that `message_headers` must not have, and whose they are: those of Celery's protocol, and
#: those that RabbitMQ reads or writes, as it does the number of deliveries.
RESERVED = {
    **dict.fromkeys([*Message("", "", "", b"", {}).headers(), *_READ], "Celery"),
    **dict.fromkeys(["CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count"], "RabbitMQ"),
}
#: Arguments of a dynamic queue that follow `queue_expires`.
_OWN = ("x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key")

Queue = Annotated[str, Field(min_length=1), AfterValidator(pointers.check_name)]


class TaskSettings(Model):
    """Which task is called, how, and where its message goes. Times are in seconds.

    Without `args` and `kwargs` it is called as ``task(query, headers, body)``.
    """

    task: str = Field("api.core.main", min_length=1)
    """the task's name; never taken from the request"""
    args: list[ArgumentSetting] | None = None
    """(default: `query`, `headers`, `body`) the [arguments](#arguments) of the task, as pointers"""
    kwargs: dict[str, ArgumentSetting] | None = None
    """its arguments by name, as pointers"""
    queue: Annotated[Queue, AfterValidator(pointers.check_template)] = "celery"
    """the queue, which is the routing key on the default exchange. With pointers in its name it is
    [dynamic](#dynamic-queues): `"session-{param:session}"`"""
    queue_pattern: Annotated[str, AfterValidator(dynamic_queues.check_pattern)] | None = None
    """(default: needed with pointers in `queue`) a regular expression for the whole name of a
    dynamic queue; a name outside is a 400"""
    queue_limit: int = Field(100, ge=1, le=1_000)
    """how many dynamic queues of the route a process keeps; one more is a 503"""
    queue_expires: float = Field(600.0, ge=4, le=86_400)
    """seconds without use after which RabbitMQ deletes a dynamic queue; 4 to 86400, and at least
    four times `confirm_timeout`"""
    static_queue: Queue = "celery"
    """the queue whose workers are told to consume the dynamic ones; it gets the messages that wait
    too long"""
    queues: list[Queue] | None = Field(None, min_length=2)
    """two or more queues instead of one; `ordering_key` or `fair_by` chooses"""
    ordering_key: Annotated[str, _ordering_key] | None = None
    """`json:/pointer`, `header:NAME` or `param:name`: deliveries with the same value go to the same
    queue"""
    fair_by: Annotated[str, _fair_by] | None = None
    """`json:/pointer`, `header:NAME`, `query:NAME`, `param:name`, `remote` or `source`: who the
    publisher is. Each publisher gets an equal chance: its deliveries go to two of the route's fair
    queues ([queues.md](queues.md#fairness))"""
    fair_queues: int = Field(16, ge=FEWEST, le=MOST)
    """their number, 4 to 128. Their names are that of `queue` with `.fair.0` and so on. Or list
    them in `queues`"""
    declare: bool = True
    """declare the queue if it is missing; false: only check that it exists"""
    queue_type: Literal["classic", "quorum"] = "classic"
    """or `quorum`. Set it also if somebody else declares the queue (`declare = false`): the gateway
    then knows that a rejection may mean a lost leader"""
    queue_arguments: dict[str, str | int | bool] = {}
    """further arguments, as in `{ x-max-length = 1000, x-overflow = "reject-publish" }`"""
    exchange: Queue | None = None
    """(default: the default one) an exchange instead of a queue. The gateway declares no exchange
    and no binding. What the exchange routes to no queue is a 503"""
    routing_key: Annotated[
        str, AfterValidator(pointers.check_name), AfterValidator(pointers.check_template)
    ] = ""
    """the routing key with `exchange`, which may have pointers: `"orders.{event}"`"""
    message_headers: dict[Queue, Pointer] = {}
    """further headers of the message, for a headers exchange: `{ region = "header:x-region" }`"""
    priority: Annotated[int, Field(ge=0, le=_HIGHEST)] | Pointer | None = None
    """0 to 255, or a pointer to such a number; the queue needs `x-max-priority`"""
    countdown: Seconds | None = None
    """seconds until a worker may begin the task; not with quorum queues"""
    expires: Seconds | None = None
    """seconds after which no worker begins it any more"""
    time_limit: int | None = Field(None, ge=1, le=86_400)
    """(default: the worker's) seconds that the task may run, in pools that have limits"""
    soft_time_limit: int | None = Field(None, ge=1, le=86_400)
    """(default: the worker's) seconds after which the task gets an exception, in pools that have
    limits"""
    ignore_result: bool = False
    """with `accept`: nothing is stored, and the 202 names no URL"""
    link_error: str | None = Field(None, min_length=1)
    """the name of a task that is called if this one fails (Celery's errback)"""

    def problems(self) -> Iterator[str]:
        """Yield what does not fit together in these settings, each with its setting."""
        yield from _of_dynamic(self)
        yield from _of_fairness(self)
        yield from _of_queues(self)
        yield from _of_times(self)
        yield from _of_call(self)

    def places(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each setting that has a pointer, and the pointer."""
        yield from (("args", each.place) for each in self.args or ())
        yield from (("kwargs", each.place) for each in (self.kwargs or {}).values())
        yield from (("message_headers", place) for place in self.message_headers.values())
        for name in ("routing_key", "queue"):
            yield from ((name, place) for place in pointers.pointers_in(getattr(self, name)))
        for name in ("priority", "ordering_key", "fair_by"):
            if isinstance(place := getattr(self, name), str):
                yield name, place

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

    @property
    def consumed_as(self) -> list[str]:
        """The names that a worker's -Q has for its queues."""
        return self.queue_names if self.fair_by is None or self.queues else [self.queue]

    @property
    def fair_setting(self) -> str:
        """What GATEWAY_FAIR_QUEUES has for its queues; empty: they are not fair ones."""
        if self.fair_by is None:
            return ""
        return ",".join(self.queues) if self.queues else f"{self.queue}:{self.fair_queues}"

    def arguments(self) -> dict[str, str | int | bool]:
        """Return the arguments with which its queues are declared, but for dynamic ones."""
        if self.dynamic:
            return {}
        kind = {} if self.queue_type == "classic" else {"x-queue-type": self.queue_type}
        return {**kind, **self.queue_arguments}

    def dynamic_arguments(self) -> dict[str, str | int | bool]:
        """Return the arguments with which its dynamic queues are declared."""
        return {
            **self.queue_arguments,
            # The default of a virtual host may be another type, whose expiry is not renewed.
            "x-queue-type": "classic",
            "x-expires": int(1000 * self.queue_expires),
            "x-message-ttl": int(1000 * dynamic_queues.WAITING * self.queue_expires),
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.static_queue,
        }

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
            found = ((name, find(delivery)) for name, find in self._extra.items())
            message.extra = {name: encodable(text) for name, text in found}

    # Not pydantic's private attributes: those are slow, and each request reads these. -----------

    @cached_property
    def _special(self) -> bool:
        rare = (self.countdown, self.expires, self.priority)
        return bool(self.message_headers) or any(each is not None for each in rare)

    @cached_property
    def _options(self) -> MessageOptions:
        return MessageOptions(
            exchange=self.exchange or "",
            time_limit=self.time_limit,
            soft_time_limit=self.soft_time_limit,
            ignore_result=self.ignore_result,
            delayed=self.countdown is not None,
        )

    @cached_property
    def _tracked(self) -> MessageOptions:
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


def worker_command(queues: Iterable[str]) -> str:
    """Return the command that starts a worker of these queues, named as -Q has them."""
    return f"celery -A APP worker -n NAME@%h -Q {','.join(queues)}"


class FurtherTask(TaskSettings):
    """A task that a delivery starts beside the route's own; nobody waits for its result."""

    task: str = Field(min_length=1)
    ignore_result: bool = True

    @cached_property
    def written(self) -> str:
        """What the configuration says of this task, as one text."""
        return self.model_dump_json(exclude_unset=True)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from dropped(self)
        if self.dynamic:
            yield "queue: only the route's own task may have a dynamic queue"
        if self.fair_by is not None:
            yield "fair_by: only the route's own task may have fair queues"


def dropped(task: TaskSettings) -> Iterator[str]:
    """Yield which arguments of its queues let RabbitMQ drop messages that were confirmed.

    https://www.rabbitmq.com/docs/maxlength#overflow-behaviour, https://www.rabbitmq.com/docs/ttl
    """
    own = task.queue_arguments
    # On the default exchange without a routing key it would come back, which RabbitMQ ends.
    kept = task.dynamic or own.get("x-dead-letter-exchange") or "x-dead-letter-routing-key" in own
    limits = sorted(own.keys() & {"x-max-length", "x-max-length-bytes"})
    if limits and not kept and not str(own.get("x-overflow")).startswith("reject-publish"):
        yield (
            f"queue_arguments: with {limits[0]} RabbitMQ drops the oldest message of a full queue, "
            'though its sender has been told that it was taken; add x-overflow = "reject-publish", '
            "so that the new one is a 503"
        )
    if "x-message-ttl" in own and not kept:
        yield (
            "queue_arguments: with x-message-ttl RabbitMQ drops what waits too long, though its "
            "sender has been told that it was taken; add x-dead-letter-exchange"
        )
    if "x-expires" in own and not task.dynamic:
        yield (
            "queue_arguments: with x-expires RabbitMQ deletes a queue that no worker consumes, and "
            "all that was taken; leave it out"
        )


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


def _of_call(task: TaskSettings) -> Iterator[str]:
    for name in task.message_headers:
        if name in RESERVED:
            yield f"message_headers: {name} is one of {RESERVED[name]}'s own"
    for name in task.kwargs or ():
        if not name.isidentifier():
            yield f"kwargs: {name!r} is no name of an argument"
    if any(argument.optional for argument in task.args or ()):
        yield "args: an optional argument needs a name; move it to kwargs"


def _of_queues(task: TaskSettings) -> Iterator[str]:
    own = not task.dynamic and (task.queue_type != "classic" or task.queue_arguments)
    if own and task.declare and "celery" in task.queue_names:
        yield (
            "queue: `celery` cannot have a queue_type or queue_arguments, because Celery declares "
            "it without, unless its app says so; give the queue another name, or leave it to the "
            "workers (declare = false)"
        )
    if task.ordering_key is not None and task.queues is None and task.fair_by is None:
        yield "ordering_key: set it together with queues, a list of two or more"
    if task.queues is not None and task.ordering_key is None and task.fair_by is None:
        yield (
            "queues: ordering_key or fair_by says which of them a delivery goes to; set one, or "
            "name a single one in queue"
        )
    if task.queues and len(set(task.queues)) != len(task.queues):
        yield "queues: name each queue only once"
    if task.exchange is None and task.routing_key:
        yield "routing_key: set it together with exchange; `queue` names a queue"
    if task.exchange is not None and ("queue" in task.model_fields_set or task.queues):
        yield "exchange: its bindings name the queues; leave out queue and queues"


def _of_fairness(task: TaskSettings) -> Iterator[str]:
    if task.fair_by is None:
        if "fair_queues" in task.model_fields_set:
            yield "fair_queues: set it together with fair_by"
        return
    if task.ordering_key is not None:
        yield (
            "fair_by: it spreads a publisher's deliveries over two queues, and ordering_key "
            "keeps them in one; leave out one of the two"
        )
    if task.queues is not None and "fair_queues" in task.model_fields_set:
        yield "fair_queues: `queues` says how many there are; leave out one of them"
    if task.exchange is not None:
        yield "fair_by: an exchange chooses the queues itself; leave out one of them"
    if "{" in task.queue:
        yield "fair_by: the name of its queue cannot have pointers; leave out one"
    if any(len(name.encode()) > pointers.MAX_NAME for name in task.queue_names):
        yield f"queue: a fair queue's name has over {pointers.MAX_NAME} bytes; choose a shorter one"


def _of_times(task: TaskSettings) -> Iterator[str]:
    if task.countdown is not None and task.queue_type == "quorum":
        yield (
            "countdown: a worker would hold the message back beside its prefetch limit, which "
            "quorum queues do not allow; use a classic queue"
        )
    if (task.expires or inf) <= (task.countdown or 0):
        yield "expires: has to be above countdown, or the task would never run"
    if (task.soft_time_limit or 0) >= (task.time_limit or inf):
        yield "soft_time_limit: has to be below time_limit"


def _of_dynamic(task: TaskSettings) -> Iterator[str]:
    """Yield what does not fit together in the settings of a dynamic queue."""
    places = pointers.pointers_in(task.queue)
    own = {"queue_limit", "queue_expires", "static_queue"} & task.model_fields_set
    if task.queue_pattern is None:
        if places:
            yield (
                "queue_pattern: is needed with pointers in queue, or senders could make queues of "
                'any name; set it to what a name may be, as in "session-[a-z0-9]{1,32}"'
            )
        if own:
            yield f"{min(own)}: is for a queue with pointers in its name; leave it out"
        return
    if not places:
        yield "queue_pattern: is for a queue with pointers in its name; leave it out"
    if task.queues is not None:
        yield "queues: `queue` has pointers and names all queues; leave out one of both"
    if task.queue_type != "classic":
        yield (
            "queue_type: a dynamic queue is classic, because declaring a quorum queue again does "
            "not renew its expiry; leave it out"
        )
    if not task.declare:
        yield "declare: dynamic queues are declared on first use; leave it out"
    if fixed := sorted(set(_OWN) & task.queue_arguments.keys()):
        yield f"queue_arguments: {fixed[0]} of a dynamic queue follows queue_expires"
    if re.fullmatch(task.queue_pattern, task.static_queue):
        yield "static_queue: must not fit queue_pattern, as it does not expire"
    if (task.countdown or 0) >= task.queue_expires:
        yield "countdown: has to be below queue_expires, as the worker holds the message meanwhile"
