"""Encode Celery messages for one channel from templates, and check the broker's limits."""

from __future__ import annotations

from typing import Any

from gateway.amqp.frames import Template, fields
from gateway.celery_message import CONTENT_ENCODING, CONTENT_TYPE, Message, common_headers
from gateway.errors import BodyTooLarge, URITooLong

_MOST = 1_000  # templates: a few for each route


class Templates:
    """Encodes messages for a channel.

    `frame_max` is the frame size that was agreed with the broker, `largest` the largest body that
    it takes, both in bytes.
    """

    def __init__(self, channel: int, frame_max: int, largest: float):
        self._channel = channel
        self._frame_max = frame_max
        self._largest = largest
        self._made: dict[Any, Template] = {}

    def encode(self, message: Message, reply_to: str | None = None) -> bytes:
        """Return `message` as frames.

        Raises `BodyTooLarge`, and `URITooLong` where its headers do not fit: of the headers, only
        the query string and the path's parameters can be too long (see `Delivery.table`).
        """
        if len(message.body) > self._largest:
            raise BodyTooLarge(
                f"The message would have {len(message.body)} bytes; the broker takes "
                f"{self._largest}."
            )
        key = (
            message.task, message.queue, message.persistent, reply_to, message.options,
            message.priority,
        )  # fmt: skip
        template = self._made.get(key)
        if template is None:
            template = self._make(message, reply_to)
            if len(self._made) >= _MOST:
                self._made.clear()
            self._made[key] = template
        headers = fields(message.own_headers())
        if len(headers) > template.room:
            raise URITooLong(
                f"The query string and the path's parameters are too long: the message would have "
                f"{len(headers)} bytes of headers, and the broker takes {template.room}."
            )
        return template.message(message.task_id, headers, message.body)

    def _make(self, message: Message, reply_to: str | None) -> Template:
        return Template(
            self._channel,
            self._frame_max,
            message.queue,
            exchange=message.options.exchange,
            priority=message.priority,
            content_type=CONTENT_TYPE,
            content_encoding=CONTENT_ENCODING,
            delivery_mode=2 if message.persistent else 1,
            reply_to=reply_to,
            headers=common_headers(message.task, message.options),
        )
