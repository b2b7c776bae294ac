"""Messages as Celery's own code reads them, results as its own back ends write them."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pytest
from celery import Celery, states
from celery.backends.redis import RedisBackend
from celery.backends.rpc import RPCBackend
from celery.exceptions import NotRegistered
from celery.utils.time import maybe_iso8601
from celery.worker.request import Request
from hypothesis import example, given
from hypothesis import strategies as st
from kombu.serialization import loads

from gateway.celery_message import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    RESULT_KEY,
    Message,
    TaskIds,
    decode_result,
    encode_body,
)
from gateway.errors import BadRequest
from gateway.outcome import FAILURE, REVOKED, SUCCESS, Outcome

DELIVERY = {"id": "d", "params": {"account": "a"}, "store": False}


@pytest.fixture(scope="module")
def app():
    app = Celery("oracle", broker="memory://", set_as_current=False)

    @app.task(name="oracle.main")
    def main(query, headers, body):
        return body

    with app:
        yield app


@pytest.fixture(scope="module", params=[RedisBackend, RPCBackend], ids=["redis", "rpc"])
def backend(app, request):
    return request.param(app=app, url="redis://127.0.0.1:1/0")


def message(**options) -> Message:
    body = encode_body({"q": "1"}, {"host": "h"}, b"hello")
    return Message("id-1", "oracle.main", "celery", body, DELIVERY, **options)


def arguments(payload: bytes):
    """Decode a message's body as a worker does."""
    args, kwargs, embed = loads(payload, CONTENT_TYPE, CONTENT_ENCODING, accept={CONTENT_TYPE})
    assert kwargs == {}
    assert embed == dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))
    return args


texts = st.dictionaries(st.text(), st.text())


@given(texts, texts, st.binary())
@example({}, {}, b"\xff")
@example({"q": "\x00ü😀\u2028"}, {"h": '"\\'}, "ü😀\x00".encode())
@example({}, {}, b'{"__type__": "base64", "__value__": "eA=="}')
@example({"__type__": "a"}, {"__value__": "b"}, b"")
def test_worker_gets_what_was_sent(query, headers, body):
    got_query, got_headers, got_body = arguments(encode_body(query, headers, body))

    assert (got_query, got_headers) == (query, headers)
    is_utf8 = body.decode(errors="ignore").encode() == body
    assert type(got_body) is (str if is_utf8 else bytes)
    assert (got_body.encode() if isinstance(got_body, str) else got_body) == body


@pytest.mark.parametrize("kind", ["base64", "decimal", "nothing-known"])
def test_what_a_worker_would_take_for_a_typed_value_is_refused(kind):
    """kombu's JSON has no way to say this dict; a worker would drop the message as garbage."""
    looks = {"__type__": kind, "__value__": "y"}
    for query, headers in [(looks, {}), ({}, looks)]:
        with pytest.raises(BadRequest):
            encode_body(query, headers, b"")
    assert arguments(encode_body({**looks, "more": ""}, {}, b""))[0] == {**looks, "more": ""}


def test_celery_makes_the_request_that_was_meant(app):
    # Given what a worker's consumer has when our message has come,
    sent = message()
    payload = loads(sent.body, CONTENT_TYPE, CONTENT_ENCODING, accept={CONTENT_TYPE})

    class Delivered:
        headers = sent.headers()
        properties = {"correlation_id": sent.task_id}
        delivery_info = {}
        body, content_type, content_encoding = sent.body, CONTENT_TYPE, CONTENT_ENCODING

    # when Celery makes its own request of it,
    request = Request(
        Delivered, app=app, task=app.tasks["oracle.main"], headers=sent.headers(), decoded=True,
        body=payload,
    )  # fmt: skip

    # then the task is called with our arguments and knows the delivery.
    assert (request.id, request.root_id, request.name) == ("id-1", "id-1", "oracle.main")
    assert request.time_limits == [None, None]
    assert (request.eta, request.expires) == (None, None)
    assert request.request_dict["delivery"] == DELIVERY
    args, kwargs, _ = request.body
    assert app.tasks["oracle.main"](*args, **kwargs) == "hello"


def test_headers_are_those_that_celery_sends_itself(app):
    theirs = app.amqp.as_task_v2("id", "oracle.main").headers
    ours = message().headers()

    # What it has besides concerns replaced tasks, canvases and stamps.
    assert ours.keys() - theirs.keys() == {"delivery"}
    assert theirs.keys() - ours.keys() <= {
        "group_index", "stamped_headers", "stamps", "replaced_task_nesting", "ignore_result",
    }  # fmt: skip
    assert list(ours)[-1] == "delivery"


def test_expiry_is_a_time_that_celery_reads(app):
    expires = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=11)
    text = message(expires=expires.timestamp()).headers()["expires"]
    assert maybe_iso8601(text) == expires
    assert message().headers()["expires"] is None


def test_task_ids_are_unique_uuids_with_a_prefix_of_their_process():
    here, there = TaskIds(), TaskIds()
    ids = [here.new() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(str(uuid.UUID(task_id)) == task_id for task_id in ids)
    assert all(task_id.startswith(here.prefix) for task_id in ids)
    assert not there.new().startswith(here.prefix)


def encoded(backend, result, state=states.SUCCESS) -> bytes:
    """Encode as `backend` stores or replies it."""
    result = backend.encode_result(result, state)
    if isinstance(backend, RPCBackend):
        meta = backend._to_result("id", state, result, traceback=None, request=None)
    else:
        meta = backend._get_result_meta(result, state, traceback=None, request=None)
        meta["task_id"] = "id"
    payload = backend.encode(meta)
    return payload if isinstance(payload, bytes) else payload.encode()


@pytest.mark.parametrize(
    "value",
    [
        None, "", "text", "ü😀", b"\xff\x00", b"text", 0, -1.5, True, [], {}, [b"\xff", None],
        {"status": 200, "headers": {"Location": "/"}, "body": b"\xff"},
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), date(2026, 1, 2), time(3, 4, 5),
        Decimal("1.10"), uuid.UUID(int=7),
        {"at": datetime(2026, 1, 2), "sum": [Decimal(2)], "id": uuid.UUID(int=1)},
        {"__type__": "x"}, '{"__type__": "x", "__value__": "y"}',
    ],
)  # fmt: skip
def test_success_is_the_value_that_the_task_returned(backend, value):
    assert decode_result(encoded(backend, value)) == Outcome(SUCCESS, value)


class ShopClosed(Exception):
    pass


@pytest.mark.parametrize(
    ("state", "exception", "name", "detail"),
    [
        (FAILURE, ShopClosed("secret"), "ShopClosed", "secret"),
        (FAILURE, ShopClosed("shut", 7), "ShopClosed", "shut, 7"),
        (FAILURE, KeyError(b"\xff"), "KeyError", "b'\\xff'"),
        (FAILURE, ShopClosed("x" * 3_000), "ShopClosed", "x" * 2_000),
        (REVOKED, Exception("terminated"), "Exception", "terminated"),
        (FAILURE, NotRegistered("x"), "NotRegistered", "x"),
    ],
)
def test_failure_is_the_name_of_the_exception_and_its_text(backend, state, exception, name, detail):
    found = decode_result(encoded(backend, exception, state))
    assert found == Outcome(state, error=name, detail=detail)


@pytest.mark.parametrize(
    ("retries", "attempts"),
    [
        ("0", 1), ("2", 3), ("-1", 0), ("true", 0), ('"2"', 0), ("1.5", 0), ("null", 0),
        ("9" * 4_300, 0), ("1e999", 0), ("[2]", 0),
    ],
)  # fmt: skip
def test_attempts_are_the_retries_and_one(retries, attempts):
    payload = f'{{"status": "FAILURE", "result": {{"exc_type": "E"}}, "retries": {retries}}}'
    assert decode_result(payload.encode()).attempts == attempts


def test_half_surrogates_of_an_exception_can_be_written_anywhere():
    result = rb'{"exc_type": "E\ud800", "exc_message": ["\ud800x"]}'
    found = decode_result(b'{"status": "FAILURE", "result": %b}' % result)
    assert (found.error, found.detail) == ("E?", "?x")


def test_the_name_and_the_text_of_an_exception_are_cut():
    result = {"exc_type": "E" * 100_000, "exc_message": "x" * 100_000}
    found = decode_result(json.dumps({"status": "FAILURE", "result": result}).encode())
    assert (found.error, found.detail) == ("E" * 2_000, "x" * 2_000)


def test_an_exception_with_arguments_that_are_no_json_has_its_name(backend):
    found = decode_result(encoded(backend, Exception(object(), object()), FAILURE))
    assert (found.state, found.error) == (FAILURE, "Exception")


@pytest.mark.parametrize("state", ["PENDING", "RECEIVED", "STARTED", "RETRY", "PROGRESS", "X"])
def test_other_states_are_passed_over(backend, state):
    value = ValueError("again") if state == "RETRY" else {"pid": 1}
    assert decode_result(encoded(backend, value, state)) is None


def test_results_key_is_celerys(app):
    assert RedisBackend(app=app, url="redis://127.0.0.1:1/0").get_key_for_task("id") == (
        f"{RESULT_KEY}id".encode()
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"{", b"[]", b"5.5", b"null", b'"x"', b"{}", b"\xff\xfe", b"\x80\x04N.", b"\x00",
        b"[" * 100_000, b'{"status": []}', b'{"status": {}, "result": 1}',
        b'{"status": "SUCCESS", "result": ' + b"9" * 5_000 + b"}",
        b"\x00celery-compressed\x00x\x9c",
        "{}".encode("utf-16"),
    ],
)  # fmt: skip
def test_garbage_is_an_outcome_that_cannot_be_read(payload):
    outcome = decode_result(payload)
    assert outcome.state == SUCCESS and outcome.error.startswith("no JSON result")


def test_a_number_is_the_size_of_a_result_that_no_message_can_have():
    assert decode_result(b"34603008").error == "it has 34603008 bytes, which is too large"


@pytest.mark.parametrize(
    "kind", ["bytes", "base64", "datetime", "date", "time", "decimal", "uuid", "unknown", 5, []]
)
def test_typed_value_that_is_none_does_no_harm(kind):
    """A task may pass on what a sender made up: it ends its own request at the most."""
    for value in ("x", 5, None, [], {}, {"hex": "x"}, {"no": 1}, "\ud800", 1e400):
        typed = {"__type__": kind, "__value__": value}
        outcome = decode_result(json.dumps({"status": "SUCCESS", "result": typed}).encode())
        assert outcome.state == SUCCESS, value


@given(st.binary())
def test_no_payload_raises(payload):
    assert decode_result(payload) is None or decode_result(payload).state in (SUCCESS, FAILURE)
