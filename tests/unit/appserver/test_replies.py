"""What is replied, what is stored, and the bytes of a reply."""

from __future__ import annotations

import io
import json
from struct import unpack
from unittest.mock import Mock, patch

import pytest
from amqp.basic_message import Message
from amqp.serialization import loads as amqp_loads
from celery import states
from celery.app.task import Context
from celery.result import AsyncResult, GroupResult
from celery.utils.objects import Bunch
from kombu.exceptions import EncodeError

from appserver.reply_backend import (
    ReplyBackend,
    SentinelReplyBackend,
    StorelessReplyBackend,
    carry_over,
    encode,
    json_result,
    must_store,
)
from appserver.reply_connection import frames
from appserver.result_script import meta_of

STORELESS = "appserver.reply_backend:StorelessReplyBackend"
NOWHERE = "amqp://127.0.0.1:1//"  # nothing listens there


@pytest.mark.parametrize(
    ("url", "backend"),
    [
        ("ReplyBackend+redis://127.0.0.1:1/3", ReplyBackend),
        ("ReplyBackend+rediss://127.0.0.1:1/3?ssl_cert_reqs=required", ReplyBackend),
        ("SentinelReplyBackend+sentinel://127.0.0.1:1/0;sentinel://b:2/0", SentinelReplyBackend),
        ("StorelessReplyBackend", StorelessReplyBackend),
    ],
)
def test_one_line_is_enough_in_any_app(celery, url, backend):
    app = celery(backend=f"appserver.reply_backend:{url}")
    assert type(app.backend) is backend
    if backend is ReplyBackend:
        assert (app.backend.connparams["port"], app.backend.connparams["db"]) == (1, 3)


def request(**headers):
    return Context({"id": "1", "task": "t", "reply_to": "gateway.reply.1", **headers})


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        (request(delivery={"store": True}), True),
        (request(delivery={"store": False}), False),
        (request(delivery={}), False),
        (request(delivery="store"), False),
        (request(other=1), False),
        (request(), True),
        (Bunch(name="unknown", reply_to="gateway.reply.1"), True),
        (None, True),
    ],
)
def test_the_request_says_whether_its_reply_is_stored_too(asked, stored):
    assert must_store(asked) is stored


@pytest.mark.parametrize("state", [states.STARTED, states.RETRY, "CUSTOM"])
def test_states_on_the_way_are_neither_replied_nor_stored(celery, state):
    # Nothing listens at either address, so any attempt raises.
    backend = "appserver.reply_backend:ReplyBackend+redis://127.0.0.1:1/0"
    app = celery(broker=NOWHERE, backend=backend)
    app.backend.store_result("1", {}, state, request=request(delivery={"store": False}))
    assert not hasattr(app, "reply_connection")


@pytest.mark.parametrize("task_id", ["1" * 256, "\u00e9" * 128, "\ud800", 1])
def test_no_reply_is_written_that_no_message_can_be(celery, task_id):
    app = celery(broker=NOWHERE, backend="appserver.reply_backend:ReplyBackend+redis://127.0.0.1:1")
    app.backend._store_result = stored = Mock()
    app.backend.store_result(task_id, 1, states.SUCCESS, request=request(delivery={}))
    address = {"delivery": {}, "reply_to": "gateway.reply." + "1" * 250}
    app.backend.store_result("1", 1, states.SUCCESS, request=request(**address))
    assert [call.args[0] for call in stored.call_args_list] == [task_id, "1"]
    assert not hasattr(app, "reply_connection")


def test_of_a_result_that_no_message_can_have_the_size_is_replied(celery, monkeypatch):
    monkeypatch.setattr("appserver.reply_backend.MAX_REPLY", 1_000)
    sent, app = [], celery(backend=STORELESS)
    app.reply_connection = Bunch(held=None, publish=lambda reply: sent.append(reply) or True)
    for result in ("x", "x" * 2_000):
        app.backend.store_result("1", result, states.SUCCESS, request=request(other=1))

    assert json.loads(sent[0].body)["result"] == "x"
    assert 2_000 < int(sent[1].body) < 2_200


def test_no_broker_means_not_replied(celery, caplog):
    app = celery(broker=NOWHERE, backend=STORELESS)
    for id in "12":
        app.backend.store_result(id, "x", states.SUCCESS, request=request(delivery={}))
    (told,) = [message for message in caplog.messages if "are stored" in message]
    assert told == (
        "Replies cannot be published; results are stored instead: [Errno 111] Connection refused"
    )


def test_a_broker_without_amqp_is_asked_once(celery):
    app = celery(broker="memory://", backend=STORELESS)
    app.backend.store_result("1", "x", states.SUCCESS, request=request(delivery={}))
    assert app.reply_connection.publish_all([("gateway.reply.1", "1", b"{}")]) is False


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (b"\xff", states.SUCCESS),
        (AsyncResult("2"), states.SUCCESS),
        (GroupResult("3", [AsyncResult("4")]), states.SUCCESS),
        (ValueError("no", object), states.FAILURE),
        (KeyboardInterrupt(), states.FAILURE),
    ],
)
def test_a_result_is_replied_as_celery_stores_it(celery, result, state):
    backend = celery(backend="cache+memory://").backend
    stored = json.loads(backend.encode({"result": backend.encode_result(result, state)}))
    assert json.loads(encode({"result": json_result(result, state)})) == stored


@pytest.mark.parametrize("state", [states.SUCCESS, states.STARTED])
@pytest.mark.parametrize(
    "task", [None, Context(group="g", parent_id="p"), Context(children=[AsyncResult("2")])]
)
def test_a_state_is_described_as_by_celery(celery, state, task):
    backend = celery(backend="cache+memory://").backend
    ours = meta_of(backend, "1", "x", state, None, task)
    theirs = {**backend._get_result_meta("x", state, None, task), "task_id": "1"}
    assert bool(ours.pop("date_done")) is bool(theirs.pop("date_done"))
    assert [*ours.items()] == [*theirs.items()]


@pytest.mark.parametrize("result", [object(), ValueError("returned, not raised")])
def test_a_result_that_is_not_json_is_an_error(result):
    with pytest.raises(EncodeError):
        encode({"result": json_result(result, states.SUCCESS)})


@pytest.mark.parametrize(
    ("ignores", "returned", "stored"),
    [(True, object(), None), (True, {"a": 1}, {"a": 1}), (False, {"a": 1}, {"a": 1})],
)
def test_what_a_task_returns_that_ignores_its_result_need_not_be_json(
    celery, ignores, returned, stored
):
    app = celery(broker=NOWHERE, backend=STORELESS)

    @app.task(name="t", ignore_result=ignores, shared=False)
    def ignoring(): ...

    with patch.object(type(app.backend), "store_result") as store:
        app.backend.mark_as_done("1", returned, request(delivery={}))
    assert store.call_args.args[:3] == ("1", stored, states.SUCCESS)


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 10_000])
def test_frames_are_what_an_amqp_client_reads(size):
    body = b"x" * size

    stream = io.BytesIO(frames(7, 4096, "gateway.reply.é", "task-1", body))
    (kind, method), (header_kind, header), *chunks = read_frames(stream, channel_id=7)

    assert (kind, method[:4]) == (1, b"\0\x3c\0\x28")
    assert amqp_loads("Bssbb", method, 4)[0] == [0, "", "gateway.reply.é", False, False]
    assert header_kind == 2
    message = Message()
    message.inbound_header(header)
    assert message.body_size == size
    assert message.properties == {
        "content_type": "application/json", "content_encoding": "utf-8", "delivery_mode": 1,
        "correlation_id": "task-1",
    }  # fmt: skip
    assert all(kind == 3 and len(chunk) <= 4096 - 8 for kind, chunk in chunks)
    assert b"".join(chunk for _, chunk in chunks) == body


def read_frames(stream, channel_id):
    while head := stream.read(7):
        kind, channel, size = unpack(">BHI", head)
        assert channel == channel_id
        yield kind, stream.read(size)
        assert stream.read(1) == b"\xce"


@pytest.mark.parametrize(
    ("request_", "ignored"),
    [
        ({"id": "1", "headers": {"delivery": {}}}, False),
        ({"id": "1", "headers": {"delivery": {}}, "ignore_result": True}, True),
        ({"id": "1"}, True),
        ({"id": "2", "headers": {"delivery": {}}}, True),
    ],
)
def test_the_result_of_a_task_in_the_place_of_another_is_wanted_as_its_was(
    celery, request_, ignored
):
    app = celery(broker=NOWHERE, backend=STORELESS)
    headers = {"id": "1", "ignore_result": True}

    @app.task(shared=False)
    def replacing() -> None:
        carry_over([], headers, {})

    replacing.push_request(**request_)
    try:
        with patch("appserver.reply_backend.current_task", replacing):
            replacing.run()
    finally:
        replacing.pop_request()
    assert headers["ignore_result"] is ignored


def test_a_signature_in_the_place_of_a_task_keeps_its_own_headers(celery):
    app = celery(broker=NOWHERE, backend=STORELESS)
    own = {"task_id": "1", "headers": {"tenant": "a"}}
    body = ([], {}, {"chain": [{"options": own}, {"options": {"task_id": "2"}}]})

    @app.task(bind=True, shared=False)
    def replacing(self) -> None:
        carry_over(body, {"id": "another"}, {})
        carry_over(stored, {"id": "another"}, {})

    kept = {"task_id": "1", "ignore_result": True}
    stored = ([], {}, {"chord": {"options": kept}})
    delivery = {"id": "d"}
    replacing.push_request(id="1", reply_to="gateway.reply.1", headers={"delivery": delivery})
    try:
        with patch("appserver.reply_backend.current_task", replacing):
            replacing.run()
    finally:
        replacing.pop_request()
    assert own["headers"] == {"delivery": delivery, "tenant": "a"}
    assert own["reply_to"] == "gateway.reply.1" and own["ignore_result"] is False
    assert kept["ignore_result"] is False
    assert body[2]["chain"][1] == {"options": {"task_id": "2"}}
