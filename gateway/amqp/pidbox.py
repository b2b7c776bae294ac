"""Commands to Celery's workers, in the form of `kombu.pidbox`.

https://docs.celeryq.dev/en/stable/userguide/workers.html#remote-control
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pika
from pika.channel import Channel

#: The exchange to which workers bind their queues for commands.
_EXCHANGE = "celery.pidbox"

_PROPERTIES = pika.BasicProperties(
    content_type="application/json",
    content_encoding="utf-8",
    headers={"clock": 0, "expires": 0},  # workers read no expiry
)


def publish(
    channel: Channel,
    command: str,
    arguments: Mapping[str, Any],
    workers: Sequence[str] | None = None,
    **more: Any,
) -> None:
    """Publish `command` to `workers`; None: to all. `more` are further fields of the message.

    The message is transient and not confirmed. If the exchange is missing, because no worker has
    declared it yet, the broker closes the channel.
    """
    message = {"method": command, "arguments": arguments, "destination": workers, **more}
    channel.basic_publish(_EXCHANGE, "", json.dumps(message).encode(), _PROPERTIES)
