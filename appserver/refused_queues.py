"""Consume the other queues while the broker refuses one, and that one when it no longer does.

Celery would connect again and again, and consume none of them. A queue is refused (404) while the
node of a classic one is down, and (406) if it exists with other arguments, or cannot have one of
them, as a quorum queue no priorities.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from celery import bootsteps

from appserver.reply_connection import ERRORS, reply_connection

PAUSE = 10.0  # seconds between looks whether a queue is still refused

#: The broker's reason, with the queue's name.
_refused = re.compile(
    r"(?:home node \S+ of durable|(?:inequivalent|invalid) arg '[^']*' for) queue '(.*)' in vhost '"
).search

log = logging.getLogger(__name__)


class RefusedQueues(bootsteps.StartStopStep):
    """Consume a consumer's `refused` queues again when the broker takes them."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    _looking: Any = None

    def start(self, parent: Any) -> None:
        if getattr(parent, "refused", None):
            self._looking = parent.timer.call_repeatedly(PAUSE, look, (parent,))

    def stop(self, parent: Any) -> None:
        if self._looking is not None:
            parent.timer.cancel(self._looking)
            self._looking = None


def leave_out(consumer: Any, error: str) -> None:
    """Stop consuming the queue that is refused according to the broker's `error`, if one is."""
    queues = consumer.app.amqp.queues
    if (found := _refused(error)) and found[1] in queues.consume_from:
        log.error(
            "The queue %s is not consumed until the broker takes it: a node has to be back, or the"
            " queue declared as it is, or deleted when it is empty (%s)",
            found[1],
            error,
        )
        queues.deselect(found[1])
        consumer.refused |= {found[1]}


def look(consumer: Any) -> None:
    """Consume each refused queue that can be declared; tried on a connection of its own."""
    queues = consumer.app.amqp.queues
    for name in sorted(consumer.refused):
        try:
            with reply_connection(consumer.app).channel() as channel:
                queues[name](channel).declare()
        except ERRORS as exc:
            log.info("The queue %s is still not consumed: %s", name, exc)
            continue
        log.info("The queue %s is consumed again", name)
        # Before Celery 5.7 only this connection would consume it, and not the next one.
        queues.select_add(queues[name])
        consumer.add_task_queue(name)
        consumer.refused -= {name}
