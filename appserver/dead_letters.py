"""Publish dead letters to the exchange ``gateway.dead`` and its queue.

Dead letters are messages that workers cannot process. Those of a quorum queue are published by the
broker, those of a classic queue by the worker that finds them. All stay in the queue until an
operator removes them.
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

DECLARE_TIMEOUT = 10.0  # seconds by which a worker's start may be delayed

LONGEST_ERROR = 500  # characters of an error in a dead letter's header

#: Errors of the broker and of its connection, and a rejected message.
ERRORS = (*CONNECTION_ERRORS, amqp.exceptions.MessageNacked)

#: Properties that are removed: a dead letter does not expire, and RabbitMQ refuses a user id other
#: than the publisher's.
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
        # Not on the worker's own connection: if most nodes are down, a quorum queue cannot be
        # declared, and RabbitMQ closes the connection, although the queue `celery` may still work.
        connection = reply_connection(parent.app)
        try:
            with connection.channel(DECLARE_TIMEOUT) as channel:
                declare(channel)
        except ERRORS as exc:
            _warn(exc)
        connection.close()


def declare(channel: amqp.Channel) -> None:
    """Declare the exchange and its queue; log a warning where the broker refuses that."""
    try:
        DEAD_LETTER_QUEUE(channel).declare()
    except amqp.ChannelError as exc:
        _warn(exc)


def _warn(exc: Exception) -> None:
    log.warning(
        "The exchange and queue %r cannot be declared; if they do not exist, messages that crash"
        " their workers stay in their queues: %s",
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

    Its header ``dead_letter`` has the reason `why`, and the properties that were removed; `body` is
    not compressed. `timeout` is in seconds. Raises one of `ERRORS` where it is not known that the
    message is in the queue.
    """
    left_out = {name: properties[name] for name in _LEFT_OUT if name in properties}
    why = {**why, **left_out, "at": datetime.now(UTC).isoformat()}
    headers = {**properties.get("application_headers", {}), "dead_letter": why}
    if compression := headers.pop("compression", None):  # which the body has no longer
        why["compression"] = compression
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


def publish_unusable(app: Any, message: Any, exc: Exception, timeout: float) -> bool:
    """Publish a `message` that cannot be begun because of `exc`; tell whether that is confirmed.

    `timeout` is in seconds.
    """
    why = {
        "reason": "unusable",
        "error": repr(exc)[:LONGEST_ERROR],
        "exchange": message.delivery_info["exchange"],
        "routing_key": message.delivery_info["routing_key"],
    }
    task_id = message.headers.get("id")
    try:
        publish(app, message.properties, message.body, why, timeout)
    except ERRORS as error:
        log.error(
            "The message of task %s cannot be begun, nor published as a dead letter: %s",
            task_id,
            error,
        )
        return False
    log.error("The message of task %s cannot be begun, and is a dead letter: %r", task_id, exc)
    return True
