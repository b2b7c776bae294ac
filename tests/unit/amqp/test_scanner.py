"""The scanner beside pika's own path: the same stream, however split, means the same events."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pika
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import BodyTooLongError, InvalidFrameError
from pika.spec import Basic

from gateway.amqp import frames
from gateway.amqp.connection import TurnConnection
from gateway.amqp.frames import Scanner

OURS, OTHER = 1, 2  # channels
CONSUMER = "gateway"


# What a broker may send -------------------------------------------------------------------


def content(channel, method, body, size, **properties):
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return [
        pika.frame.Method(channel, method),
        pika.frame.Header(channel, len(body), pika.BasicProperties(**properties)),
        *(pika.frame.Body(channel, piece) for piece in pieces),
    ]


def delivery(channel, consumer_tag, body, size, **properties):
    method = Basic.Deliver(consumer_tag, 1, exchange="", routing_key="gateway.reply.1")
    return content(channel, method, body, size, **properties)


def returned(body, size, **properties):
    method = Basic.Return(312, "NO_ROUTE", exchange="", routing_key="q")
    return content(OURS, method, body, size, **properties)


optional = lambda strategy: st.none() | strategy  # noqa: E731
properties = st.fixed_dictionaries(
    {"correlation_id": optional(st.text(max_size=20))},
    optional={
        "content_type": st.just("application/json"),
        "content_encoding": st.just("utf-8"),
        "headers": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
        "delivery_mode": st.sampled_from((1, 2)),
        "priority": st.integers(0, 9),
        "reply_to": st.text(max_size=5),
        "expiration": st.just("1000"),
        "timestamp": st.integers(0, 2**32),
        "app_id": st.text(max_size=5),
    },
)
bodies, sizes = st.binary(max_size=40), st.integers(1, 50)
tags, multiple = st.integers(1, 2**40), st.booleans()

events = st.one_of(
    st.builds(lambda t, m: [pika.frame.Method(OURS, Basic.Ack(t, m))], tags, multiple),
    st.builds(lambda t, m: [pika.frame.Method(OURS, Basic.Nack(t, m))], tags, multiple),
    st.builds(lambda b, s, p: delivery(OURS, CONSUMER, b, s, **p), bodies, sizes, properties),
    st.builds(lambda b, s, p: delivery(OURS, "another", b, s, **p), bodies, sizes, properties),
    st.builds(lambda b, s, p: delivery(OURS, "gate", b, s, **p), bodies, sizes, properties),
    st.builds(lambda b, s, p: returned(b, s, **p), bodies, sizes, properties),
    st.just([pika.frame.Method(OURS, Basic.Cancel("stranger"))]),
)
elsewhere = st.one_of(
    st.just([pika.frame.Heartbeat()]),
    st.just([pika.frame.Method(0, pika.spec.Connection.Blocked("memory"))]),
    st.builds(lambda b, s, p: delivery(OTHER, CONSUMER, b, s, **p), bodies, sizes, properties),
)


@st.composite
def streams(draw):
    """The frames of one channel, and among them those of others, each channel in its order."""
    frames = [frame for event in draw(st.lists(events)) for frame in event]
    others = [frame for event in draw(st.lists(elsewhere, max_size=4)) for frame in event]
    places = [draw(st.integers(0, len(frames))) for _ in others]
    for place, frame in reversed(list(zip(sorted(places), others, strict=True))):
        frames.insert(place, frame)
    return b"".join(frame.marshal() for frame in frames)


@st.composite
def chunks(draw):
    data = draw(streams())
    cuts = sorted(draw(st.lists(st.integers(0, len(data)))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


# What becomes of it -----------------------------------------------------------------------


class Rig:
    """A connection without a wire, open, with both channels; writes down what it hears."""

    def __init__(self, connection_class: type[AsyncioConnection], **options):
        self.heard: list[tuple] = []
        self.connection = connection = connection_class(
            pika.ConnectionParameters(), internal_connection_workflow=False, **options
        )
        connection.server_capabilities = {"publisher_confirms": True, "basic.nack": True}
        connection._adapter_emit_data = lambda data: None
        connection._set_connection_state(connection.CONNECTION_OPEN)
        connection._heartbeat_checker = SimpleNamespace(received=self.write("heartbeat"))
        connection.add_on_connection_blocked_callback(self.write("blocked"))
        for number in (OURS, OTHER):
            channel = connection._channels[number] = pika.channel.Channel(
                connection, number, lambda channel: None
            )
            channel._add_callbacks()
            channel._set_state(channel.OPEN)
            channel.add_on_cancel_callback(self.write("cancel"))
            channel.add_on_return_callback(
                lambda c, m, p, b: self.heard.append(("return", p.correlation_id, b))
            )
            for tag in (CONSUMER, "another", "gate"):
                channel._consumers[tag] = lambda c, m, p, b: self.reply(
                    c.channel_number, m.consumer_tag, p.correlation_id or "", b
                )
        connection._channels[OURS].confirm_delivery(
            lambda f: self.confirm(
                f.method.delivery_tag, f.method.multiple, isinstance(f.method, Basic.Ack)
            )
        )

    def write(self, name):
        return lambda *_: self.heard.append((name,))

    def confirm(self, *confirm):
        self.heard.append(("confirm", *confirm))

    def reply(self, *reply):
        self.heard.append(("reply", *reply))


def pikas_own() -> Rig:
    return Rig(AsyncioConnection)


def scanned(before: bytes = b"") -> Rig:
    """Return one that has received something before there was a scanner."""
    rig = Rig(TurnConnection, throttling=Mock())
    rig.connection._proto_data_received(before)
    scanner = rig.connection.scan(OURS, rig.confirm)
    scanner.consume(CONSUMER, lambda *reply: rig.reply(OURS, CONSUMER, *reply))
    return rig


def hear(make, data) -> Rig:
    async def run():
        rig = make()
        for chunk in data:
            rig.connection._proto_data_received(chunk)
        return rig

    return asyncio.run(run())


RETURN_THEN_ACK = b"".join(
    frame.marshal()
    for frame in (
        *returned(b"x" * 10, 4, correlation_id="1"),
        pika.frame.Method(OURS, Basic.Ack(1)),
        pika.frame.Heartbeat(),
        *delivery(OURS, CONSUMER, b"y" * 10, 4, correlation_id="2"),
        pika.frame.Method(OURS, Basic.Nack(3, True)),
        *delivery(OURS, CONSUMER, b"", 4, correlation_id="none of ours"),
    )
)


@given(chunks())
@example([RETURN_THEN_ACK])
@example([RETURN_THEN_ACK[i : i + 1] for i in range(len(RETURN_THEN_ACK))])
def test_it_hears_what_pika_would_hear_in_the_same_order(data):
    theirs, ours = hear(pikas_own, data), hear(scanned, data)

    assert ours.heard == theirs.heard
    # and the heartbeat's checker sees the traffic
    assert ours.connection.bytes_received >= theirs.connection.bytes_received
    assert ours.connection.bytes_received == sum(map(len, data))


def test_the_return_comes_before_its_ack():
    assert hear(scanned, [RETURN_THEN_ACK]).heard == [
        ("return", "1", b"x" * 10),
        ("confirm", 1, False, True),
        ("heartbeat",),
        ("reply", OURS, CONSUMER, "2", b"y" * 10),
        ("confirm", 3, True, False),
        ("reply", OURS, CONSUMER, "none of ours", b""),
    ]


def test_what_pika_has_begun_to_read_is_read_on():
    """A frame may have arrived in part before there is a scanner."""
    rig = hear(partial(scanned, RETURN_THEN_ACK[:5]), [RETURN_THEN_ACK[5:]])
    assert rig.heard == hear(pikas_own, [RETURN_THEN_ACK]).heard
    assert rig.connection.bytes_received == len(RETURN_THEN_ACK)


def test_before_a_consumer_is_named_deliveries_are_pikas():
    on_frame, on_confirm = Mock(), Mock()
    frames = [f.marshal() for f in delivery(OURS, "", b"x", 4)]

    Scanner(OURS, on_frame, on_confirm).feed(b"".join(frames))

    assert [call.args[0] for call in on_frame.call_args_list] == frames


def test_a_reply_that_is_too_large_is_only_counted(monkeypatch):
    monkeypatch.setattr(frames, "MAX_STORED", 9)
    data = b"".join(
        frame.marshal() for size in (10, 9) for frame in delivery(OURS, CONSUMER, b"x" * size, 4)
    )
    bodies = [event[-1] for event in hear(scanned, [data]).heard]
    assert bodies == [10, b"x" * 9]


@pytest.mark.parametrize("make", [pikas_own, scanned])
def test_a_frame_without_its_end_and_more_body_than_announced_end_the_connection(make):
    for frame in (Basic.Ack(1), Basic.Nack(1)):
        with pytest.raises(InvalidFrameError):
            hear(make, [pika.frame.Method(OURS, frame).marshal()[:-1] + b"\0"])
    frames = delivery(OURS, CONSUMER, b"x" * 10, 4)
    frames[1].body_size = 9
    with pytest.raises(BodyTooLongError):
        hear(make, [b"".join(frame.marshal() for frame in frames)])
