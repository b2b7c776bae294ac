"""Consume fair queues: N queues for one name, each with a small prefetch limit of its own.

A gateway route with ``fair_by`` assigns two of the N queues to each publisher. The broker sends a
worker only a few messages of each queue that are not acknowledged, so what a worker has received is
a few messages of each queue, however long the queues are: each publisher, not each message, has an
equal chance. Tasks are acknowledged late, so a publisher whose tasks hang holds no more of the
worker's pool than twice the limit.
https://www.rabbitmq.com/docs/consumer-prefetch
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from celery import Celery, bootsteps, signals
from celery.exceptions import ImproperlyConfigured
from kombu import Exchange, Queue
from kombu.common import QoS

from appserver.queues import QUEUE_ARGUMENTS, QUEUE_TYPE

#: A fair queue's prefetch limit is the size of the pool divided by this number, and at least 1. A
#: publisher has two queues, and so at most a quarter of a pool of 8 or more.
SHARE = 8
FEWEST, MOST = 4, 128  # fair queues of one name
TYPES = ("classic", QUEUE_TYPE)


class FairQueue(Queue):
    """A queue whose consumer has a prefetch limit of its own.

    `prefetch` is the limit of this queue's consumer, and `others` that of the consumers which are
    started after it; with a `prefetch` of 0 the channel's limit is not changed.
    """

    prefetch = others = 0

    def consume(self, *args: Any, **options: Any) -> Any:
        """Start a consumer, to which RabbitMQ gives the limit that was set last on the channel."""
        begin = partial(super().consume, *args, **options)
        if not self.prefetch:
            return begin()
        self.channel.basic_qos(0, self.prefetch, False)
        tag = begin()
        self.channel.basic_qos(0, self.others, False)
        return tag


class FairNames(bootsteps.Step):
    """Let ``-Q orders`` stand for the fair queues of ``orders``, beside the queue itself."""

    def create(self, worker: Any) -> None:
        queues = worker.app.amqp.queues
        try:
            found = _fair_queues(worker.app)
            _prefetch(os.environ)  # also where nothing is fair
        except ImproperlyConfigured as exc:
            # Celery would write a traceback, as of an error in its code.
            raise SystemExit(f"appserver: {exc}") from exc
        for name, some in found.items():
            if name in queues.consume_from:
                for queue in some:
                    queues.select_add(queue)


class FairPrefetch(bootsteps.StartStopStep):
    """Give each fair queue its prefetch limit, and all others the worker's, one by one.

    The worker's limit for the whole channel would let the first queues use it up, so it is removed.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        fair = [queue for queue in parent.task_consumer.queues if isinstance(queue, FairQueue)]
        connection = parent.connection
        if not fair or connection.transport.driver_type != "amqp":
            return
        limit = _prefetch(os.environ) or max(1, parent.pool.num_processes // SHARE)
        for queue in fair:
            queue.prefetch, queue.others = limit, parent.initial_prefetch_count
        channel = parent.task_consumer.channel
        # Celery 5.7 tells what it has set; before, it was the whole channel's unless a queue is a
        # quorum queue.
        if getattr(parent, "qos_global", not connection.qos_semantics_matches_spec):
            channel.basic_qos(0, 0, True)
        parent.qos_global = False
        channel.basic_qos(0, parent.initial_prefetch_count, False)
        # RabbitMQ does not change the limit of a consumer that has begun, so Celery's changes for
        # tasks with an ETA would have no effect; for the whole channel they would be wrong.
        parent.qos = QoS(lambda prefetch_count: None, parent.initial_prefetch_count)


def consume_fairly(app: Celery, fair: Mapping[str, int] | None) -> None:
    """Let the workers of `app` consume fair queues: their number by name, as ``{"orders": 16}``.

    A number of 0 stands for the queue of that name itself, where a route lists its `queues`.
    Without `fair` GATEWAY_FAIR_QUEUES is read when a worker starts. Raises ImproperlyConfigured
    where a number is wrong.
    """
    app.steps["worker"].add(FairNames)
    app.steps["consumer"].add(FairPrefetch)
    numbers = None if fair is None else {name: _number(name, n) for name, n in fair.items()}
    vars(app)["fair_queue_numbers"] = numbers

    def add(instance: Any, **_signal: object) -> None:
        if instance.app is app:
            # A signal's errors are only logged; with this one `FairNames` ends the worker.
            with suppress(ImproperlyConfigured):
                for some in _fair_queues(app).values():
                    for queue in some:
                        app.amqp.queues.select_add(queue)

    # Before the worker looks at -Q, so that without -Q they are consumed.
    signals.celeryd_init.connect(add, weak=False)


def _fair_queues(app: Any) -> dict[str, list[FairQueue]]:
    """Return the fair queues by the name that they have in routes."""
    numbers = app.fair_queue_numbers
    if numbers is None:
        numbers = read_numbers(os.environ)
    kind = os.environ.get("GATEWAY_FAIR_TYPE", TYPES[0])
    if kind not in TYPES:
        raise ImproperlyConfigured(
            f"GATEWAY_FAIR_TYPE is {kind!r}; it has to be {' or '.join(TYPES)}"
        )
    arguments = {"x-queue-type": QUEUE_TYPE, **QUEUE_ARGUMENTS} if kind == QUEUE_TYPE else None
    make: Any = FairQueue
    return {
        name: [
            # On the default exchange, to which the gateway publishes, so no binding can be missing.
            make(each, Exchange(""), routing_key=each, durable=True, queue_arguments=arguments)
            for each in fair_names(name, number)
        ]
        for name, number in numbers.items()
    }


def fair_names(queue: str, number: int) -> list[str]:
    """Return the names of the `number` fair queues of `queue`, as `gateway.config.task` does.

    With 0 it is `queue` alone, which is one of a route's `queues`.
    """
    return [f"{queue}.fair.{n}" for n in range(number)] or [queue]


def read_numbers(environ: Mapping[str, str]) -> dict[str, int]:
    """Read GATEWAY_FAIR_QUEUES, as ``orders:16,mail:8`` or ``a,b,c``.

    Raises ImproperlyConfigured.
    """
    numbers = {}
    for part in filter(None, map(str.strip, environ.get("GATEWAY_FAIR_QUEUES", "").split(","))):
        name, _, number = part.rpartition(":") if ":" in part else (part, "", "0")
        if not name or not number.isascii() or not number.isdecimal():
            raise ImproperlyConfigured(
                f"GATEWAY_FAIR_QUEUES has {part!r}; write a queue and the fair_queues of its route,"
                " as in orders:16"
            )
        numbers[name] = _number(name, int(number))
    return numbers


def _number(name: str, number: int) -> int:
    if not isinstance(number, int) or (number and not FEWEST <= number <= MOST):
        raise ImproperlyConfigured(
            f"the number of fair queues of {name} is {number!r}; it has to be the fair_queues of"
            f" its route, {FEWEST} to {MOST}"
        )
    return number


def _prefetch(environ: Mapping[str, str]) -> int:
    """Read GATEWAY_FAIR_PREFETCH; 0 where it is not set. Raises ImproperlyConfigured."""
    text = environ.get("GATEWAY_FAIR_PREFETCH", "")
    if not text:
        return 0
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1_000:
        raise ImproperlyConfigured(
            f"GATEWAY_FAIR_PREFETCH is {text!r}; it has to be a number of messages, 1 to 1000"
        )
    return int(text)
