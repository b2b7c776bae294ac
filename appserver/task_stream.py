"""Read a worker's messages in large pieces, and acknowledge them together.

py-amqp reads a message in nine system calls, kombu's loop polls before each, and each
acknowledgement is a write of its own. Here one read takes everything that the broker has sent, and
one write acknowledges what the tasks of one turn of the loop have ended. A message of a known task
is found in what was read by its offsets; all else is passed on to py-amqp, frame by frame.

With gevent and eventlet, which have no such loop, greenlets do this. Other brokers than AMQP's work
as in Celery.
docs/decisions/0057-the-workers-connection.md has the figures.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from json import JSONDecoder
from struct import Struct, unpack_from
from typing import Any

import amqp
from celery import bootsteps
from celery.concurrency.solo import TaskPool
from celery.exceptions import InvalidTaskError
from celery.worker import state
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message
from kombu.utils.json import object_hook

from appserver.held_results import HeldResults, ThreadsResults
from appserver.private_parts import PrivateParts
from appserver.properties import decode_properties
from appserver.reply_connection import reply_connection
from appserver.result_script import ResultScript

READ = 65_536  # bytes that are read at once
TURN = 0.001  # seconds after which the loop gets its turn; a task that takes longer is slow

#: The variable that leaves the connection to py-amqp.
SWITCH = "GATEWAY_WORKER_STREAM"
#: The values that switch something off, in each of the app server's variables.
FALSE = {"0", "false", "f", "no", "n", "off"}

_METHOD = 1  # the kind of a frame
_FRAME_END = 0xCE
_DELIVER = b"\0\x3c\0\x3c"  # class basic, method deliver
_frame = Struct(">BHI")
#: basic.ack of one message, as a whole frame.
_ack = Struct(">BHIHHQBB")

_JSON, _UTF_8 = "application/json", "utf-8"
_decode_json = JSONDecoder(object_hook=object_hook).decode

log = logging.getLogger(__name__)

_PARTS = PrivateParts(
    "messages are read and acknowledged one by one",
    "amqp.transport:_AbstractTransport._read_buffer",
    "celery.worker.consumer.consumer:Consumer._maximum_prefetch_restored",
)


class TaskStream:
    """What a worker receives on the connection of its queues, and acknowledges there.

    py-amqp's buffer always has what was received and not yet handled, so that py-amqp itself can
    read on where a step of the consumer waits for an answer of the broker.
    """

    def __init__(self, consumer: Any, hub: Any):
        self._consumer, self._hub = consumer, hub
        self._tasks: Any = consumer.task_consumer
        self._channel = self._tasks.channel
        self._connection = consumer.connection.connection
        self._transport = self._connection.transport
        self._solo = isinstance(consumer.pool, TaskPool)
        self._results = _held_results(consumer)
        if self._results:
            # Of a message that py-amqp has read.
            self._channel.basic_ack = self._ack_after_results
        #: The bytes of the longest message that is not left to py-amqp; its body is one frame.
        self._longest = min(READ, self._connection.frame_max)
        self._tls = isinstance(self._transport.sock, ssl.SSLSocket)
        #: The delivery tags to acknowledge. The threads of a pool append to it.
        self._ended: deque[int] = deque()
        #: Whether a flush follows in any case, so that nobody has to schedule one.
        self._flush_follows = False
        #: What was received is not yet handled. Steps of the consumer may have read more.
        self._continues = True
        #: The names of the tasks that took less than a turn when they were received last.
        self._quick: set[str] = set()

    def register(self) -> None:
        """Let kombu's loop tell when something can be read."""
        self._hub.add_reader(self._transport.sock, self._on_readable)
        self._hub.call_soon(self._handle_all)

    def acknowledge(self, tag: int) -> None:
        """Acknowledge a message at the end of the loop's turn; any thread may call this.

        Where the thread's result is held, that comes first.
        """
        if not (self._results and self._results.follow(partial(self._acknowledge, tag))):
            self._acknowledge(tag)

    def _acknowledge(self, tag: int) -> None:
        self._ended.append(tag)
        if self._solo and state.should_stop is not None:
            # What py-amqp has read is acknowledged in the loop's next turn, which may be the last
            # one. The other pools write acknowledgements while they end.
            self.flush()
        elif not self._flush_follows:
            self._flush_follows = True
            self._hub.call_soon(self.flush)

    def refuse(self, message: TaskMessage, *how: Any) -> None:
        """Reject a message, in the loop's next turn; any thread may call this."""
        self._hub.call_soon(message.reject_log_error, *how)

    def _on_readable(self) -> None:
        if self._continues:
            return
        try:
            self._receive()
        except (BlockingIOError, TimeoutError):
            return
        self._handle_all()

    def _handle_all(self) -> None:
        # Where the connection is lost, what was received comes again on the next one.
        self._continues = self._transport.connected and self._handle()
        if self._continues:
            self._hub.call_soon(self._handle_all)

    def drain(self, timeout: float | None = None) -> None:
        """Read and handle what comes within so many seconds, where no loop tells that it has.

        None: wait for ever. Raises TimeoutError, OSError.
        """
        if not self._continues:
            try:
                self._receive(timeout)
            except BlockingIOError as exc:
                raise TimeoutError from exc
        self._continues = self._handle()
        time.sleep(0)  # other greenlets have their turn, also where there is always more

    def _receive(self, timeout: float | None = 0) -> None:
        """Read what has come. Raises OSError; BlockingIOError or TimeoutError: it is nothing."""
        try:
            if self._tls or timeout != 0:
                with self._transport.having_timeout(timeout) as sock:
                    received: bytes = sock.recv(READ)
            else:
                received = self._transport.sock.recv(READ, socket.MSG_DONTWAIT)
            if not received:
                raise ConnectionResetError("the broker closed the connection")
        except (BlockingIOError, TimeoutError):
            raise
        except OSError:
            self._transport.connected = False
            raise
        self._connection.bytes_recv += 1  # otherwise the broker's heartbeats seem to be missed
        self._transport._read_buffer += received

    def _handle(self) -> bool:
        """Handle what was received until the turn is over; tell whether there may be more."""
        end = time.monotonic() + TURN
        self._flush_follows = True
        try:
            while self._handle_next():
                if time.monotonic() > end:
                    return True
        finally:
            self.flush()
        return False

    def _handle_next(self) -> bool:
        """Handle one message, or one frame; tell whether there was one that is complete."""
        data = self._transport._read_buffer
        if len(data) < _frame.size:
            return False
        kind, channel, size = _frame.unpack_from(data)
        end = _frame.size + size + 1
        if len(data) < end:
            return False
        payload = data[_frame.size : end - 1]
        if kind == _METHOD and payload.startswith(_DELIVER) and channel == self._channel.channel_id:
            length = _length(data, end)
            if len(data) < length <= self._longest:
                return False
            if length <= self._longest and (message := self._message(data, payload, end)):
                self._transport._read_buffer = data[length:]
                self._begin(message)
                return True
        self._transport._read_buffer = data[end:]
        self._connection.on_inbound_frame((kind, channel, payload))
        return True

    def _message(self, data: bytes, deliver: bytes, at: int) -> TaskMessage | None:
        """Return the message that begins with the method `deliver`, and has its header at `at`.

        None: it is not one for the worker's queues, or is left to py-amqp for another reason.
        """
        length = deliver[4]
        consumer_tag = deliver[5 : 5 + length].decode()
        callback = self._channel.callbacks.get(consumer_tag)
        if getattr(callback, "__self__", None) != self._tasks or self._channel.no_ack_consumers:
            return None
        tag, redelivered = unpack_from(">QB", deliver, 5 + length)
        exchange, routing_key = _names(deliver[14 + length :])
        info = {
            "consumer_tag": consumer_tag,
            "delivery_tag": tag,
            "redelivered": bool(redelivered),
            "exchange": exchange,
            "routing_key": routing_key,
        }
        return TaskMessage(self, self._channel, self._tasks.accept, info, data, at)

    def _begin(self, message: TaskMessage) -> None:
        """Give the message to its task, as Celery's consumer does."""
        consumer = self._consumer
        name = message.headers.get("task", "")
        strategy = consumer.strategies.get(name) if isinstance(name, str) else None
        # Celery's own way knows more: what is unknown, and the prefetch limit, which it has reduced
        # after a lost connection and now raises with each task.
        if strategy is None or (consumer.restart_count and not consumer._maximum_prefetch_restored):
            self._tasks.on_message(message)
            return
        # Its end may be far away, or that of the process. A quick one is not worth a write.
        if name not in self._quick:
            self.flush()
            self._flush_follows = True
        if self._results:
            more = bool(self._transport._read_buffer)
            self._results.begin(more, _tells(consumer.event_dispatcher))
        begin = time.monotonic()
        try:
            strategy(message, None, message.acknowledge, message.refuse, consumer.on_task_message)
        except (InvalidTaskError, ContentDisallowed) as exc:
            consumer.on_invalid_task(None, message, exc)
        except DecodeError as exc:
            consumer.on_decode_error(message, exc)
        if time.monotonic() - begin < TURN:
            self._quick.add(name)
        else:
            self._quick.discard(name)

    def _ack_after_results(self, tag: int, multiple: bool = False) -> None:
        """Acknowledge one message after all results that are held, as its own may be."""
        if self._results:
            self._results.after(partial(self._acknowledge, tag))

    def write_results(self) -> None:
        """Write all results, also those for which a store may have to be waited for."""
        if self._results:
            self._results.flush()

    def flush(self) -> None:
        """Write all results of a turn, then all acknowledgements. Raises OSError."""
        self._flush_follows = False  # first: what is appended from now on schedules another one
        tags = [self._ended.popleft() for _ in range(len(self._ended))]
        if self._results:
            self._results.end_turn()
        if not tags:
            return
        if not (self._transport.connected and self._channel.is_open):
            log.warning("%d tasks have ended without a connection: they run again", len(tags))
            return
        number = self._channel.channel_id
        self._transport.write(
            b"".join(_ack.pack(_METHOD, number, 13, 60, 80, tag, 0, _FRAME_END) for tag in tags)
        )
        self._connection.bytes_sent += 1


def _held_results(consumer: Any) -> HeldResults | None:
    """Return what holds the results of the pool, which is the same on each connection."""
    if isinstance(consumer.pool, TaskPool):
        kind = HeldResults
    elif consumer.pool.is_green or type(consumer.pool).__module__ == "celery.concurrency.thread":
        kind = ThreadsResults
    else:
        return None
    held = reply_connection(consumer.app).held
    return hold_results(consumer.app, kind) if held is None else held


def hold_results(
    app: Any, kind: type[HeldResults], tell: Callable[[Sequence[Any]], object] | None = None
) -> HeldResults:
    """Have the results of the app's tasks held; `tell` as in `HeldResults`."""
    connection, backend = reply_connection(app), app.backend
    store_all = backend.store_all if isinstance(backend, ResultScript) else None
    connection.held = kind(connection.publish_all, store_all, tell)
    return connection.held


def _tells(dispatcher: Any) -> bool:
    """Tell whether events of tasks are sent: whoever gets one may look for the result."""
    sends: bool = dispatcher is not None and dispatcher.enabled
    return sends and not (dispatcher.groups and "task" not in dispatcher.groups)


def _length(data: bytes, at: int) -> int:
    """Return the bytes of a delivery whose header frame begins at `at`.

    As long as that has not come, it is one byte more than there are. What is longer than the
    longest frame has several frames for its body, and is even longer.
    """
    if len(data) < at + 19:
        return len(data) + 1
    size, body = unpack_from(">I", data, at + 3)[0], unpack_from(">Q", data, at + 11)[0]
    length: int = at + 8 + size + (8 + body if body else 0)
    return length


@lru_cache(maxsize=1024)
def _names(names: bytes) -> tuple[str, str]:
    """Decode an exchange and a routing key, two strings after their lengths."""
    length = names[0]
    return names[1 : 1 + length].decode(), names[2 + length :].decode()


_Message: Any = Message  # for mypy: kombu has no types


class TaskMessage(_Message):
    """kombu's message; it is acknowledged together with others, and decodes JSON directly."""

    def __init__(
        self,
        stream: TaskStream,
        channel: Any,
        accept: Any,
        info: dict[str, Any],
        data: bytes,
        at: int,
    ):
        """Read the header and body frames, which begin at `at`, and of which none is missing."""
        self._stream = stream
        self._payload: Any = None
        size = unpack_from(">I", data, at + 3)[0]
        properties = decode_properties(data, at + 19)
        body = unpack_from(">Q", data, at + 11)[0]
        begin = at + 8 + size + 7
        super().__init__(
            body=_text(data[begin : begin + body], properties.get("content_encoding", _UTF_8)),
            delivery_tag=info["delivery_tag"],
            content_type=properties.get("content_type"),
            content_encoding=properties.get("content_encoding"),
            delivery_info=info,
            properties=properties,
            headers=properties.get("application_headers") or {},
            accept=accept,
            channel=channel,
        )

    @property
    def payload(self) -> Any:
        """The decoded body. Raises what `decode` does."""
        if self._payload is None:
            self._payload = self.decode()
        return self._payload

    def decode(self) -> Any:
        """Decode the body. Raises DecodeError, ContentDisallowed."""
        ours = self.content_type == _JSON and self.content_encoding == _UTF_8
        if not ours or not (self.accept is None or _JSON in self.accept):
            return super().decode()
        try:
            return _decode_json(self.body.decode())
        except (ValueError, RecursionError) as exc:
            raise DecodeError(str(exc)) from exc

    def acknowledge(self, logger: Any, errors: Any) -> None:
        """Acknowledge the message, as a request does when it has ended; any thread may."""
        self._stream.acknowledge(self.delivery_tag)

    def refuse(self, logger: Any, errors: Any, requeue: bool) -> None:
        """Reject the message; any thread may."""
        self._stream.refuse(self, logger, errors, requeue)


def _text(body: bytes, encoding: str) -> str | bytes:
    """Return `body` as py-amqp does; what decodes it later takes bytes as UTF-8."""
    if encoding == _UTF_8:
        return body
    try:
        return body.decode(encoding)
    except (LookupError, ValueError):  # no text, as "binary"
        return body


class Stream(bootsteps.StartStopStep):
    """Read the connection of the worker's queues by `TaskStream`, each time there is a new one."""

    requires = ("celery.worker.consumer.tasks:Tasks",)
    _greenlet: Greenlet | None = None

    def include_if(self, parent: Any) -> bool:
        return os.environ.get(SWITCH, "1").lower() not in FALSE and _PARTS.there

    def start(self, parent: Any) -> None:
        connection = parent.connection
        if parent.hub is None and parent.pool.is_green and _is_amqp(connection):
            if self._greenlet is None:
                self._greenlet = Greenlet()
            parent.stream = TaskStream(parent, self._greenlet)
            connection.drain_events = parent.stream.drain

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        if _is_amqp(parent.connection):
            parent.stream = TaskStream(parent, hub)
            parent.stream.register()


def _is_amqp(connection: Any) -> bool:
    return isinstance(connection.connection, amqp.Connection)


class Greenlet:
    """A greenlet that calls what is due, as kombu's loop does for other pools."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], object]] = deque()
        self._is_due = threading.Event()
        threading.Thread(target=self._run, name="task-stream", daemon=True).start()

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        self._due.append(partial(call, *args))
        self._is_due.set()

    def _run(self) -> None:
        while self._is_due.wait():
            self._is_due.clear()
            while self._due:
                try:
                    self._due.popleft()()
                except OSError as exc:  # whoever reads the connection finds out as well
                    log.info("Messages could not be acknowledged: %s", exc)
                except Exception:
                    log.exception("A message could not be acknowledged")
