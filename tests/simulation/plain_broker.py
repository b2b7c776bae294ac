"""A RabbitMQ by bytes: what the gateway and its workers use of AMQP 0-9-1, with pika's codec."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from struct import Struct
from typing import Any

import pika.frame
from pika import spec

from tests.simulation.wire import Clock, Timer, Wire

HEARTBEAT = 10  # seconds
_HEAD = Struct(">BHI")
_PROPERTIES = {
    "product": "RabbitMQ",
    "capabilities": {
        "publisher_confirms": True, "exchange_exchange_bindings": True, "basic.nack": True,
        "consumer_cancel_notify": True, "connection.blocked": True,
        "authentication_failure_close": True, "per_consumer_qos": True,
    },
}  # fmt: skip


class Message:
    """A message in a queue."""

    __slots__ = ("body", "exchange", "header", "key", "persistent", "redelivered")

    def __init__(self, exchange: str, key: str, header: bytes, body: bytes, persistent: bool):
        self.exchange, self.key, self.header, self.body = exchange, key, header, body
        self.persistent, self.redelivered = persistent, False


class Queue:
    """A classic queue."""

    def __init__(self, name: str, durable: bool, owner: Peer | None, auto_delete: bool):
        self.name, self.durable, self.owner, self.auto_delete = name, durable, owner, auto_delete
        self.ready: deque[Message] = deque()
        self.consumers: deque[Consumer] = deque()
        self.unacked = 0


class Consumer:
    def __init__(self, channel: Channel, tag: str, queue: Queue, no_ack: bool):
        self.channel, self.tag, self.queue, self.no_ack = channel, tag, queue, no_ack


class Broker:
    """One node; all its queues are classic."""

    def __init__(self, clock: Clock, random: Random):
        self.clock, self.random = clock, random
        self.skew = 0.0
        self.queues: dict[str, Queue] = {}
        self.peers: dict[Peer, None] = {}
        self.blocked = False

    def accept(self, wire: Wire) -> Peer:
        return Peer(self, wire)

    def messages(self, name: str) -> int:
        queue = self.queues.get(name)
        return 0 if queue is None else len(queue.ready) + queue.unacked

    # Faults -----------------------------------------------------------------------------------

    def crash(self, lose_unsynced: bool = False) -> None:
        """Forget what was not on disk: transient messages and what was not confirmed yet."""
        for peer in list(self.peers):
            peer.end()
        self.peers.clear()
        for name, queue in list(self.queues.items()):
            if not queue.durable:
                del self.queues[name]
                continue
            queue.ready = deque(
                m
                for m in queue.ready
                if m.persistent and not (lose_unsynced and m in self._unsynced)
            )
        self._unsynced = {}

    def restart(self) -> None:
        self.blocked = False

    #: Messages whose confirms have not been sent: they may be lost in a crash.
    _unsynced: dict[Message, None] = {}

    def close_connections(self) -> None:
        for peer in list(self.peers):
            peer.close(320, "CONNECTION_FORCED - as asked")

    def close_channels(self) -> None:
        """Close the channels on which anything was published, as after an internal error."""
        for peer in list(self.peers):
            for channel in list(peer.channels.values()):
                if channel.published:
                    channel.refuse(541, "INTERNAL_ERROR", spec.Basic.Publish)

    def alarm(self, on: bool, kind: str = "low on memory") -> None:
        self.blocked = on
        for peer in self.peers:
            if peer.publishes:
                peer.tell_blocked(on)

    # Queues -----------------------------------------------------------------------------------

    def deliver(self, queue: Queue) -> None:
        """Give messages to consumers in turn, as far as they have room."""
        tries = len(queue.consumers)
        while queue.ready and tries:
            consumer = queue.consumers[0]
            queue.consumers.rotate(-1)
            if consumer.channel.room or consumer.no_ack:
                consumer.channel.deliver(consumer, queue.ready.popleft())
                tries = len(queue.consumers)
            else:
                tries -= 1

    def delete(self, queue: Queue) -> None:
        self.queues.pop(queue.name, None)
        for consumer in queue.consumers:
            consumer.channel.consumers.pop(consumer.tag, None)
            if not consumer.channel.peer.ended:
                consumer.channel.send(spec.Basic.Cancel(consumer.tag, nowait=True))
        queue.consumers.clear()


class Channel:
    """A channel of a connection."""

    def __init__(self, peer: Peer, number: int):
        self.peer, self.number = peer, number
        self.broker = peer.broker
        self.consumers: dict[str, Consumer] = {}
        self.unacked: dict[int, tuple[Queue, Message]] = {}
        self.prefetch = 0
        self.delivered = 0
        self.published = 0  # with confirms
        self.confirms = self.closing = False
        self._to_confirm: list[tuple[int, Message | None]] = []
        self._publish: Any = None
        self._header = b""
        self._size, self._body = 0, b""

    @property
    def room(self) -> bool:
        return not self.prefetch or len(self.unacked) < self.prefetch

    def send(self, method: Any) -> None:
        self.peer.wire.write(pika.frame.Method(self.number, method).marshal())

    def deliver(self, consumer: Consumer, message: Message) -> None:
        self.delivered += 1
        method = spec.Basic.Deliver(
            consumer.tag, self.delivered, message.redelivered, message.exchange, message.key
        )
        if not consumer.no_ack:
            self.unacked[self.delivered] = consumer.queue, message
            consumer.queue.unacked += 1
        frames = [pika.frame.Method(self.number, method).marshal(), *self._content(message)]
        self.peer.wire.write(b"".join(frames))

    def _content(self, message: Message) -> list[bytes]:
        frames = [_frame(2, self.number, message.header)]
        frames += [
            _frame(3, self.number, message.body[at : at + 131_064])
            for at in range(0, len(message.body), 131_064)
        ]
        return frames

    def close(self) -> None:
        """Requeue what was not acknowledged; the first comes first again."""
        for consumer in self.consumers.values():
            consumer.queue.consumers.remove(consumer)
            if consumer.queue.auto_delete and not consumer.queue.consumers:
                self.broker.delete(consumer.queue)
        self.consumers = {}
        queues: dict[Queue, None] = {}
        for queue, message in reversed(self.unacked.values()):
            message.redelivered = True
            queue.ready.appendleft(message)
            queue.unacked -= 1
            queues[queue] = None
        self.unacked = {}
        for queue in queues:
            self.broker.deliver(queue)

    def refuse(self, code: int, text: str, method: Any) -> None:
        self.closing = True
        self.close()
        self.send(spec.Channel.Close(code, text, method.INDEX >> 16, method.INDEX & 0xFFFF))

    # Methods ----------------------------------------------------------------------------------

    def on_method(self, method: Any) -> None:
        name = method.NAME.replace(".", "_").lower()
        if self.closing and name not in ("channel_closeok", "channel_close"):
            return
        getattr(self, f"on_{name}")(method)

    def on_channel_close(self, method: Any) -> None:
        self.close()
        del self.peer.channels[self.number]
        self.send(spec.Channel.CloseOk())

    def on_channel_closeok(self, method: Any) -> None:
        del self.peer.channels[self.number]

    def on_confirm_select(self, method: Any) -> None:
        self.confirms = True
        self.send(spec.Confirm.SelectOk())

    def on_basic_qos(self, method: Any) -> None:
        self.prefetch = method.prefetch_count
        self.send(spec.Basic.QosOk())

    def on_queue_declare(self, method: Any) -> None:
        queue = self.broker.queues.get(method.queue)
        if queue is None and method.passive:
            self.refuse(404, f"NOT_FOUND - no queue '{method.queue}' in vhost '/'", method)
            return
        if queue is None:
            owner = self.peer if method.exclusive else None
            queue = Queue(method.queue, method.durable, owner, method.auto_delete)
            self.broker.queues[method.queue] = queue
        elif queue.owner not in (None, self.peer):
            self.refuse(405, f"RESOURCE_LOCKED - queue '{method.queue}'", method)
            return
        self.send(spec.Queue.DeclareOk(queue.name, len(queue.ready), len(queue.consumers)))

    def on_exchange_declare(self, method: Any) -> None:
        self.refuse(404, f"NOT_FOUND - no exchange '{method.exchange}' in vhost '/'", method)

    def on_basic_consume(self, method: Any) -> None:
        queue = self.broker.queues.get(method.queue)
        if queue is None:
            self.refuse(404, f"NOT_FOUND - no queue '{method.queue}' in vhost '/'", method)
            return
        tag = method.consumer_tag or f"amq.ctag-{len(self.consumers)}"
        consumer = Consumer(self, tag, queue, method.no_ack)
        self.consumers[tag] = consumer
        queue.consumers.append(consumer)
        self.send(spec.Basic.ConsumeOk(tag))
        self.broker.deliver(queue)

    def on_basic_cancel(self, method: Any) -> None:
        consumer = self.consumers.pop(method.consumer_tag, None)
        self.send(spec.Basic.CancelOk(method.consumer_tag))
        if consumer is not None:
            consumer.queue.consumers.remove(consumer)
            if consumer.queue.auto_delete and not consumer.queue.consumers:
                self.broker.delete(consumer.queue)

    def on_basic_cancelok(self, method: Any) -> None: ...

    def on_basic_ack(self, method: Any) -> None:
        self._settle(method, requeue=False)

    def on_basic_nack(self, method: Any) -> None:
        self._settle(method, requeue=method.requeue)

    def _settle(self, method: Any, requeue: bool) -> None:
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self.unacked if tag <= method.delivery_tag]
        for tag in tags:
            if tag not in self.unacked:
                self.refuse(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}", method)
                return
            queue, message = self.unacked.pop(tag)
            queue.unacked -= 1
            if requeue:
                message.redelivered = True
                queue.ready.appendleft(message)
        for consumer in list(self.consumers.values()):
            self.broker.deliver(consumer.queue)

    def on_basic_publish(self, method: Any) -> None:
        self._publish = method
        if not self.peer.publishes:
            self.peer.publishes = True
            if self.broker.blocked:
                self.peer.tell_blocked(True)

    def on_header(self, payload: bytes) -> None:
        if self.closing:
            return
        self._header, self._body = payload, b""
        self._size = int.from_bytes(payload[4:12])
        if not self._size:
            self._published()

    def on_body(self, payload: bytes) -> None:
        if self.closing:
            return
        self._body += payload
        if len(self._body) >= self._size:
            self._published()

    def _published(self) -> None:
        method = self._publish
        properties = spec.BasicProperties()
        properties.decode(self._header[12:])
        message = Message(
            method.exchange, method.routing_key, self._header, self._body,
            properties.delivery_mode == 2,
        )  # fmt: skip
        if method.exchange:
            self.refuse(404, f"NOT_FOUND - no exchange '{method.exchange}'", method)
            return
        queue = self.broker.queues.get(method.routing_key)
        if queue is None and method.mandatory:
            returned = spec.Basic.Return(312, "NO_ROUTE", method.exchange, method.routing_key)
            frames = [pika.frame.Method(self.number, returned).marshal(), *self._content(message)]
            self.peer.wire.write(b"".join(frames))
        if self.confirms:
            self.published += 1
        if queue is not None:
            queue.ready.append(message)
        if self.confirms:
            if queue is not None and message.persistent:
                self.broker._unsynced[message] = None
            self._to_confirm.append((self.published, message))
            if len(self._to_confirm) == 1:
                delay = self.broker.random.choice([0, 0, 0.001, 0.005, 0.03])
                self.broker.clock.call_later(delay, self._confirm)
        if queue is not None:
            self.broker.deliver(queue)

    def _confirm(self) -> None:
        """Confirm what has been written to disk, some together with others."""
        tags, self._to_confirm = self._to_confirm, []
        for _, message in tags:
            self.broker._unsynced.pop(message, None)  # type: ignore[arg-type]
        if self.peer.ended or not tags:
            return
        if len(tags) > 1 and self.broker.random.random() < 0.7:
            self.send(spec.Basic.Ack(tags[-1][0], multiple=True))
        else:
            for tag, _ in tags:
                self.send(spec.Basic.Ack(tag))


class Peer:
    """A client's connection."""

    def __init__(self, broker: Broker, wire: Wire):
        self.broker, self.wire = broker, wire
        self.channels: dict[int, Channel] = {}
        self.publishes = self.ended = self._closing = False
        self._buffer = b""
        self._begun = False
        self._heard = broker.clock.time()
        self._beat: Timer = broker.clock.call_later(HEARTBEAT / 2, self._heartbeat)

    def _heartbeat(self) -> None:
        if self.ended:
            return
        if self.broker.clock.time() - self._heard > 2 * HEARTBEAT:
            self.end()
            self.wire.abort()
            return
        if self in self.broker.peers:
            self.wire.write(pika.frame.Heartbeat().marshal())
        self._beat = self.broker.clock.call_later(HEARTBEAT / 2, self._heartbeat)

    def lost(self) -> None:
        self.end()

    def end(self) -> None:
        """Give back what the connection had."""
        if self.ended:
            return
        self.ended = True
        self._beat.cancel()
        self.broker.peers.pop(self, None)
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.close()
        for queue in [q for q in self.broker.queues.values() if q.owner is self]:
            self.broker.delete(queue)

    def close(self, code: int, text: str) -> None:
        self.send(spec.Connection.Close(code, text, 0, 0))
        self._closing = True

    def tell_blocked(self, on: bool) -> None:
        self.send(spec.Connection.Blocked("low on memory") if on else spec.Connection.Unblocked())
        if not on:
            self._go_on()

    def send(self, method: Any) -> None:
        self.wire.write(pika.frame.Method(0, method).marshal())

    def received(self, data: bytes) -> None:
        self._heard = self.broker.clock.time()
        self._buffer += data
        self._go_on()

    def _go_on(self) -> None:
        """Read what has come; a publisher is not read while there is an alarm."""
        if not self._begun:
            if len(self._buffer) < 8:
                return
            self._begun, self._buffer = True, self._buffer[8:]
            self.send(spec.Connection.Start(0, 9, _PROPERTIES, "PLAIN", "en_US"))
        buffer, at = self._buffer, 0
        while len(buffer) - at >= 8 and not self.ended:
            if self.publishes and self.broker.blocked:
                self._heard = self.broker.clock.time()
                break
            kind, channel, size = _HEAD.unpack_from(buffer, at)
            if len(buffer) - at < size + 8:
                break
            payload = buffer[at + 7 : at + 7 + size]
            at += size + 8
            self._frame(kind, channel, payload)
        self._buffer = buffer[at:]

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == 8:
            return
        if kind == 1:
            method = spec.methods[int.from_bytes(payload[:4])]()
            method.decode(payload, 4)
            if number == 0:
                self._on_method(method)
            elif self._closing:
                return
            elif method.NAME == "Channel.Open":
                self.channels[number] = channel = Channel(self, number)
                channel.send(spec.Channel.OpenOk())
            elif number in self.channels:
                self.channels[number].on_method(method)
        elif number in self.channels and not self._closing:
            channel = self.channels[number]
            (channel.on_header if kind == 2 else channel.on_body)(payload)

    def _on_method(self, method: Any) -> None:
        name = method.NAME
        if name == "Connection.StartOk":
            self.send(spec.Connection.Tune(2047, 131_072, HEARTBEAT))
        elif name == "Connection.Open":
            self.broker.peers[self] = None
            self.send(spec.Connection.OpenOk())
        elif name == "Connection.Close":
            self.end()
            self.send(spec.Connection.CloseOk())
            self.wire.close()
        elif name == "Connection.CloseOk":
            self.end()
            self.wire.close()


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


__all__ = ["Broker", "Callable"]
