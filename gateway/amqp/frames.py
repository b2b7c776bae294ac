"""Encode AMQP 0-9-1 messages, and find confirms and replies in what a broker sends; no I/O.

A message is a method frame, a content header frame and, unless it is empty, body frames. A frame
is a type, a channel, the payload's length, the payload, and an octet that ends it. Messages are
encoded from templates with the parts that do not change.
https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf, 2.3.5 and 4.2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct
from typing import Any

from pika.data import encode_value
from pika.exceptions import BodyTooLongError, ShortStringTooLong
from pika.spec import BasicProperties

from gateway.celery_message import MAX_STORED

METHOD, HEADER, BODY = 1, 2, 3
END = b"\xce"
#: Bytes of a frame without its payload.
OVERHEAD = 8

#: Class id and method id in one number, with which a method frame begins.
PUBLISH, DELIVER, ACK, NACK = 0x3C0028, 0x3C003C, 0x3C0050, 0x3C0078
#: The flags of a content header's properties, in the order of the properties.
(
    HAS_CONTENT_TYPE, HAS_CONTENT_ENCODING, HAS_HEADERS, HAS_DELIVERY_MODE, HAS_PRIORITY,
    HAS_CORRELATION_ID, HAS_REPLY_TO,
) = (1 << bit for bit in range(15, 8, -1))  # fmt: skip

_LONGEST = 256  # bytes of the longest short string, with its length
_BASIC = 0x3C0000  # class and weight
_MANDATORY = b"\1"

_start = Struct(">BHI").pack
_content = Struct(">IIQ").pack
_long = Struct(">I").pack

_CONFIRMS = frozenset((ACK, NACK))

_read_frame = Struct(">BHI").unpack_from
_read_long = Struct(">I").unpack_from
_read_confirm = Struct(">QB").unpack_from
_read_content = Struct(">QH").unpack_from


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

    `frame_max` is the frame size in bytes that was agreed with the broker; `shared` are the
    properties of all messages: content type and encoding, headers and delivery mode, perhaps
    priority and reply_to. Each message may have up to ``room`` bytes of headers of its own. All
    headers are in one frame, and the broker closes the connection for a frame that is too long.
    """

    def __init__(
        self, channel: int, frame_max: int, exchange: str, routing_key: str, shared: BasicProperties
    ):
        priority, reply_to = shared.priority, shared.reply_to
        flags = HAS_CONTENT_TYPE | HAS_CONTENT_ENCODING | HAS_HEADERS
        flags |= HAS_DELIVERY_MODE | HAS_CORRELATION_ID
        if reply_to is not None:
            flags |= HAS_REPLY_TO
        if priority is not None:
            flags |= HAS_PRIORITY
        publish = _long(PUBLISH) + b"\0\0" + short(exchange) + short(routing_key) + _MANDATORY
        # Each piece ends where a part begins that differs from message to message.
        self._method = frame(METHOD, channel, publish) + _start(HEADER, channel, 0)[:3]
        self._properties = flags.to_bytes(2) + short(shared.content_type)
        self._properties += short(shared.content_encoding)
        self._headers = fields(shared.headers)
        mode = shared.delivery_mode
        self._mode = bytes((mode,) if priority is None else (mode, priority))
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


#: Called with a correlation id and a body.
OnReply = Callable[[str, bytes | int], object]


def _no_consumer(correlation_id: str, body: bytes | int) -> None:
    """Ignore a reply; never called, as there are no deliveries without a consumer."""


class Scanner:
    """Reads one channel's confirms and one consumer's deliveries, which are not acknowledged.

    Frames are read in their order. Confirms and the deliveries are decoded here, by their offsets.

    `on_frame` gets every other frame, complete. `on_confirm` gets a delivery tag, whether it
    confirms all before it as well, and whether it is an ack. The `on_reply` of `consume` gets a
    correlation id and a body, or of a body that is too large only its size.
    """

    def __init__(
        self,
        channel: int,
        on_frame: Callable[[bytes], object],
        on_confirm: Callable[[int, bool, bool], object],
    ):
        self._channel = channel
        self._on_frame = on_frame
        self._on_confirm = on_confirm
        self._on_reply: OnReply = _no_consumer
        self._consumer = b""
        self._begun = b""  # the beginning of an incomplete frame
        # The delivery that is being read.
        self._reading = False
        self._correlation_id = ""
        self._size = self._seen = 0
        self._pieces: list[bytes] = []

    def consume(self, consumer_tag: str, on_reply: OnReply) -> None:
        """Pass the deliveries of `consumer_tag` to `on_reply`, as correlation id and body."""
        tag = consumer_tag.encode()
        self._consumer = bytes((len(tag),)) + tag
        self._on_reply = on_reply

    def feed(self, data: bytes) -> None:
        """Read the next bytes; raises pika's AMQPError where they are not valid frames."""
        if self._begun:
            data = self._begun + data
        at, size = 0, len(data)
        while size - at >= OVERHEAD:
            kind, channel, length = _read_frame(data, at)
            end = at + length + OVERHEAD
            if end > size:
                break
            if channel != self._channel or data[end - 1] != END[0]:
                self._on_frame(data[at:end])
            elif kind == METHOD:
                (method,) = _read_long(data, at + 7)
                if method in _CONFIRMS:
                    tag, flags = _read_confirm(data, at + 11)
                    self._on_confirm(tag, bool(flags & 1), method == ACK)
                elif (
                    method == DELIVER
                    and self._consumer
                    and data.startswith(self._consumer, at + 11)
                ):
                    self._reading = True
                else:
                    self._reading = False
                    self._on_frame(data[at:end])
            elif not self._reading:
                self._on_frame(data[at:end])
            elif kind == HEADER:
                self._read_header(data, at + 7)
            elif kind == BODY:
                self._read_body(data[at + 7 : end - 1])
            else:
                self._on_frame(data[at:end])
            at = end
        self._begun = data[at:]

    def _read_header(self, data: bytes, at: int) -> None:
        self._size, flags = _read_content(data, at + 4)
        self._seen = 0
        at += 14
        if flags & HAS_CONTENT_TYPE:
            at += 1 + data[at]
        if flags & HAS_CONTENT_ENCODING:
            at += 1 + data[at]
        if flags & HAS_HEADERS:
            at += 4 + _read_long(data, at)[0]
        if flags & HAS_DELIVERY_MODE:
            at += 1
        if flags & HAS_PRIORITY:
            at += 1
        if flags & HAS_CORRELATION_ID:
            self._correlation_id = data[at + 1 : at + 1 + data[at]].decode(errors="replace")
        else:
            self._correlation_id = ""
        if not self._size:
            self._end(b"")

    def _read_body(self, piece: bytes) -> None:
        if len(piece) == self._size and not self._pieces:
            self._end(piece)
            return
        self._seen += len(piece)
        if self._seen > self._size:
            raise BodyTooLongError(self._seen, self._size)
        if self._size <= MAX_STORED:
            self._pieces.append(piece)
        if self._seen == self._size:
            pieces, self._pieces = self._pieces, []
            self._end(b"".join(pieces) if pieces else self._size)

    def _end(self, body: bytes | int) -> None:
        self._reading = False
        self._on_reply(self._correlation_id, body)
