"""A worker's messages are found in what the broker sends, however that is cut into pieces."""

from __future__ import annotations

import json
import logging
import socket
import threading
from contextlib import nullcontext
from functools import partial
from struct import unpack_from
from types import SimpleNamespace
from unittest.mock import Mock

import pika
import pytest
from amqp.basic_message import Message
from amqp.serialization import decode_properties_basic
from celery.concurrency import solo
from celery.exceptions import InvalidTaskError
from celery.worker import state
from hypothesis import example, given
from hypothesis import strategies as st
from kombu.asynchronous.hub import Hub
from kombu.exceptions import ContentDisallowed, DecodeError
from pika.frame import Body, Header, Heartbeat, Method

from appserver import held_results, task_stream
from appserver.held_results import Stored
from appserver.properties import decode_properties
from appserver.task_stream import SWITCH, Greenlet, Stream, TaskStream

CHANNEL = 1
SECONDS = 60.0


def deliver(tag: int, body: bytes = b"[]", consumer: str = "tasks", **properties) -> bytes:
    """Encode a delivery to `consumer`, its body in frames of at most 4,088 bytes."""
    properties = {"content_type": "application/json", "content_encoding": "utf-8", **properties}
    frames = [
        Method(CHANNEL, pika.spec.Basic.Deliver(consumer, tag, False, "", "queue")),
        Header(CHANNEL, len(body), pika.BasicProperties(headers={"task": "t"}, **properties)),
        *(Body(CHANNEL, body[at : at + 4088]) for at in range(0, len(body), 4088)),
    ]
    return b"".join(frame.marshal() for frame in frames)


class Tasks:
    """The consumer of the queues; `stock` has what Celery's own way gets."""

    def __init__(self):
        self.accept, self.stock = {"application/json"}, []
        self.channel = SimpleNamespace(
            channel_id=CHANNEL,
            callbacks={"tasks": self.on_message, "other": print},
            no_ack_consumers=set(),
            is_open=True,
        )

    def on_message(self, message):
        self.stock.append(message.delivery_tag)


class Worker:
    """A stream with a broker at its other end; no task is run."""

    def __init__(self, frame_max: int = 131_072):
        self.broker, sock = socket.socketpair()
        self.handled, self.frames, self.invalid = [], [], []
        self.tasks, self.hub, write = Tasks(), Hub(), sock.sendall
        self.transport = SimpleNamespace(sock=sock, write=write, connected=True, _read_buffer=b"")
        self.transport.having_timeout = lambda seconds: nullcontext(sock)
        self.amqp = SimpleNamespace(
            transport=self.transport, bytes_recv=0, bytes_sent=0, frame_max=frame_max,
            on_inbound_frame=self.frames.append,
        )  # fmt: skip
        self.consumer = SimpleNamespace(
            task_consumer=self.tasks,
            connection=SimpleNamespace(connection=self.amqp),
            strategies={"t": self.begin},
            restart_count=0,
            pool=SimpleNamespace(is_green=False),
            on_task_message=(),
            on_invalid_task=lambda _, message, exc: self.invalid.append(exc),
            on_decode_error=lambda message, exc: self.invalid.append(exc),
        )
        self.stream = TaskStream(self.consumer, self.hub)
        self.stream.register()
        self.soon()

    def begin(self, message, body, acknowledge, refuse, callbacks):
        assert message.payload is message.payload  # decoded once
        self.handled.append((message.delivery_tag, message.payload))
        acknowledge(None, ())

    def read(self):
        """Read as the loop does."""
        callback, arguments = self.hub.readers[self.transport.sock.fileno()]
        callback(*arguments)

    def turn(self):
        """Read, and do all that is due."""
        self.read()
        self.soon()

    def soon(self):
        while todo := self.hub._pop_ready():
            for item in todo:
                item()

    def acknowledged(self) -> list[int]:
        self.broker.setblocking(False)
        written = self.broker.recv(65_536)
        assert len(written) % 21 == 0
        return [unpack_from(">Q", written, at + 11)[0] for at in range(0, len(written), 21)]


@pytest.fixture
def start():
    workers = []

    def start(**options):
        workers.append(Worker(**options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.broker.close()
        worker.transport.sock.close()
        worker.hub.close()


@pytest.fixture
def worker(start):
    return start()


def test_messages_are_found_wherever_they_are_cut(start):
    whole = b"".join(
        (deliver(1, b'["\xc3\xa9"]'), Heartbeat().marshal(), deliver(2), deliver(3, b'{"a":1}'))
    )
    for cut in range(1, len(whole)):
        worker = start()
        for part in (whole[:cut], whole[cut:]):
            worker.broker.sendall(part)
            worker.turn()
        assert worker.handled == [(1, ["é"]), (2, []), (3, {"a": 1})]
        assert [kind for kind, _, _ in worker.frames] == [8]
        assert worker.acknowledged() == [1, 2, 3]
        assert worker.transport._read_buffer == b""


def test_what_is_left_of_a_lost_connection_is_not_handled(worker, monkeypatch):
    monkeypatch.setattr(task_stream, "TURN", 0.0)
    worker.broker.sendall(deliver(1) + deliver(2))

    worker.read()
    worker.transport.connected = False
    worker.soon()

    assert worker.handled == [(1, [])]


def test_what_was_read_is_handled_before_more_is_read(worker, monkeypatch):
    monkeypatch.setattr(task_stream, "TURN", 0.0)
    worker.broker.sendall(deliver(1) + deliver(2))
    worker.read()
    worker.broker.sendall(deliver(3))
    worker.read()
    assert worker.handled == [(1, [])]
    worker.soon()
    assert worker.handled == [(1, []), (2, [])]
    worker.read()
    assert worker.handled == [(1, []), (2, []), (3, [])]
    assert worker.acknowledged() == [1, 2, 3]


def test_a_frame_longer_than_what_is_read_at_once(worker):
    frame = Body(CHANNEL, b"x" * 120_000).marshal()

    for at in range(0, len(frame), 30_000):
        worker.broker.sendall(frame[at : at + 30_000])
        worker.turn()

    assert [(kind, len(payload)) for kind, _, payload in worker.frames] == [(3, 120_000)]


def test_what_does_not_fit_into_one_frame_is_left_to_amqp(start):
    worker = start(frame_max=4096)
    body = json.dumps(["x" * 5_000]).encode()

    worker.broker.sendall(deliver(1, body) + deliver(2))
    worker.turn()

    assert [kind for kind, _, _ in worker.frames] == [1, 2, 3, 3]
    assert worker.handled == [(2, [])]


@pytest.mark.parametrize(
    ("consumer", "acknowledged"), [("other", True), ("unknown", True), ("tasks", False)]
)
def test_what_is_not_the_streams_is_left_to_amqp(worker, consumer, acknowledged):
    """Other consumers' messages, and those that need no acknowledgement."""
    if not acknowledged:
        worker.tasks.channel.no_ack_consumers.add(consumer)
    worker.broker.sendall(deliver(1, consumer=consumer))
    worker.turn()
    assert (worker.handled, [kind for kind, _, _ in worker.frames]) == ([], [1, 2, 3])


def invalid(*_):
    raise InvalidTaskError("no")


@pytest.mark.parametrize(
    ("body", "options", "begin", "error"),
    [
        (b"no JSON", {}, None, DecodeError),
        (b"\xff", {}, None, DecodeError),
        (b"[" * 50_000, {}, None, DecodeError),
        (b"x", {"content_type": "application/x-python-serialize"}, None, ContentDisallowed),
        (b"[]", {}, invalid, InvalidTaskError),
    ],
)
def test_what_cannot_be_begun_is_told(worker, body, options, begin, error):
    worker.consumer.strategies["t"] = begin or worker.begin
    worker.broker.sendall(deliver(1, body, **options))
    worker.turn()
    assert [type(exc) for exc in worker.invalid] == [error]


def test_a_message_without_a_body_has_two_frames(worker):
    worker.broker.sendall(deliver(1, b"") + deliver(2))
    worker.turn()
    assert [type(exc) for exc in worker.invalid] == [DecodeError]
    assert worker.handled == [(2, [])]


@pytest.mark.parametrize(
    ("enabled", "groups", "tells"),
    [
        (True, (), True), (True, {"task", "worker"}, True), (True, {"worker"}, False),
        (False, (), False), (None, (), False),
    ],
)  # fmt: skip
def test_whether_events_of_tasks_are_sent(enabled, groups, tells):
    dispatcher = None if enabled is None else SimpleNamespace(enabled=enabled, groups=groups)
    assert task_stream._tells(dispatcher) is tells


@pytest.mark.parametrize(
    ("encoding", "body", "decoded"),
    [
        ("iso-8859-1", '["é"]'.encode("iso-8859-1"), ["é"]),
        ("UTF-16", '["é"]'.encode("utf-16"), ["é"]),
        ("UTF8", '["é"]'.encode(), ["é"]),
        ("binary", b'["a"]', ["a"]),
        ("unknown", b'["a"]', ["a"]),
        ("ascii", '["é"]'.encode(), ["é"]),  # left as bytes, as by py-amqp
    ],
)
def test_a_body_is_read_in_its_own_encoding(worker, encoding, body, decoded):
    worker.broker.sendall(deliver(1, body, content_encoding=encoding))
    worker.turn()
    assert worker.handled == [(1, decoded)]


@pytest.mark.parametrize("reason", ["unknown", "reduced prefetch"])
def test_celerys_own_way_gets_what_only_it_knows(worker, reason):
    if reason == "unknown":
        worker.consumer.strategies.clear()
    else:
        worker.consumer.restart_count, worker.consumer._maximum_prefetch_restored = 1, False
    worker.broker.sendall(deliver(1))
    worker.turn()
    assert (worker.handled, worker.tasks.stock) == ([], [1])


def test_the_last_turn_of_solo_writes_what_is_acknowledged_in_it(worker, monkeypatch):
    monkeypatch.setattr(task_stream, "_held_results", lambda consumer: None)
    monkeypatch.setattr(state, "should_stop", 0)  # the worker is told to end, with this code
    worker.stream.acknowledge(7)
    with pytest.raises(BlockingIOError):
        worker.acknowledged()
    worker.soon()
    assert worker.acknowledged() == [7]
    worker.consumer.pool = solo.TaskPool(1)
    TaskStream(worker.consumer, worker.hub).acknowledge(8)
    assert worker.acknowledged() == [8]


def test_a_task_that_ends_without_a_connection_is_told(worker, caplog):
    worker.transport.connected = False
    worker.stream.acknowledge(7)
    worker.soon()
    assert caplog.messages == ["1 tasks have ended without a connection: they run again"]


def test_a_message_is_refused_in_the_loop(worker):
    rejected = []
    worker.tasks.channel.basic_reject = lambda tag, requeue: rejected.append((tag, requeue))
    worker.consumer.strategies["t"] = lambda message, _, __, refuse, ___: refuse(None, (), True)
    worker.broker.sendall(deliver(7))
    worker.turn()
    assert rejected == [(7, True)]


def test_nothing_has_come(worker):
    worker.turn()
    assert worker.handled == []
    assert worker.transport.connected


def test_the_broker_closes_the_connection(worker):
    worker.broker.close()
    with pytest.raises(ConnectionResetError):
        worker.turn()
    assert not worker.transport.connected


@pytest.mark.parametrize(("value", "used"), [(None, True), ("1", True), ("0", False)])
def test_a_variable_leaves_the_connection_to_amqp(monkeypatch, value, used):
    if value is not None:
        monkeypatch.setenv(SWITCH, value)
    assert Stream.include_if(None, None) is used


def test_another_brokers_connection_is_left_alone():
    consumer = SimpleNamespace(connection=SimpleNamespace(connection=object()))
    Stream.register_with_event_loop(None, consumer, None)


FLOATS = st.floats(allow_nan=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.text() | st.integers(-(2**40), 2**40) | FLOATS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=50), inner),
    max_leaves=20,
)
SHORT = st.text(max_size=60)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("content_type", "content_encoding", "correlation_id"), SHORT),
            **dict.fromkeys(("reply_to", "expiration", "message_id"), SHORT),
            **dict.fromkeys(("delivery_mode", "priority"), st.integers(0, 255)),
            "application_headers": st.dictionaries(st.text(max_size=50), VALUES),
        },
    )
)
@example({"application_headers": {"some": [1, "x"]}})
def test_properties_are_those_that_amqp_decodes(properties):
    encoded = Message("", **properties)._serialize_properties()
    assert decode_properties(encoded, 0) == decode_properties_basic(encoded, 0)[0]


def test_a_gateways_headers_are_decoded():
    headers = {
        "id": "1", "eta": None, "retries": 2, "ignore_result": True, "timelimit": [None, None],
        "delivery": {"store": False, "params": {}},
    }  # fmt: skip
    properties = {"application_headers": headers, "priority": 1, "reply_to": "gateway.reply.é"}
    encoded = Message("", **properties)._serialize_properties()
    assert decode_properties(encoded, 0) == properties


def test_headers_that_are_no_text_are_bytes_as_in_amqp():
    table = b"\x04nameS\0\0\0\x02\xff\xfe"
    encoded = b"\x20\0" + len(table).to_bytes(4, "big") + table
    assert decode_properties(encoded, 0) == {"application_headers": {"name": b"\xff\xfe"}}


def test_greenlets_read_and_acknowledge_without_a_loop(start):
    worker = start()
    done = threading.Event()
    greenlet = Greenlet()
    worker.stream = TaskStream(worker.consumer, greenlet)
    worker.stream.drain(SECONDS)  # of what the consumer's steps have read
    with pytest.raises(TimeoutError):
        worker.stream.drain(0)
    worker.broker.sendall(deliver(1) + deliver(2)[:10])
    worker.stream.drain(SECONDS)
    worker.broker.sendall(deliver(2)[10:])
    worker.stream.drain(SECONDS)
    assert worker.handled == [(1, []), (2, [])]
    assert worker.acknowledged() == [1, 2]
    worker.stream.acknowledge(3)  # by a task's greenlet, at any time
    greenlet.call_soon(done.set)
    assert done.wait(SECONDS)
    assert worker.acknowledged() == [3]


def test_the_greenlet_survives_a_lost_connection(start, caplog):
    worker, done, greenlet = start(), threading.Event(), Greenlet()
    worker.stream = TaskStream(worker.consumer, greenlet)
    worker.transport.write = Mock(side_effect=ConnectionResetError("reset"))
    caplog.set_level(logging.INFO)
    worker.stream.acknowledge(1)
    greenlet.call_soon(Mock(side_effect=KeyError("a fault")))
    greenlet.call_soon(done.set)
    assert done.wait(SECONDS)
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]


def test_what_amqp_has_read_is_acknowledged_after_its_result_was_written(start, monkeypatch):
    """And the loop does not wait for a store."""
    worker, held, stores = start(), held_results.ThreadsResults(bool, None), threading.Event()
    worker.tasks.channel.basic_ack = Mock()  # py-amqp's own
    held._stores._store_all = lambda _results: [stores.wait(SECONDS)]
    held._stores.end(partial(held._stores.hold_stored, Stored(b"key", "value", 0), int))
    monkeypatch.setattr(task_stream, "_held_results", lambda consumer: held)
    TaskStream(worker.consumer, worker.hub)
    worker.tasks.channel.basic_ack(1, multiple=False)
    worker.soon()
    with pytest.raises(BlockingIOError):
        worker.acknowledged()
    stores.set()
    held.flush()
    worker.soon()
    assert worker.acknowledged() == [1]
