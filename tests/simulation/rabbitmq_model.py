"""A RabbitMQ by bytes: what the gateway and its workers use of AMQP 0-9-1, with pika's codec.

One node with classic queues and quorum queues, which have one member. What it does is what the
contract suite has seen RabbitMQ do: `test_contract_amqp.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from struct import Struct
from typing import Any

import pika.frame
from pika import spec

from tests.simulation.wire import Clock, Timer, Wire

EPOCH = 1_800_000_000.0
#: Seconds: what is suggested to clients, for how long a connection may open and may take to end,
#: and how long the acknowledgements of consumers may not be on disk.
HEARTBEAT, HANDSHAKE, CLOSING, ACKS_UNSYNCED = 60, 10, 30, 0.03
FRAME = 131_072  # bytes
_HEAD = Struct(">BHI")
_CONTENT = Struct(">HxxQ")
_PROPERTIES = {
    "product": "RabbitMQ",
    "capabilities": {
        "publisher_confirms": True, "exchange_exchange_bindings": True, "basic.nack": True,
        "consumer_cancel_notify": True, "connection.blocked": True,
        "authentication_failure_close": True, "per_consumer_qos": True,
    },
}  # fmt: skip
_LOGIN = b"\0guest\0guest"
_NO_LOGIN = (
    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the"
    " broker logfile."
)
_LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{}' in vhost '/'. It could"
    " be originally declared on another connection or the exclusive property value does not match"
    " that of the original declaration."
)


class Message:
    """A message in a queue; `header` is the payload of its content header."""

    __slots__ = (
        "body", "exchange", "expiration", "expires", "header", "key", "persistent", "returned",
    )  # fmt: skip

    def __init__(self, exchange: str, key: str, header: bytes, body: bytes):
        self.exchange, self.key, self.header, self.body = exchange, key, header, body
        self.persistent, self.expiration = _persistence(header)
        self.expires: float | None = None
        self.returned = 0  # how often it came back from a consumer

    @property
    def properties(self) -> spec.BasicProperties:
        found = spec.BasicProperties()
        found.decode(self.header[12:])
        return found

    def again(self) -> Message:
        return Message(self.exchange, self.key, self.header, self.body)

    def content(self, quorum: bool = False) -> tuple[bytes, bytes]:
        """Return header and body as consumers get them; a quorum queue says how often it did."""
        if not (quorum and self.returned):
            return self.header, self.body
        properties = self.properties
        properties.headers = {**(properties.headers or {}), "x-delivery-count": self.returned}
        return _encoded(properties, len(self.body)), self.body


class Queue:
    """A queue with the arguments of its declaration."""

    def __init__(
        self,
        name: str,
        durable: bool,
        owner: Peer | None,
        auto_delete: bool,
        arguments: dict[str, Any],
    ):
        self.name, self.durable, self.owner, self.auto_delete = name, durable, owner, auto_delete
        self.arguments = arguments
        self.quorum = arguments.get("x-queue-type") == "quorum"
        self.ttl: int | None = arguments.get("x-message-ttl")  # milliseconds
        self.most: int | None = arguments.get("x-max-length")
        self.rejects = arguments.get("x-overflow") == "reject-publish"
        self.ready: deque[Message] = deque()
        self.consumers: deque[Consumer] = deque()
        self.unacked = 0
        #: What was published while a quorum queue had no leader.
        self.waiting: list[tuple[Message, Channel | None, int]] = []
        self.timer: Timer | None = None  # for the message at its head
        self.end: Timer | None = None  # of a queue that nobody uses
        self.gone = False

    def difference(self, method: Any, owner: Peer) -> str:
        """Say what of a declaration is not as the queue is; empty: nothing."""
        for name, given, there in (
            ("durable", method.durable, self.durable),
            ("exclusive", method.exclusive, self.owner is not None),
            ("auto_delete", method.auto_delete, self.auto_delete),
        ):
            if given != there:
                return _inequivalent(name, self.name, _text(given), _text(there))
        given_, there_ = dict(method.arguments or {}), dict(self.arguments)
        for arguments in (given_, there_):
            arguments.setdefault("x-queue-type", "classic")
        for name in sorted({*given_, *there_}):
            one, other = given_.get(name), there_.get(name)
            if one != other:
                whole = one is None or other is None
                return _inequivalent(name, self.name, _value(one, whole), _value(other, whole))
        return ""


class Consumer:
    """A consumer, with the prefetch that its channel had when it began."""

    def __init__(self, channel: Channel, tag: str, queue: Queue, no_ack: bool, exclusive: bool):
        self.channel, self.tag, self.queue, self.no_ack = channel, tag, queue, no_ack
        self.exclusive, self.prefetch, self.unacked = exclusive, channel.prefetch, 0

    @property
    def room(self) -> bool:
        return self.no_ack or not self.prefetch or self.unacked < self.prefetch


class Exchange:
    """An exchange of the type direct or fanout; its bindings are keys and names of queues."""

    def __init__(self, kind: str, durable: bool, auto_delete: bool):
        self.kind, self.durable, self.auto_delete = kind, durable, auto_delete
        self.bindings: dict[tuple[str, str], None] = {}


class Broker:
    """One node."""

    def __init__(self, clock: Clock, random: Random):
        self.clock, self.random = clock, random
        self.skew = 0.0
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.peers: dict[Peer, None] = {}
        self.blocked = False
        self.largest = 134_217_728  # bytes of a body
        self._down = self._leaderless = False
        #: Messages whose confirms have not been sent: they may be lost in a crash.
        self.unsynced: dict[Message, None] = {}
        #: Messages that were acknowledged just now, which a crash may bring back.
        self._settled: deque[tuple[float, Queue, Message]] = deque()

    def accept(self, wire: Wire) -> Peer:
        return Peer(self, wire)

    def messages(self, name: str) -> int:
        queue = self.queues.get(name)
        return 0 if queue is None else len(queue.ready) + queue.unacked + len(queue.waiting)

    # Faults -----------------------------------------------------------------------------------

    def crash(self, lose_unsynced: bool = False) -> None:
        """Forget what is not kept: transient messages, queues that are not durable.

        `lose_unsynced`: also what was not on disk yet. That are messages that were not confirmed,
        and acknowledgements of a few milliseconds.
        """
        self._down = True
        for peer in list(self.peers):
            peer.end()
        self.peers.clear()
        for queue in list(self.queues.values()):
            queue.timer = queue.end = None
            queue.waiting.clear()
            if not queue.durable:
                self._forget(queue)
                continue
            queue.ready = deque(
                m
                for m in queue.ready
                if (m.persistent or queue.quorum) and not (lose_unsynced and m in self.unsynced)
            )
        if lose_unsynced:
            self._unsettle()
        self.unsynced, self._leaderless = {}, False
        self._settled.clear()
        self.exchanges = {name: each for name, each in self.exchanges.items() if each.durable}

    def _unsettle(self) -> None:
        """Bring back messages whose acknowledgements, the last ones, were not on disk."""
        since = self.clock.time() - ACKS_UNSYNCED * self.random.random()
        while self._settled and (last := self._settled.pop())[0] > since:
            _, queue, message = last
            if queue.durable and not queue.gone:
                message.returned += 1
                queue.ready.appendleft(message)

    def restart(self) -> None:
        self.blocked = self._down = False
        for queue in list(self.queues.values()):
            self.used(queue)
            self.deliver(queue)

    def close_connections(self) -> None:
        for peer in list(self.peers):
            peer.close(320, "CONNECTION_FORCED - as asked")

    def close_channels(self) -> None:
        """Close the channels on which anything was published, as after a failed precondition."""
        for peer in list(self.peers):
            for channel in list(peer.channels.values()):
                if channel.published and not channel.closing:
                    channel.refuse(406, "PRECONDITION_FAILED - as asked", spec.Basic.Publish)

    def alarm(self, on: bool) -> None:
        """Begin or end an alarm; a connection is told when it publishes, and then not read."""
        self.blocked = on
        for peer in list(self.peers):
            if peer.stopped and not on:
                peer.go_on()

    def leader(self, there: bool) -> None:
        """Take the leaders of quorum queues away, or elect new ones.

        Meanwhile these queues confirm nothing and deliver nothing. What was published is taken by
        the new leader.
        """
        self._leaderless = not there
        for queue in list(self.queues.values()):
            waiting, queue.waiting = queue.waiting, []
            for message, channel, tag in waiting:
                taken = self.enqueue(queue, message)
                if channel is not None:
                    channel.confirm_soon(tag, [message], taken)
            self.deliver(queue)

    def stalls(self, queue: Queue) -> bool:
        return queue.quorum and self._leaderless

    # Messages ---------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the wall clock, by which messages expire."""
        return self.clock.time() + self.skew

    def routed(self, exchange: str, key: str) -> list[Queue] | None:
        """Return the queues that a message gets to; None: there is no such exchange."""
        if not exchange:
            queue = self.queues.get(key)
            return [] if queue is None else [queue]
        found = self.exchanges.get(exchange)
        if found is None:
            return None
        names = dict.fromkeys(n for k, n in found.bindings if found.kind == "fanout" or k == key)
        return [self.queues[name] for name in names]

    def enqueue(self, queue: Queue, message: Message) -> bool:
        """Put a message into a queue; tell whether the queue has taken it."""
        if queue.most is not None and queue.rejects and len(queue.ready) >= queue.most:
            return False
        lives = [int(each) for each in (queue.ttl, message.expiration) if each is not None]
        if lives:
            message.expires = self.now() + min(lives) / 1000
        queue.ready.append(message)
        return True

    def deliver(self, queue: Queue) -> None:
        """Give messages to consumers in turn, as far as they have room."""
        if self._down or self.stalls(queue):
            return
        tries = len(queue.consumers)
        while queue.ready:
            expires = queue.ready[0].expires
            if expires is not None and expires <= self.now() and (expires < self.now() or tries):
                self.dead_letter(queue, queue.ready.popleft(), "expired")
                continue
            if not tries:
                break
            consumer = queue.consumers[0]
            queue.consumers.rotate(-1)
            if consumer.room and consumer.channel.room:
                consumer.channel.deliver(consumer, queue.ready.popleft())
                tries = len(queue.consumers)
            else:
                tries -= 1
        if queue.most is not None and not queue.rejects:
            while len(queue.ready) > queue.most:
                self.dead_letter(queue, queue.ready.popleft(), "maxlen")
        if queue.ready and queue.timer is None and (head := queue.ready[0].expires) is not None:
            wait = max(head - self.now(), 0.0) + 0.001
            queue.timer = self.clock.call_later(wait, self._look, queue)

    def _look(self, queue: Queue) -> None:
        queue.timer = None
        self.deliver(queue)

    def settled(self, queue: Queue, message: Message) -> None:
        """Note an acknowledgement, which is on disk a little later."""
        now = self.clock.time()
        while self._settled and self._settled[0][0] < now - ACKS_UNSYNCED:
            self._settled.popleft()
        if message.persistent or queue.quorum:
            self._settled.append((now, queue, message))

    def give_back(self, queue: Queue, message: Message) -> None:
        """Put a message back at the head of its queue, unless it has been delivered too often."""
        message.returned += 1
        limit = queue.arguments.get("x-delivery-limit") if queue.quorum else None
        if limit is not None and message.returned > limit:
            self.dead_letter(queue, message, "delivery_limit")
        else:
            queue.ready.appendleft(message)

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        """Publish a message that a queue gives up to the exchange for that, if it has one."""
        exchange = queue.arguments.get("x-dead-letter-exchange")
        if exchange is None or queue.gone:
            return
        key = queue.arguments.get("x-dead-letter-routing-key", message.key)
        header = _died(message, queue.name, reason, EPOCH + self.now())
        for target in self.routed(exchange, key) or ():
            if self.stalls(target):
                target.waiting.append((Message(exchange, key, header, message.body), None, 0))
            else:
                self.enqueue(target, Message(exchange, key, header, message.body))
                self.deliver(target)

    # Queues -----------------------------------------------------------------------------------

    def used(self, queue: Queue) -> None:
        """Note that a queue is in use, if it expires when it is not."""
        if queue.end is not None:
            queue.end.cancel()
            queue.end = None
        expires = queue.arguments.get("x-expires")
        if expires is not None and not queue.consumers and not queue.gone:
            queue.end = self.clock.call_later(expires / 1000, self.delete, queue)

    def left(self, queue: Queue, consumer: Consumer) -> None:
        """Take a consumer from a queue, which may have to go with its last one."""
        queue.consumers.remove(consumer)
        if not queue.consumers and not queue.gone:
            if queue.auto_delete:
                self.delete(queue)
            else:
                self.used(queue)

    def delete(self, queue: Queue) -> None:
        self._forget(queue)
        for consumer in queue.consumers:
            consumer.channel.consumers.pop(consumer.tag, None)
            if not consumer.channel.peer.ended:
                consumer.channel.send(spec.Basic.Cancel(consumer.tag, nowait=True))
        queue.consumers.clear()

    def _forget(self, queue: Queue) -> None:
        queue.gone = True
        self.queues.pop(queue.name, None)
        for exchange in self.exchanges.values():
            exchange.bindings = {
                bound: None for bound in exchange.bindings if bound[1] != queue.name
            }
        if queue.end is not None:
            queue.end.cancel()


class Refusal(Exception):
    """Closes the channel with a code and a text; by `whole`, the connection."""

    def __init__(self, code: int, text: str, whole: bool = False):
        super().__init__(text)
        self.code, self.text, self.whole = code, text, whole


class Channel:
    """A channel of a connection."""

    def __init__(self, peer: Peer, number: int):
        self.peer, self.number = peer, number
        self.broker = peer.broker
        self.consumers: dict[str, Consumer] = {}
        self.unacked: dict[int, tuple[Queue, Message, Consumer | None]] = {}
        self.prefetch = self.shared = 0  # of each new consumer, and of all together
        self.delivered = 0
        self.published = 0  # with confirms
        self.confirms = self.closing = False
        self._unconfirmed: dict[int, None] = {}
        self._to_confirm: list[tuple[int, list[Message], bool]] = []
        self._publish: Any = None
        self._header = b""
        self._size, self._parts = 0, list[bytes]()

    @property
    def room(self) -> bool:
        return not self.shared or len(self.unacked) < self.shared

    def send(self, method: Any, content: tuple[bytes, bytes] | None = None) -> None:
        frames = pika.frame.Method(self.number, method).marshal()
        if content is not None:
            header, body = content
            frames += _frame(2, self.number, header)
            for at in range(0, len(body), FRAME - 8):
                frames += _frame(3, self.number, body[at : at + FRAME - 8])
        self.peer.wire.write(frames)

    def deliver(self, consumer: Consumer, message: Message) -> None:
        self.delivered += 1
        method = spec.Basic.Deliver(
            consumer.tag, self.delivered, message.returned > 0, message.exchange, message.key
        )
        if not consumer.no_ack:
            self._hold(consumer.queue, message, consumer)
        self.send(method, message.content(consumer.queue.quorum))

    def _hold(self, queue: Queue, message: Message, consumer: Consumer | None) -> None:
        self.unacked[self.delivered] = queue, message, consumer
        queue.unacked += 1
        if consumer is not None:
            consumer.unacked += 1

    def _release(self, tag: int) -> tuple[Queue, Message]:
        queue, message, consumer = self.unacked.pop(tag)
        queue.unacked -= 1
        if consumer is not None:
            consumer.unacked -= 1
        return queue, message

    def close(self) -> None:
        """Give back what was not acknowledged; the first comes first again."""
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            self.broker.left(consumer.queue, consumer)
        queues: dict[Queue, None] = {}
        for tag in sorted(self.unacked, reverse=True):
            queue, message = self._release(tag)
            self.broker.give_back(queue, message)
            queues[queue] = None
        for queue in queues:
            self.broker.deliver(queue)

    def refuse(self, code: int, text: str, method: Any) -> None:
        self.closing = True
        self.close()
        self.send(spec.Channel.Close(code, text, method.INDEX >> 16, method.INDEX & 0xFFFF))

    # Methods ----------------------------------------------------------------------------------

    def on_method(self, method: Any) -> None:
        if self.closing and type(method) not in (spec.Channel.CloseOk, spec.Channel.Close):
            return
        try:
            _METHODS[type(method)](self, method)
        except Refusal as exc:
            if exc.whole:
                self.peer.close(exc.code, exc.text, method)
            else:
                self.refuse(exc.code, exc.text, method)

    def on_close(self, method: Any) -> None:
        self.close()
        del self.peer.channels[self.number]
        self.send(spec.Channel.CloseOk())

    def on_close_ok(self, method: Any) -> None:
        del self.peer.channels[self.number]

    def on_confirm_select(self, method: Any) -> None:
        self.confirms = True
        self._answer(method, spec.Confirm.SelectOk())

    def on_flow(self, method: Any) -> None:
        self.send(spec.Channel.FlowOk(method.active))

    def on_qos(self, method: Any) -> None:
        if method.global_qos:
            self.shared = method.prefetch_count
            for consumer in self.consumers.values():
                self.broker.deliver(consumer.queue)
        else:
            self.prefetch = method.prefetch_count
        self.send(spec.Basic.QosOk())

    def _answer(self, method: Any, answer: Any) -> None:
        if not method.nowait:
            self.send(answer)

    def _queue(self, name: str) -> Queue:
        queue = self.broker.queues.get(name)
        if queue is None:
            raise Refusal(404, f"NOT_FOUND - no queue '{name}' in vhost '/'")
        if queue.owner not in (None, self.peer):
            raise Refusal(405, _LOCKED.format(name))
        return queue

    def on_queue_declare(self, method: Any) -> None:
        broker = self.broker
        if method.passive or method.queue in broker.queues:
            queue = self._queue(method.queue)
            if not method.passive and (text := queue.difference(method, self.peer)):
                raise Refusal(406, text)
        else:
            owner = self.peer if method.exclusive else None
            queue = Queue(
                method.queue, method.durable, owner, method.auto_delete,
                dict(method.arguments or {}),
            )  # fmt: skip
            if queue.quorum and not queue.durable:
                text = f"invalid property 'non-durable' for queue '{queue.name}' in vhost '/'"
                raise Refusal(406, f"PRECONDITION_FAILED - {text}")
            broker.queues[method.queue] = queue
        broker.used(queue)
        self._answer(
            method, spec.Queue.DeclareOk(queue.name, len(queue.ready), len(queue.consumers))
        )

    def on_queue_delete(self, method: Any) -> None:
        queue, number = self.broker.queues.get(method.queue), 0
        if queue is not None:
            number = len(self._queue(method.queue).ready)
            self.broker.delete(queue)
        self._answer(method, spec.Queue.DeleteOk(number))

    def on_queue_bind(self, method: Any) -> None:
        self._queue(method.queue)
        exchange = self.broker.exchanges.get(method.exchange)
        if exchange is None:
            raise Refusal(404, f"NOT_FOUND - no exchange '{method.exchange}' in vhost '/'")
        exchange.bindings[method.routing_key, method.queue] = None
        self._answer(method, spec.Queue.BindOk())

    def on_exchange_declare(self, method: Any) -> None:
        found = self.broker.exchanges.get(method.exchange)
        if found is None and method.passive:
            raise Refusal(404, f"NOT_FOUND - no exchange '{method.exchange}' in vhost '/'")
        if found is None:
            found = Exchange(method.type, method.durable, method.auto_delete)
            self.broker.exchanges[method.exchange] = found
        elif not method.passive:
            for name, given, there in (
                ("type", method.type, found.kind),
                ("durable", _text(method.durable), _text(found.durable)),
                ("auto_delete", _text(method.auto_delete), _text(found.auto_delete)),
            ):
                if given != there:
                    text = _inequivalent(name, method.exchange, given, there, "exchange")
                    raise Refusal(406, text)
        self._answer(method, spec.Exchange.DeclareOk())

    def on_consume(self, method: Any) -> None:
        queue = self._queue(method.queue)
        others = queue.consumers
        if others and (method.exclusive or others[0].exclusive):
            text = f"ACCESS_REFUSED - queue '{queue.name}' in vhost '/' in exclusive use"
            raise Refusal(403, text)
        tag = method.consumer_tag or f"amq.ctag-{self.broker.random.getrandbits(64):016x}"
        if tag in self.consumers:
            raise Refusal(530, f"NOT_ALLOWED - attempt to reuse consumer tag '{tag}'", whole=True)
        consumer = Consumer(self, tag, queue, method.no_ack, method.exclusive)
        self.consumers[tag] = consumer
        queue.consumers.append(consumer)
        self.broker.used(queue)
        self._answer(method, spec.Basic.ConsumeOk(tag))
        self.broker.deliver(queue)

    def on_cancel(self, method: Any) -> None:
        consumer = self.consumers.pop(method.consumer_tag, None)
        self._answer(method, spec.Basic.CancelOk(method.consumer_tag))
        if consumer is not None:
            self.broker.left(consumer.queue, consumer)

    def on_cancel_ok(self, method: Any) -> None: ...

    def on_get(self, method: Any) -> None:
        queue = self._queue(method.queue)
        self.broker.used(queue)
        self.broker.deliver(queue)  # what has expired is not given
        if not queue.ready or self.broker.stalls(queue):
            self.send(spec.Basic.GetEmpty())
            return
        message = queue.ready.popleft()
        self.delivered += 1
        if not method.no_ack:
            self._hold(queue, message, None)
        got = spec.Basic.GetOk(
            self.delivered, message.returned > 0, message.exchange, message.key, len(queue.ready)
        )
        self.send(got, message.content(queue.quorum))

    def on_ack(self, method: Any) -> None:
        found = self._settle(method, method.multiple)
        for queue, message in found:
            self.broker.settled(queue, message)
        self._fill(found)

    def on_nack(self, method: Any) -> None:
        self._return(self._settle(method, method.multiple), method.requeue)

    def on_reject(self, method: Any) -> None:
        self._return(self._settle(method, False), method.requeue)

    def _return(self, found: list[tuple[Queue, Message]], requeue: bool) -> None:
        for queue, message in reversed(found):
            if requeue:
                self.broker.give_back(queue, message)
            else:
                self.broker.dead_letter(queue, message, "rejected")
        self._fill(found)

    def _settle(self, method: Any, multiple: bool) -> list[tuple[Queue, Message]]:
        """Take messages from those that are not acknowledged."""
        tags = [method.delivery_tag]
        if multiple:
            tags = [tag for tag in self.unacked if tag <= (method.delivery_tag or tag)]
        if not tags or tags[0] not in self.unacked:
            tag = method.delivery_tag
            raise Refusal(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")
        return [self._release(tag) for tag in tags]

    def _fill(self, found: list[tuple[Queue, Message]]) -> None:
        """Deliver, as there is room again where messages were."""
        queues = dict.fromkeys(queue for queue, _ in found)
        if self.shared:
            queues |= dict.fromkeys(consumer.queue for consumer in self.consumers.values())
        for queue in queues:
            if queue.ready:
                self.broker.deliver(queue)

    # Publishing -------------------------------------------------------------------------------

    def on_publish(self, method: Any) -> None:
        self._publish = method
        if self.broker.blocked:
            self.peer.stop()

    def on_header(self, payload: bytes) -> None:
        if self.closing:
            return
        self._header, self._parts = payload, []
        self._size = int.from_bytes(payload[4:12])
        if not self._size:
            self._published(b"")

    def on_body(self, payload: bytes) -> None:
        if self.closing:
            return
        self._parts.append(payload)
        if sum(map(len, self._parts)) >= self._size:
            self._published(b"".join(self._parts))

    def _published(self, body: bytes) -> None:
        broker, method = self.broker, self._publish
        if len(body) > broker.largest:
            text = f"message size {len(body)} is larger than configured max size {broker.largest}"
            self.refuse(406, f"PRECONDITION_FAILED - {text}", method)
            return
        queues = broker.routed(method.exchange, method.routing_key)
        if queues is None:
            text = f"NOT_FOUND - no exchange '{method.exchange}' in vhost '/'"
            self.refuse(404, text, method)
            return
        message = Message(method.exchange, method.routing_key, self._header, body)
        if not queues and method.mandatory:
            returned = spec.Basic.Return(312, "NO_ROUTE", method.exchange, method.routing_key)
            self.send(returned, message.content())
        if self.confirms:
            self.published += 1
            self._unconfirmed[self.published] = None
        taken, messages = True, [message, *(message.again() for _ in queues[1:])]
        for queue, each in zip(queues, messages, strict=False):
            if broker.stalls(queue):
                queue.waiting.append((each, self if self.confirms else None, self.published))
            elif not broker.enqueue(queue, each):
                taken = False
            elif self.confirms and (each.persistent or queue.quorum):
                broker.unsynced[each] = None
        if self.confirms and not any(map(broker.stalls, queues)):
            self.confirm_soon(self.published, messages, taken)
        for queue in queues:
            broker.deliver(queue)

    def confirm_soon(self, tag: int, messages: list[Message], taken: bool) -> None:
        """Confirm a message, or refuse it, in a moment."""
        self._to_confirm.append((tag, messages, taken))
        if len(self._to_confirm) == 1:
            delay = self.broker.random.choice([0, 0, 0.001, 0.005, 0.03])
            self.broker.clock.call_later(delay, self._confirm)

    def _confirm(self) -> None:
        """Confirm what has been written to disk, some together with others."""
        confirms, self._to_confirm = self._to_confirm, []
        for _, messages, _ in confirms:
            for message in messages:
                self.broker.unsynced.pop(message, None)
        if self.peer.ended or self.closing or not confirms:
            return
        for kind, taken in ((spec.Basic.Nack, False), (spec.Basic.Ack, True)):
            tags = [tag for tag, _, each in confirms if each is taken]
            for tag in tags:
                del self._unconfirmed[tag]
            # All before a tag are confirmed with it.
            whole = len(tags) > 1 and next(iter(self._unconfirmed), tags[-1] + 1) > tags[-1]
            if whole and self.broker.random.random() < 0.7:
                self.send(kind(tags[-1], multiple=True))
            else:
                for tag in tags:
                    self.send(kind(tag))


_METHODS: dict[type, Callable[[Channel, Any], None]] = {
    spec.Channel.Close: Channel.on_close,
    spec.Channel.CloseOk: Channel.on_close_ok,
    spec.Channel.Flow: Channel.on_flow,
    spec.Confirm.Select: Channel.on_confirm_select,
    spec.Queue.Declare: Channel.on_queue_declare,
    spec.Queue.Delete: Channel.on_queue_delete,
    spec.Queue.Bind: Channel.on_queue_bind,
    spec.Exchange.Declare: Channel.on_exchange_declare,
    spec.Basic.Qos: Channel.on_qos,
    spec.Basic.Consume: Channel.on_consume,
    spec.Basic.Cancel: Channel.on_cancel,
    spec.Basic.CancelOk: Channel.on_cancel_ok,
    spec.Basic.Get: Channel.on_get,
    spec.Basic.Ack: Channel.on_ack,
    spec.Basic.Nack: Channel.on_nack,
    spec.Basic.Reject: Channel.on_reject,
    spec.Basic.Publish: Channel.on_publish,
}


class Peer:
    """A client's connection."""

    def __init__(self, broker: Broker, wire: Wire):
        self.broker, self.wire = broker, wire
        self.channels: dict[int, Channel] = {}
        self.stopped = self.ended = self._closing = False
        self._buffer = b""
        self._begun = False
        self._interval = 0  # seconds of heartbeats
        self._heard = broker.clock.time()
        self._beat: Timer = broker.clock.call_later(HANDSHAKE, self._give_up)

    def _give_up(self) -> None:
        self.end()
        self.wire.abort()

    def _heartbeat(self) -> None:
        if self.ended:
            return
        if self.stopped:
            self._heard = self.broker.clock.time()
        if self.broker.clock.time() - self._heard > 2 * self._interval:
            self._give_up()
            return
        self.wire.write(_BEAT)
        self._beat = self.broker.clock.call_later(self._interval / 2, self._heartbeat)

    def lost(self) -> None:
        self.end()
        self._beat.cancel()

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

    def close(self, code: int, text: str, method: Any = None) -> None:
        index = 0 if method is None else method.INDEX
        self.send(spec.Connection.Close(code, text, index >> 16, index & 0xFFFF))
        self._closing = True

    def stop(self) -> None:
        """Read no more, because of an alarm."""
        self.stopped = True
        self.send(spec.Connection.Blocked("low on memory"))

    def go_on(self) -> None:
        self.stopped = False
        self.send(spec.Connection.Unblocked())
        self._read()

    def send(self, method: Any) -> None:
        self.wire.write(pika.frame.Method(0, method).marshal())

    def received(self, data: bytes) -> None:
        self._heard = self.broker.clock.time()
        self._buffer += data
        self._read()

    def _read(self) -> None:
        """Read what has come."""
        if not self._begun:
            if len(self._buffer) < 8:
                return
            self._begun, self._buffer = True, self._buffer[8:]
            self.send(spec.Connection.Start(0, 9, _PROPERTIES, "PLAIN AMQPLAIN", "en_US"))
        buffer, at = self._buffer, 0
        while len(buffer) - at >= 8 and not (self.ended or self.stopped):
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
            elif type(method) is spec.Channel.Open:
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
            if method.response != _LOGIN:
                self.close(403, _NO_LOGIN)
            else:
                self.send(spec.Connection.Tune(2047, FRAME, HEARTBEAT))
        elif name == "Connection.TuneOk":
            self._interval = method.heartbeat
        elif name == "Connection.Open":
            if method.virtual_host != "/":
                text = f"NOT_ALLOWED - vhost {method.virtual_host} not found"
                self.close(530, text, method)
                return
            self._beat.cancel()
            if self._interval:
                half = self._interval / 2
                self._beat = self.broker.clock.call_later(half, self._heartbeat)
            self.broker.peers[self] = None
            self.send(spec.Connection.OpenOk())
        elif name == "Connection.Close":
            self.end()
            self.send(spec.Connection.CloseOk())
            # The client ends the connection.
            self._beat = self.broker.clock.call_later(CLOSING, self.wire.abort)
        elif name == "Connection.CloseOk":
            self.end()
            self.wire.close()


# Encoding -------------------------------------------------------------------------------------


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


_BEAT = pika.frame.Heartbeat().marshal()


def _persistence(header: bytes) -> tuple[bool, str | None]:
    """Return whether a message is persistent, and its `expiration`, from its content header."""
    flags, at = int.from_bytes(header[12:14]), 14
    persistent = False
    for bit in range(15, 7, -1):
        if not flags & 1 << bit:
            continue
        if bit == 13:  # headers
            at += 4 + int.from_bytes(header[at : at + 4])
        elif bit == 12:  # delivery mode
            persistent, at = header[at] == 2, at + 1
        elif bit == 11:  # priority
            at += 1
        elif bit == 8:
            return persistent, header[at + 1 : at + 1 + header[at]].decode()
        else:  # content type, content encoding, correlation id, reply to
            at += 1 + header[at]
    return persistent, None


def _encoded(properties: spec.BasicProperties, size: int) -> bytes:
    """Return the payload of a content header."""
    return _CONTENT.pack(spec.Basic.INDEX, size) + b"".join(properties.encode())


def _died(message: Message, queue: str, reason: str, now: float) -> bytes:
    """Return the content header of a dead letter.

    https://www.rabbitmq.com/docs/dlx#effects
    """
    properties = message.properties
    headers = dict(properties.headers or {})
    deaths = headers.get("x-death", [])
    same = [death for death in deaths if (death["queue"], death["reason"]) == (queue, reason)]
    last: dict[str, Any] = {
        "count": 1 + sum(death["count"] for death in same),
        "reason": reason,
        "queue": queue,
        "time": datetime.fromtimestamp(int(now), UTC),
        "exchange": message.exchange,
        "routing-keys": [message.key],
    }
    if properties.expiration is not None:
        last["original-expiration"], properties.expiration = properties.expiration, None
    headers["x-death"] = [last, *(death for death in deaths if death not in same)]
    for name, value in (("reason", reason), ("queue", queue), ("exchange", message.exchange)):
        headers.setdefault(f"x-first-death-{name}", value)
    properties.headers = headers
    return _encoded(properties, len(message.body))


def _text(value: bool) -> str:
    return "true" if value else "false"


def _value(value: Any, whole: bool) -> str:
    """Write an argument's value, with its type if the other one has none."""
    if value is None:
        return "none"
    kind = "signedint" if isinstance(value, int) else "longstr"
    return f"the value '{value}' of type '{kind}'" if whole else str(value)


def _inequivalent(name: str, thing: str, given: str, there: str, kind: str = "queue") -> str:
    def said(text: str) -> str:
        return text if text == "none" or text.startswith("the value") else f"'{text}'"

    return (
        f"PRECONDITION_FAILED - inequivalent arg '{name}' for {kind} '{thing}' in vhost '/':"
        f" received {said(given)} but current is {said(there)}"
    )
