"""Where messages go that no worker can take: the exchange ``gateway.dead`` and its queue.

A quorum queue's dead letters come from the broker, a classic queue's from the worker that finds
them. Both lie in the queue until somebody looks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import amqp
from celery import bootsteps

from appserver.queues import DEAD_LETTER_EXCHANGE, DEAD_LETTER_QUEUE
from appserver.reply_connection import ERRORS as CONNECTION_ERRORS
from appserver.reply_connection import reply_connection

DECLARE_TIMEOUT = 10.0  # seconds that a worker's start may be held up

#: What goes wrong with a broker, its refusal included.
ERRORS = (*CONNECTION_ERRORS, amqp.exceptions.MessageNacked)

#: A dead letter does not expire, and RabbitMQ refuses the name of a user who is not its publisher.
_LEFT_OUT = ("expiration", "user_id")

log = logging.getLogger(__name__)


class DeadLetters(bootsteps.StartStopStep):
    """Declare the dead-letter exchange and its queue on every connection to an AMQP broker.

    RabbitMQ accepts a queue whose dead-letter exchange is missing, and drops its dead letters.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def include_if(self, parent: Any) -> bool:
        return bool(parent.app.connection_for_read().transport.driver_type == "amqp")

    def start(self, parent: Any) -> None:
        # Not on the worker's own connection: a quorum queue cannot be declared where most nodes
        # are away, RabbitMQ closes the connection for that, and `celery` may work all the same.
        connection = reply_connection(parent.app)
        try:
            with connection.channel(DECLARE_TIMEOUT) as channel:
                declare(channel)
        except ERRORS as exc:
            _warn(exc)
        connection.close()


def declare(channel: amqp.Channel) -> None:
    """Declare the exchange and its queue; log a line where the broker refuses that."""
    try:
        DEAD_LETTER_QUEUE(channel).declare()
    except amqp.ChannelError as exc:
        _warn(exc)


def _warn(exc: Exception) -> None:
    log.warning(
        "Exchange and queue %r cannot be declared; where they do not exist, messages that keep"
        " losing their worker stay in their queue: %s",
        DEAD_LETTER_EXCHANGE,
        str(exc) or type(exc).__name__,
    )


def publish(
    app: Any,
    properties: Mapping[str, Any],
    body: str | bytes,
    why: Mapping[str, Any],
    timeout: float,
) -> None:
    """Publish a message with its own properties, headers and body, and wait for the confirm.

    Its header ``dead_letter`` says `why`, and what was left out. `timeout` is in seconds. Raises
    one of `ERRORS` where the message may not be in the queue; it may be there all the same.
    """
    left_out = {name: properties[name] for name in _LEFT_OUT if name in properties}
    why = {**why, **left_out, "at": datetime.now(UTC).isoformat()}
    headers = {**properties.get("application_headers", {}), "dead_letter": why}
    properties = {name: properties[name] for name in properties if name not in _LEFT_OUT}
    properties |= {"application_headers": headers, "delivery_mode": 2}
    with reply_connection(app).channel() as channel:
        declare(channel)
        channel.basic_publish_confirm(
            amqp.Message(body, **properties),
            exchange=DEAD_LETTER_EXCHANGE,
            mandatory=True,
            timeout=timeout,
        )
