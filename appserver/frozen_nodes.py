"""Leave a broker's node that is frozen, and try another one of the list first.

Such a node takes everything that is written to it, as TCP is the kernel's. So it is asked something
that it answers at once. Heartbeats show it later, as the broker wants them of a busy worker too.
"""

from __future__ import annotations

import logging
import socket
from typing import Any

import amqp
from amqp import spec
from celery import bootsteps

ASK = 1.0  # seconds without an answer, or anything else, after which a broker is asked
UNANSWERED = 5  # times `ASK` after which a worker gives its connection up

log = logging.getLogger(__name__)

#: A host and its port.
Node = tuple[str | None, int | None]


def node_of(link: Any) -> Node:
    """Return the node that a connection of kombu's leads to, or is to lead to."""
    return link.hostname, link.port


def begin_elsewhere(link: Any, left: Node | None) -> None:
    """Let a connection of kombu's that is not open yet try the node that was `left` last."""
    for _ in link.alt:
        if node_of(link) != left:
            return
        link.maybe_switch_next()


class LeaveFrozenNode(bootsteps.StartStopStep):
    """Give up the connection of the worker's queues where the broker does not answer any more.

    The time in which the worker is busy or stopped itself does not count.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    _looking: Any = None

    def start(self, parent: Any) -> None:
        connection = parent.connection.connection
        # Otherwise another thread has the timer.
        alone = parent.hub or getattr(parent.pool, "is_green", False)
        if alone and isinstance(connection, amqp.Connection):
            silence = Silence(connection, parent.task_consumer.channel)
            self._looking = parent.timer.call_repeatedly(ASK, silence.look)

    def stop(self, parent: Any) -> None:
        if self._looking is not None:
            parent.timer.cancel(self._looking)
            self._looking = None


class Silence:
    """How long the broker has sent nothing on a connection, which has this `channel`.

    One that has blocked the connection, as its memory is full, does not read the question.
    """

    def __init__(self, connection: amqp.Connection, channel: amqp.Channel):
        self._connection, self._channel = connection, channel
        self._received, self._quiet, self._blocked = -1, 0, False
        # Celery answers remote control on this connection, so it publishes, too.
        connection.on_blocked = lambda _reason: self._block(True)
        connection.on_unblocked = lambda: self._block(False)

    def _block(self, blocked: bool) -> None:
        self._blocked = blocked

    def look(self) -> None:
        """Look whether something has come; ask, or give up where the last question was in vain."""
        received = self._connection.bytes_recv
        if received != self._received or self._blocked:
            self._received, self._quiet = received, 0
            return
        self._quiet += 1
        if self._quiet == 1:
            # It changes nothing, and the answer is ignored.
            self._channel.send_method(spec.Channel.Flow, "b", (True,))
        elif self._quiet > UNANSWERED:
            log.warning("The broker does not answer: its connection is given up")
            # Whoever reads it finds its end.
            self._connection.transport.sock.shutdown(socket.SHUT_RDWR)
