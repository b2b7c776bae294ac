"""Go on where the broker refuses one of the worker's queues.

Celery would connect again and again, and consume none of them.

- The node of a classic queue is down (404): the others are consumed, and that one when it is back.
- A queue exists with other arguments (406): it is consumed as it is.
- A queue cannot have an argument (406), as a quorum queue no priorities: it is declared without it.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from celery import bootsteps

from appserver.reply_connection import ERRORS, reply_connection

PAUSE = 10.0  # seconds between looks whether a queue is there again

# The broker's reasons, with the queue's name, and with the name of an argument before it.
_is_away = re.compile(r"home node \S+ of durable queue '(.*)' in vhost .* is down").search
_differs = re.compile(r"inequivalent arg '(.*)' for queue '(.*)' in vhost").search
_is_invalid = re.compile(r"invalid arg '(.*)' for queue '(.*)' in vhost").search

log = logging.getLogger(__name__)


class AbsentQueues(bootsteps.StartStopStep):
    """Consume a consumer's `absent` queues again when they are there."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    _looking: Any = None

    def start(self, parent: Any) -> None:
        if getattr(parent, "absent", None):
            self._looking = parent.timer.call_repeatedly(PAUSE, look, (parent,))

    def stop(self, parent: Any) -> None:
        if self._looking is not None:
            parent.timer.cancel(self._looking)
            self._looking = None


def leave_out(consumer: Any, error: str) -> None:
    """Stop consuming the queue that is away according to the broker's `error`, if one is."""
    if found := _is_away(error):
        log.error("The queue %s is not consumed until its node is back (%s)", found[1], error)
        consumer.app.amqp.queues.deselect(found[1])
        consumer.absent |= {found[1]}


def take_as_it_is(consumer: Any, error: str) -> None:
    """Declare the queue that the broker's `error` names, if it names one, no more, or otherwise."""
    queues = consumer.app.amqp.queues
    if found := _differs(error):
        queues[found[2]].no_declare = True
        log.error(
            "The queue %s exists with other arguments, and is consumed as it is: name it with -Q"
            " instead of GATEWAY_QUEUES, declare it as it is, or delete it when it is empty (%s)",
            found[2],
            error,
        )
    elif found := _is_invalid(error):
        argument, name = found.groups()
        if (queues[name].queue_arguments or {}).pop(argument, None) is not None:
            log.error("The queue %s is declared without %s (%s)", name, argument, error)


def look(consumer: Any) -> None:
    """Consume each absent queue that is there again; asked on a connection of its own."""
    for queue in sorted(consumer.absent):
        try:
            with reply_connection(consumer.app).channel() as channel:
                channel.queue_declare(queue, passive=True)
        except ERRORS as exc:
            log.info("The queue %s is not there yet: %s", queue, exc)
            continue
        log.info("The queue %s is there again", queue)
        # Before Celery 5.7 only this connection would consume it, and not the next one.
        queues = consumer.app.amqp.queues
        queues.select_add(queues[queue])
        consumer.add_task_queue(queue)
        consumer.absent -= {queue}
