"""Our encoder's bytes, read by pika's decoder."""

from __future__ import annotations

import pika
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pika.exceptions import ShortStringTooLong
from pika.frame import decode_frame

from gateway.amqp.frames import OVERHEAD, Template, fields
from gateway.celery_message import CONTENT_ENCODING, CONTENT_TYPE, Message, common_headers

CHANNEL = 7


def frames(data: bytes) -> list[pika.frame.Frame]:
    found = []
    while data:
        size, frame = decode_frame(data)
        assert frame is not None, "a frame is incomplete"
        found.append(frame)
        data = data[size:]
    return found


def template(frame_max: int = 131_072, routing_key: str = "celery", **options) -> Template:
    options = {"delivery_mode": 1, "headers": {}, **options}
    shared = pika.BasicProperties(CONTENT_TYPE, CONTENT_ENCODING, **options)
    return Template(CHANNEL, frame_max, "", routing_key, shared)


names = st.text(max_size=63)  # 252 bytes at the most
ids = st.text(min_size=1, max_size=63)
numbers = st.integers(-(2**63), 2**63 - 1)
values = st.recursive(
    st.none() | st.booleans() | st.text() | numbers | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=10,
)


@given(
    message=st.builds(
        Message,
        task_id=ids,
        task=st.text(),
        queue=names,
        body=st.binary(max_size=300),
        delivery=st.dictionaries(names, values),
        persistent=st.booleans(),
        expires=st.none() | st.floats(0, 4e9),
    ),
    reply_to=st.none() | names,
    frame_max=st.integers(OVERHEAD + 1, 400),
)
@example(Message("1", "t", "q", b"x" * 92, {}), None, 100)
@example(Message("1", "t", "q", b"x" * 93, {}), None, 100)
@example(Message("1", "t", "q", b"x" * 184, {}), None, 100)
@example(Message("1", "t", "q", b"", {"params": {}}), "gateway.reply.1", 100)
def test_pika_reads_the_message_that_was_meant(message, reply_to, frame_max):
    made = template(
        frame_max,
        routing_key=message.queue,
        delivery_mode=2 if message.persistent else 1,
        reply_to=reply_to,
        headers=common_headers(message.task, message.options),
    )

    data = made.message(message.task_id, fields(message.own_headers()), message.body)
    method, header, *bodies = frames(data)

    assert {frame.channel_number for frame in (method, header, *bodies)} == {CHANNEL}
    publish = method.method
    assert isinstance(publish, pika.spec.Basic.Publish)
    assert (publish.exchange, publish.routing_key) == ("", message.queue)
    assert (publish.mandatory, publish.immediate) == (True, False)
    properties = vars(header.properties)
    assert {name: value for name, value in properties.items() if value is not None} == {
        "content_type": CONTENT_TYPE, "content_encoding": CONTENT_ENCODING,
        "headers": message.headers(), "delivery_mode": 2 if message.persistent else 1,
        "correlation_id": message.task_id, **({} if reply_to is None else {"reply_to": reply_to}),
    }  # fmt: skip
    assert header.body_size == len(message.body)
    assert b"".join(frame.fragment for frame in bodies) == message.body
    assert all(0 < len(frame.fragment) <= frame_max - OVERHEAD for frame in bodies)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=3))
def test_one_template_makes_many_messages(bodies):
    made = template(headers={"lang": "py"})

    data = b"".join(
        made.message(f"id-{n}", fields({"id": f"id-{n}", "delivery": {"n": n}}), body)
        for n, body in enumerate(bodies)
    )

    headers = [frame for frame in frames(data) if isinstance(frame, pika.frame.Header)]
    assert [(h.properties.correlation_id, h.properties.headers) for h in headers] == [
        (f"id-{n}", {"lang": "py", "id": f"id-{n}", "delivery": {"n": n}})
        for n in range(len(bodies))
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda long: template(routing_key=long),
        lambda long: template(reply_to=long),
        lambda long: template().message(long, b"", b""),
        lambda long: fields({long: ""}),
    ],
)
def test_what_fits_into_no_short_string_is_an_error(make):
    make("ü" * 127)
    with pytest.raises(ShortStringTooLong):
        make("ü" * 128)
