"""An AMQP client that is nothing but frames, for scenarios that are written step by step."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import pika
import pika.frame
import pytest
from pika import spec

from tests.simulation.drivers import Link

PERSISTENT = pika.BasicProperties(delivery_mode=2)
TRANSIENT = pika.BasicProperties(delivery_mode=1)


@dataclass
class Got:
    """What has come: a method, and its content."""

    method: Any
    properties: Any = None
    body: bytes = b""


class Connection:
    """A client that is nothing but frames."""

    def __init__(
        self, link: Link, login: str = "\0guest\0guest", host: str = "/", heartbeat: int = 0
    ):
        self._link, self._buffer = link, b""
        self._got: dict[int, deque[Got]] = defaultdict(deque)
        self._content: dict[int, Got] = {}
        self._numbers = 0
        self.beats = 0
        link.send(b"AMQP\0\0\x09\1")
        self.start = self.next().method
        capabilities = {
            "consumer_cancel_notify": True, "connection.blocked": True, "basic.nack": True,
            "publisher_confirms": True, "authentication_failure_close": True,
        }  # fmt: skip
        properties = {"product": "contract", "capabilities": capabilities}
        self.send(0, spec.Connection.StartOk(properties, "PLAIN", login, "en_US"))
        self.tuned = self.next().method
        if isinstance(self.tuned, spec.Connection.Tune):
            self.send(0, spec.Connection.TuneOk(2047, 131_072, heartbeat))
            self.send(0, spec.Connection.Open(host))
            self.opened = self.next().method

    def send(self, number: int, method: Any) -> None:
        self._link.send(pika.frame.Method(number, method).marshal())

    def publish(self, number: int, method: Any, properties: Any, body: bytes) -> None:
        frames = [
            pika.frame.Method(number, method),
            pika.frame.Header(number, len(body), properties),
        ]
        frames += [
            pika.frame.Body(number, body[at : at + 131_064]) for at in range(0, len(body), 131_064)
        ]
        self._link.send(b"".join(frame.marshal() for frame in frames))

    def next(self, number: int = 0) -> Got:
        """Return the next method of a channel; raises EOFError at the connection's end."""
        while not self._got[number]:
            self.read()
        return self._got[number].popleft()

    def read(self) -> None:
        data = self._link.receive()
        if not data:
            raise EOFError
        self._buffer += data
        while True:
            size, frame = pika.frame.decode_frame(self._buffer)
            if frame is None:
                return
            self._buffer = self._buffer[size:]
            self._take(frame)

    def _take(self, frame: Any) -> None:
        number = frame.channel_number
        if isinstance(frame, pika.frame.Heartbeat):
            self.beats += 1
        elif isinstance(frame, pika.frame.Method):
            got = Got(frame.method)
            if isinstance(got.method, (spec.Basic.Deliver, spec.Basic.Return, spec.Basic.GetOk)):
                self._content[number] = got
            else:
                self._got[number].append(got)
        else:
            got = self._content[number]
            if isinstance(frame, pika.frame.Header):
                got.properties, self._size = frame.properties, frame.body_size
            else:
                got.body += frame.fragment
            if len(got.body) == self._size:
                self._got[number].append(self._content.pop(number))

    def channel(self) -> Channel:
        self._numbers += 1
        channel = Channel(self, self._numbers)
        channel.call(spec.Channel.Open(), spec.Channel.OpenOk)
        return channel

    def close(self) -> None:
        self.send(0, spec.Connection.Close(200, "", 0, 0))
        assert isinstance(self.next().method, spec.Connection.CloseOk)

    def vanish(self) -> None:
        self._link.close()

    def ended(self) -> None:
        """Wait for the connection's end."""
        with pytest.raises(EOFError):
            while True:
                self.read()


class Channel:
    def __init__(self, connection: Connection, number: int):
        self.connection, self.number = connection, number
        self._early: deque[Got] = deque()  # deliveries that came before an answer

    def send(self, method: Any) -> None:
        self.connection.send(self.number, method)

    def next(self, kind: type) -> Got:
        got = self.connection.next(self.number)
        assert isinstance(got.method, kind), got
        return got

    def call(self, method: Any, kind: type, early: bool = False) -> Any:
        """Send a method; return its answer, which has to be of this kind.

        `early`: deliveries may come before it.
        """
        self.send(method)
        while early:
            got = self.connection.next(self.number)
            if not isinstance(got.method, spec.Basic.Deliver):
                assert isinstance(got.method, kind), got
                return got.method
            self._early.append(got)
        return self.next(kind).method

    def refused(self, method: Any, code: int, text: str) -> None:
        """Send a method that closes the channel."""
        self.send(method)
        self.closed(method, code, text)

    def closed(self, method: Any, code: int, text: str) -> None:
        close = self.next(spec.Channel.Close).method
        assert (close.reply_code, close.class_id << 16 | close.method_id) == (code, method.INDEX)
        assert close.reply_text.startswith(text), close.reply_text
        self.send(spec.Channel.CloseOk())

    # Common calls -------------------------------------------------------------------------------

    def declare(self, queue: str, **options: Any) -> tuple[int, int]:
        """Declare a durable queue; return the numbers of messages and of consumers."""
        options.setdefault("durable", True)
        found = self.call(spec.Queue.Declare(0, queue, **options), spec.Queue.DeclareOk)
        assert found.queue == queue
        return found.message_count, found.consumer_count

    def look(self, queue: str) -> tuple[int, int]:
        return self.declare(queue, passive=True)

    def confirms(self) -> Channel:
        self.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
        self.published = 0
        return self

    def publish(
        self,
        key: str,
        body: bytes = b"",
        properties: Any = PERSISTENT,
        exchange: str = "",
        mandatory: bool = False,
    ) -> Any:
        method = spec.Basic.Publish(0, exchange, key, mandatory=mandatory)
        self.connection.publish(self.number, method, properties, body)
        return method

    def put(self, key: str, *bodies: bytes, properties: Any = PERSISTENT, **options: Any) -> None:
        """Publish, and wait for the confirms, of which one may be for several."""
        for body in bodies:
            self.publish(key, body, properties, **options)
        self.published += len(bodies)
        self.acked(self.published)

    def acked(self, last: int) -> None:
        waiting = set(range(getattr(self, "_acked", 0) + 1, last + 1))
        while waiting:
            ack = self.next(spec.Basic.Ack).method
            tag = ack.delivery_tag
            waiting -= {each for each in waiting if each == tag or ack.multiple and each < tag}
        self._acked = last

    def consume(self, queue: str, **options: Any) -> str:
        consume = spec.Basic.Consume(0, queue, **options)
        tag = self.call(consume, spec.Basic.ConsumeOk, early=True).consumer_tag
        assert tag
        return str(tag)

    def qos(self, number: int, whole: bool = False) -> None:
        self.call(spec.Basic.Qos(0, number, whole), spec.Basic.QosOk)

    def delivered(self) -> Got:
        return self._early.popleft() if self._early else self.next(spec.Basic.Deliver)

    def nothing(self) -> None:
        """Nothing came until now."""
        self.call(spec.Basic.Qos(0, 0), spec.Basic.QosOk)

    def get(self, queue: str, no_ack: bool = True) -> Got | None:
        self.send(spec.Basic.Get(0, queue, no_ack))
        got = self.connection.next(self.number)
        if isinstance(got.method, spec.Basic.GetEmpty):
            return None
        assert isinstance(got.method, spec.Basic.GetOk)
        return got

    def bodies(self, queue: str) -> list[bytes]:
        """Take all that is in a queue."""
        found = []
        while (got := self.get(queue)) is not None:
            found.append(got.body)
        return found
