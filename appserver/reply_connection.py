"""The AMQP connection on which a worker process publishes replies, and dead letters.

kombu's producer needs twice as much time as this module, and it notices a closed socket only when
it writes to it, which loses a message.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from socket import TCP_USER_TIMEOUT
from struct import pack
from typing import Any

import amqp
from celery import signals
from kombu.exceptions import OperationalError

from appserver.frozen_nodes import ASK, Node, begin_elsewhere, node_of
from appserver.held_results import HeldResults, Reply
from appserver.singletons import call_after_fork, one_of_app
from appserver.together import Together

WRITE_TIMEOUT = 2.0  # seconds; a reply that takes longer is stored instead
RETRY_AFTER = 1.0  # seconds until the next attempt after the broker could not be reached
USER_TIMEOUT = 10_000  # milliseconds that written bytes may stay unacknowledged

#: Errors of the broker and of its connection. py-amqp's AttributeError after a lost connection
#: cannot occur, because a connection is dropped at its first error.
ERRORS = (amqp.AMQPError, OperationalError, OSError)

#: Class basic, the body's size, the flags of the properties that follow: content type, content
#: encoding, delivery mode (1: transient) and correlation id.
_HEADER = b"\0\x3c\0\0%s\xd4\0\x10application/json\x05utf-8\x01%c%s"

log = logging.getLogger(__name__)


class ReplyConnection:
    """One AMQP connection that only publishes, shared by a process's threads.

    Replies are transient and not confirmed: if one is lost, so is the connection that waits for it.
    If a signal interrupts a write, the connection is closed, so that no half-written frame remains.
    """

    # kombu's connection and its socket; None while there is no connection.
    _link: Any
    _socket: Any
    # Monotonic seconds; no connection is tried earlier.
    _not_before: float
    # When the broker answered last (monotonic seconds).
    _answered: float
    #: Where the last connection was lost.
    _left: Node | None = None
    #: Those of the pool `solo`, which writes them together.
    held: HeldResults | None = None

    def __init__(self, app: Any):
        self._app = app
        self._link = self._socket = None
        self._together = Together[Reply](lambda some: [self.publish_all(some)] * len(some))
        self._forget()
        for ending in (signals.worker_process_shutdown, signals.worker_shutdown):
            ending.connect(self.close)
        call_after_fork(self._forget)

    def publish(self, reply: Reply) -> bool:
        """Write a reply, with those of other threads; tell whether it was written."""
        written: bool = self._together.write(reply)
        return written

    def publish_all(self, replies: Sequence[Reply]) -> bool:
        """Write all replies in one write, or none, within about `WRITE_TIMEOUT`; tell which.

        None is written while the broker blocks publishing connections because of an alarm.
        """
        with self._lock:
            if time.monotonic() < self._not_before:
                return False
            whole = False
            try:
                self._make_ready()
                if not self._blocked:
                    self._write(b"".join(self._frames(*reply) for reply in replies))
                whole = True
                return not self._blocked
            except ERRORS as exc:
                self._not_before = max(self._not_before, time.monotonic() + RETRY_AFTER)
                log.warning("Replies cannot be published; results are stored instead: %s", exc)
                return False
            finally:
                if not whole:
                    self._drop()

    @contextlib.contextmanager
    def channel(self, timeout: float = WRITE_TIMEOUT) -> Iterator[amqp.Channel]:
        """Yield a new channel to declare and to publish with confirms.

        Raises one of `ERRORS`, also where a call takes longer than `timeout` in seconds. A blocked
        connection is kept: the broker does not notice that it is closed, so each attempt would
        leave one more connection at the broker.
        """
        if self.held is not None:
            self.held.end_turn()  # otherwise it would wait for the broker's answers
        with self._lock:
            if time.monotonic() < self._not_before:
                raise OperationalError("the broker could not be reached a moment ago")
            whole = False
            try:
                self._make_ready()
                if self._blocked:
                    raise OperationalError("the broker blocks publishing connections")
                self._socket.settimeout(timeout)
                channel = self._link.connection.channel()
                yield channel
                channel.close()
                self._socket.settimeout(WRITE_TIMEOUT)
                whole = True
            finally:
                if not (whole or self._blocked):
                    self._drop()

    def close(self, **_signal: object) -> None:
        """Close the connection properly, as a worker's end does; a later reply opens another."""
        with self._lock:
            link, self._link = self._link, None
            if link is not None:
                link.release()
            self._drop()

    def _make_ready(self) -> None:
        if self._link is not None:
            try:
                # A poll costs a system call; reading with a timeout of 0 an exception as well.
                if self._readable(0):
                    self._read_events()
                self._ask()
            except ERRORS as exc:
                log.info("The connection for replies is given up: %s", exc)
                self._drop()
        if self._link is None:
            self._open()

    def _ask(self) -> None:
        """Wait for the broker's answer, unless it answered a moment ago.

        A frozen node would take all replies, and pass none on. One that blocks publishers does not
        read the question.
        """
        now = time.monotonic()
        if self._blocked or now - self._answered < ASK:
            return
        try:
            self._channel.flow(True)
        except TimeoutError:
            if not self._blocked:
                raise
        self._answered = now
        if self._readable(0):  # it may have ended right after the answer
            self._read_events()

    def _open(self) -> None:
        link = self._app.connection_for_write(
            heartbeat=0,
            connect_timeout=WRITE_TIMEOUT,
            transport_options={
                "confirm_publish": False,
                "socket_settings": {TCP_USER_TIMEOUT: USER_TIMEOUT},
                "on_blocked": self._on_blocked,
                "on_unblocked": self._on_unblocked,
            },
        )
        if link.transport.driver_type != "amqp":
            self._not_before = math.inf
            raise OperationalError("the broker is not an AMQP broker")
        self._link = link
        begin_elsewhere(link, self._left)
        link.ensure_connection(
            max_retries=max(len(link.alt), 1) - 1, interval_start=0, interval_step=0, interval_max=0
        )
        transport = link.connection.transport
        self._socket = transport.sock
        self._socket.settimeout(WRITE_TIMEOUT)
        self._channel = channel = link.connection.channel()
        self._answered = time.monotonic()
        self._frames = partial(frames, channel.channel_id, link.connection.frame_max)
        self._readable, self._write = _poll(self._socket), transport.write

    def _read_events(self) -> None:
        with contextlib.suppress(TimeoutError):
            while True:
                self._link.connection.drain_events(timeout=0)

    def _on_blocked(self, reason: str) -> None:
        log.warning("The broker blocks replies; results are stored instead: %s", reason)
        self._blocked = True

    def _on_unblocked(self) -> None:
        log.info("The broker takes replies again")
        self._blocked = False

    def _drop(self) -> None:
        if self._link is not None:
            self._left = node_of(self._link)
            self._link.collect()
        self._link = self._socket = None
        self._blocked = False

    def _forget(self) -> None:
        # In a child after a fork, the connection, and a lock that was held, belong to the parent.
        # Only this copy of the socket is closed; nothing is sent to the broker.
        if self._socket is not None:
            self._socket.close()
        self._link = self._socket = None
        self._blocked = False
        self._not_before = 0.0
        self._lock = threading.Lock()


#: Returns the connection for replies of an app in this process.
reply_connection = one_of_app("reply_connection", ReplyConnection)


def _poll(sock: Any) -> Callable[[float], Sequence[object]]:
    """Return a function that tells whether `sock` can be read within so many milliseconds."""
    if not hasattr(select, "poll"):  # eventlet takes it away
        return lambda milliseconds: select.select([sock], [], [], milliseconds / 1000)[0]
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return poll.poll


def frames(
    channel_id: int, frame_max: int, reply_to: str, correlation_id: str, body: bytes
) -> bytes:
    """Encode a basic.publish on the default exchange, its content header and its body.

    https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf, 4.2
    """
    correlation = correlation_id.encode()
    header = _HEADER % (pack(">Q", len(body)), len(correlation), correlation)
    size = frame_max - 8  # a frame has 8 bytes beside its payload
    chunks = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(
        (
            _method_frame(channel_id, reply_to),
            _frame(2, channel_id, header),
            *(_frame(3, channel_id, chunk) for chunk in chunks),
        )
    )


@lru_cache(maxsize=1024)
def _method_frame(channel_id: int, reply_to: str) -> bytes:
    key = reply_to.encode()
    return _frame(1, channel_id, pack(">HHHBB", 60, 40, 0, 0, len(key)) + key + b"\0")


def _frame(kind: int, channel_id: int, payload: bytes) -> bytes:
    return pack(">BHI", kind, channel_id, len(payload)) + payload + b"\xce"
