"""Find confirms and replies among the bytes that a broker sends; no I/O.

Frames are read in their order. Confirms and the deliveries of one consumer are decoded here, by
their offsets; any other frame is passed on unchanged.
https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf, 2.3.5 and 4.2
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from pika.exceptions import BodyTooLongError

from gateway.amqp.frames import (
    ACK,
    BODY,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    DELIVER,
    DELIVERY_MODE,
    HEADER,
    HEADERS,
    METHOD,
    NACK,
    OVERHEAD,
    PRIORITY,
)

_END = 0xCE
_CONFIRMS = frozenset((ACK, NACK))

_frame = Struct(">BHI").unpack_from
_long = Struct(">I").unpack_from
_confirm = Struct(">QB").unpack_from
_content = Struct(">QH").unpack_from


def _no_consumer(correlation_id: str, body: bytes) -> None:
    """Ignore a reply; never called, as there are no deliveries without a consumer."""


class Scanner:
    """Reads one channel's confirms and one consumer's deliveries, which are not acknowledged.

    `on_frame` gets every other frame, complete. `on_confirm` gets a delivery tag, whether it
    confirms all before it as well, and whether it is an ack. The `on_reply` of `consume` gets a
    correlation id and a body.
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
        self._on_reply: Callable[[str, bytes], object] = _no_consumer
        self._consumer = b""
        self._begun = b""  # the beginning of an incomplete frame
        # The delivery that is being read.
        self._reading = False
        self._correlation_id = ""
        self._size = 0
        self._pieces: list[bytes] = []

    def consume(self, consumer_tag: str, on_reply: Callable[[str, bytes], object]) -> None:
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
            kind, channel, length = _frame(data, at)
            end = at + length + OVERHEAD
            if end > size:
                break
            if channel != self._channel or data[end - 1] != _END:
                self._on_frame(data[at:end])
            elif kind == METHOD:
                (method,) = _long(data, at + 7)
                if method in _CONFIRMS:
                    tag, flags = _confirm(data, at + 11)
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
        self._size, flags = _content(data, at + 4)
        at += 14
        if flags & CONTENT_TYPE:
            at += 1 + data[at]
        if flags & CONTENT_ENCODING:
            at += 1 + data[at]
        if flags & HEADERS:
            at += 4 + _long(data, at)[0]
        if flags & DELIVERY_MODE:
            at += 1
        if flags & PRIORITY:
            at += 1
        if flags & CORRELATION_ID:
            self._correlation_id = data[at + 1 : at + 1 + data[at]].decode(errors="replace")
        else:
            self._correlation_id = ""
        if not self._size:
            self._end(b"")

    def _read_body(self, piece: bytes) -> None:
        if len(piece) == self._size and not self._pieces:
            self._end(piece)
            return
        self._pieces.append(piece)
        seen = sum(map(len, self._pieces))
        if seen > self._size:
            raise BodyTooLongError(seen, self._size)
        if seen == self._size:
            pieces, self._pieces = self._pieces, []
            self._end(b"".join(pieces))

    def _end(self, body: bytes) -> None:
        self._reading = False
        self._on_reply(self._correlation_id, body)
