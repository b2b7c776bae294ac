"""Commands to Celery's workers, in the form of `kombu.pidbox`.

https://docs.celeryq.dev/en/stable/userguide/workers.html#remote-control
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pika
from pika.channel import Channel

#: The exchange to which workers bind their queues for commands, unless they have another
#: `control_exchange` than `celery`.
EXCHANGE = "celery.pidbox"

PROPERTIES = pika.BasicProperties(
    content_type="application/json",
    content_encoding="utf-8",
    headers={"clock": 0, "expires": 0},  # workers read no expiry
)


def encode(
    command: str,
    arguments: Mapping[str, Any],
    workers: Sequence[str] | None = None,
    *,
    ticket: str = "",
    reply_to: str = "",
) -> bytes:
    """Return the body of a `command` to `workers`; None: to all.

    They answer to the queue `reply_to` where it is given, with `ticket` in the header of that name.
    """
    message: dict[str, Any] = {"method": command, "arguments": arguments, "destination": workers}
    if reply_to:
        own = {"exchange": "", "routing_key": reply_to}
        message |= {"ticket": ticket, "reply_to": own}
    return json.dumps(message).encode()


def publish(
    channel: Channel,
    command: str,
    arguments: Mapping[str, Any],
    workers: Sequence[str] | None = None,
    **reply: str,
) -> None:
    """Publish what `encode` returns, as a transient message that is not confirmed.

    If the exchange is missing, because no worker has declared it yet, the broker closes the
    channel.
    """
    channel.basic_publish(EXCHANGE, "", encode(command, arguments, workers, **reply), PROPERTIES)


def decode(body: bytes) -> Any:
    """Decode an answer; None where it is not JSON, as from a worker with another serializer."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
