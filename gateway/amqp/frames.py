"""Encode AMQP 0-9-1 messages from templates with the parts that do not change; no I/O.

A message is a method frame, a content header frame and, unless it is empty, body frames. A frame
is a type, a channel, the payload's length, the payload, and an octet that ends it.
https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf, 2.3.5 and 4.2
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from typing import Any

from pika.data import encode_value
from pika.exceptions import ShortStringTooLong

METHOD, HEADER, BODY = 1, 2, 3
END = b"\xce"
#: Bytes of a frame without its payload.
OVERHEAD = 8

#: Class id and method id in one number, with which a method frame begins.
PUBLISH, DELIVER, ACK, NACK = 0x3C0028, 0x3C003C, 0x3C0050, 0x3C0078
#: The flags of a content header's properties, in the order of the properties.
(
    CONTENT_TYPE, CONTENT_ENCODING, HEADERS, DELIVERY_MODE, PRIORITY, CORRELATION_ID, REPLY_TO,
) = (1 << bit for bit in range(15, 8, -1))  # fmt: skip

_LONGEST = 256  # bytes of the longest short string, with its length
_BASIC = 0x3C0000  # class and weight
_MANDATORY = b"\1"

_start = Struct(">BHI").pack
_content = Struct(">IIQ").pack
_long = Struct(">I").pack


def short(text: str) -> bytes:
    """Encode a short string; raises pika's ShortStringTooLong beyond 255 bytes."""
    encoded = text.encode()
    if len(encoded) > 255:
        raise ShortStringTooLong(encoded)
    return bytes((len(encoded),)) + encoded


_name = lru_cache(1024)(short)  # for names, which repeat; ids do not


def fields(table: Mapping[str, Any]) -> bytes:
    """Encode a table's fields, without the length that precedes a table."""
    pieces: list[bytes] = []
    for name, value in table.items():
        if type(value) is str:
            text = value.encode()
            pieces += _name(name), b"S", _long(len(text)), text
        elif type(value) is dict:
            inner = fields(value)
            pieces += _name(name), b"F", _long(len(inner)), inner
        else:
            pieces.append(_name(name))
            encode_value(pieces, value)
    return b"".join(pieces)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _start(kind, channel, len(payload)) + payload + END


class Template:
    """Encodes mandatory messages for one exchange and routing key that share most headers.

    `frame_max` is the frame size in bytes that was agreed with the broker; `headers` are those of
    all messages. Each message may have up to ``room`` bytes of headers of its own. All headers are
    in one frame, and the broker closes the connection for a frame that is too long.
    """

    def __init__(
        self,
        channel: int,
        frame_max: int,
        routing_key: str,
        *,
        exchange: str = "",
        priority: int | None = None,
        content_type: str,
        content_encoding: str,
        delivery_mode: int,
        reply_to: str | None,
        headers: Mapping[str, Any],
    ):
        flags = CONTENT_TYPE | CONTENT_ENCODING | HEADERS | DELIVERY_MODE | CORRELATION_ID
        if reply_to is not None:
            flags |= REPLY_TO
        if priority is not None:
            flags |= PRIORITY
        publish = _long(PUBLISH) + b"\0\0" + short(exchange) + short(routing_key) + _MANDATORY
        # Each piece ends where a part begins that differs from message to message.
        self._method = frame(METHOD, channel, publish) + _start(HEADER, channel, 0)[:3]
        self._properties = flags.to_bytes(2) + short(content_type) + short(content_encoding)
        self._headers = fields(headers)
        self._mode = bytes((delivery_mode,) if priority is None else (delivery_mode, priority))
        self._reply_to = (b"" if reply_to is None else short(reply_to)) + END
        self._fixed = 4 + 7 + len(self._properties) + 4 + len(self._headers)
        self._fixed += len(self._mode) + len(self._reply_to)
        self._channel = channel
        self._body_max = frame_max - OVERHEAD
        self.room = self._body_max - self._fixed - _LONGEST

    def message(self, correlation_id: str, headers: bytes, body: bytes) -> bytes:
        """Encode a message; `headers` are its own headers, encoded by `fields`."""
        correlation = short(correlation_id)
        return b"".join(
            (
                self._method,
                _content(self._fixed + len(headers) + len(correlation), _BASIC, len(body)),
                self._properties,
                _long(len(self._headers) + len(headers)),
                self._headers,
                headers,
                self._mode,
                correlation,
                self._reply_to,
                *self._bodies(body),
            )
        )

    def _bodies(self, body: bytes) -> list[bytes]:
        size = self._body_max
        if 0 < len(body) <= size:
            return [_start(BODY, self._channel, len(body)), body, END]
        return [frame(BODY, self._channel, body[i : i + size]) for i in range(0, len(body), size)]
