"""What the sender gets for what a task returned, and for everything that went wrong."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import reduce
from http import HTTPStatus
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from appserver import Answer
from gateway import answer, errors
from gateway.answer import ALLOWED_HEADERS, BINARY, JSON, MAX_BODY, PROBLEM, TEXT
from gateway.celery_message import decode_result
from gateway.errors import RequestError, ResultUnusable, TaskFailed
from gateway.nesting import MAX_LEVELS
from gateway.outcome import FAILURE, REVOKED, SUCCESS, Outcome


def answered(value, content_type: str = TEXT):
    return answer.of_outcome(Outcome(SUCCESS, value), content_type)


def refused(value) -> str:
    with pytest.raises(ResultUnusable) as error:
        answered(value)
    return error.value.detail


@pytest.mark.parametrize(
    ("value", "content_type", "body"),
    [
        ("grüß dich", TEXT, "grüß dich".encode()),
        ("", TEXT, b""),
        (b"\x00\xff", BINARY, b"\x00\xff"),
        (None, "", b""),
        ({"a": [1, None, "ü"]}, JSON, '{"a":[1,null,"ü"]}'.encode()),
        ([], JSON, b"[]"),
        (0, JSON, b"0"),
        (1.5, JSON, b"1.5"),
        (False, JSON, b"false"),
    ],
)
def test_returned_value_becomes_a_200(value, content_type, body):
    reply = answered(value)
    assert (reply.status, reply.content_type, reply.body, reply.headers) == (
        200, content_type, body, {},
    )  # fmt: skip


def test_only_text_has_the_routes_content_type():
    assert answered("<xml/>", "text/xml").content_type == "text/xml"
    assert answered(b"", "text/xml").content_type == BINARY
    assert answered({}, "text/xml").content_type == JSON


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), '"2026-01-02T03:04:05+00:00"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (time(3, 4, 5), '"03:04:05"'),
        (Decimal("1.10"), '"1.10"'),
        (UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
    ],
)
def test_what_celerys_json_carries_beyond_json_is_written_as_text(value, text):
    assert answered(value).body.decode() == text
    assert answered([value]).body.decode() == f"[{text}]"


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.recursive(plain | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)))
def test_any_json_value_can_be_read_back(value):
    assert json.loads(answered([value]).body) == [value]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"status": 201, "body": ""}, (201, "text/route", b"")),
        ({"status": 202, "body": "text"}, (202, "text/route", b"text")),
        ({"status": 200, "body": b"\xff"}, (200, BINARY, b"\xff")),
        ({"status": 409, "body": {"no": 1}}, (409, JSON, b'{"no":1}')),
        ({"status": 503, "headers": None, "body": None}, (503, "", b"")),
        ({"status": 204, "body": None}, (204, "", b"")),
        ({"status": 599, "headers": {}, "body": None}, (599, "", b"")),
        (Answer(), (200, "text/route", b"")),
        (Answer(HTTPStatus.CREATED, "text"), (201, "text/route", b"text")),
        (Answer(status=409, body=[1]), (409, JSON, b"[1]")),
    ],
)
def test_envelope_is_that_answer(value, expected):
    reply = answered(value, "text/route")
    assert (reply.status, reply.content_type, reply.body) == expected


def test_envelope_sets_allowed_headers_only_and_its_own_content_type():
    headers = {"Content-Type": "text/xml", "Retry-After": "5", "x-slack-no-retry": "1"}
    reply = answered(Answer(200, "<a/>", headers))
    assert reply.content_type == "text/xml"
    assert reply.headers == {"Retry-After": "5", "x-slack-no-retry": "1"}


@pytest.mark.parametrize("body", ["text", b"\x00\xff", {"a": [1]}, None])
def test_a_tasks_answer_is_the_same_behind_celerys_json(body):
    made = Answer(HTTPStatus.ACCEPTED, body, {"Retry-After": "5"})
    assert kombu_json.loads(kombu_json.dumps(made)) == made
    assert answered(made) == answered(kombu_json.loads(kombu_json.dumps(made)))


@pytest.mark.parametrize("status", [0, 199, 600, True, "200", 200.0, None])
def test_a_task_makes_no_answer_with_a_status_that_is_none(status):
    with pytest.raises(ValueError, match="200 to 599"):
        Answer(status)


@pytest.mark.parametrize("name", sorted(ALLOWED_HEADERS - {"content-type"}))
def test_allowed_header_is_passed_on(name):
    assert answered(Answer(headers={name: "v"})).headers == {name: "v"}


@pytest.mark.parametrize(
    "value",
    [
        {"status": 200},
        {"status": 0},
        {"status": 1, "headers": {}},
        {"status": "200"},
        {"status": "200", "body": "x"},
        {"status": True, "body": "x"},
        {"status": "ok", "body": "x"},
        {"status": None, "body": "x"},
        {"status": 200.0, "body": "x"},
        {"status": 200, "body": "x", "more": 1},
        {"headers": {}, "body": "x"},
        {"body": "x"},
        [{"status": 204, "body": None}],
    ],
)
def test_what_only_resembles_an_envelope_is_json(value):
    reply = answered(value)
    assert (reply.status, reply.content_type) == (200, JSON)
    assert json.loads(reply.body) == value


@pytest.mark.parametrize(
    "value",
    [
        {"status": 0, "body": "x"},
        {"status": 99, "body": "x"},
        {"status": 199, "body": "x"},
        {"status": 600, "body": "x"},
        {"status": -200, "body": "x"},
        {"status": 10**30, "body": "x"},
        {"status": 200, "body": "", "headers": ["Location"]},
        {"status": 200, "body": "", "headers": "Location: x"},
        {"status": 200, "body": "", "headers": {"Set-Cookie": "a=b"}},
        {"status": 200, "body": "", "headers": {"Content-Length": "0"}},
        {"status": 200, "body": "", "headers": {"Transfer-Encoding": "chunked"}},
        {"status": 200, "body": "", "headers": {"Connection": "close"}},
        {"status": 200, "body": "", "headers": {"Location\r\nSet-Cookie": "a"}},
        {"status": 200, "body": "", "headers": {"Location": "/\r\nSet-Cookie: a=b"}},
        {"status": 200, "body": "", "headers": {"Location": "/\n"}},
        {"status": 200, "body": "", "headers": {"Location": "/\x00"}},
        {"status": 200, "body": "", "headers": {"Location": "/ü"}},
        {"status": 200, "body": "", "headers": {"Location": 5}},
        {"status": 200, "body": "", "headers": {"Location": None}},
        {"status": 200, "body": "", "headers": {"Content-Type": "a\r\nb: c"}},
        {"status": 204, "body": "x"},
        {"status": 304, "body": {}},
        {"status": 200, "body": {1, 2}},
        {"status": 200, "body": "x" * (MAX_BODY + 1)},
    ],
)
def test_envelope_that_cannot_be_sent_is_refused(value):
    refused(value)


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], [b"x"], {"a": {1}}, object(), {("a",): 1}, "\ud800"]
)
def test_what_json_cannot_say_is_refused(value):
    assert refused(value).startswith("The task's result is not valid JSON")


def nested(levels: int) -> list:
    return reduce(lambda inner, _: [inner], range(levels - 1), [])


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"status": 201, "body": v}])
def test_result_has_most_levels_whatever_python_allows(wrap):
    allowed = nested(MAX_LEVELS)
    assert json.loads(answered(wrap(allowed)).body) == allowed
    for levels in (MAX_LEVELS + 1, 100_000):
        assert refused(wrap(nested(levels))).startswith("The task's result is not valid JSON: ")


@pytest.mark.parametrize("value", ["x", b"x"])
def test_result_has_a_largest_size(value):
    assert len(answered(value * MAX_BODY).body) == MAX_BODY
    assert str(MAX_BODY) in refused(value * (MAX_BODY + 1))
    assert str(MAX_BODY) in refused([str(value) * 2000] * (MAX_BODY // 2000))


@pytest.mark.parametrize("payload", [b"", b"\xff", b"not json", b"\x80\x04N.", b"[]", b"5", b"{}"])
def test_payload_that_is_no_result_is_unusable(payload):
    with pytest.raises(ResultUnusable, match="cannot be read"):
        answer.of_outcome(decode_result(payload))


@pytest.mark.parametrize("state", [FAILURE, REVOKED])
def test_failure_names_the_exceptions_type_and_nothing_else(state):
    with pytest.raises(TaskFailed) as error:
        answer.of_outcome(Outcome(state, value="Traceback: secret", error="KeyError"))
    assert error.value.detail == "The task failed: KeyError."


def error_types(of: type[RequestError] = RequestError) -> list[type[RequestError]]:
    return [t for kind in of.__subclasses__() for t in (kind, *error_types(kind))]


@pytest.mark.parametrize("kind", error_types(), ids=lambda kind: kind.__name__)
def test_every_error_is_problem_details(kind):
    reply = answer.of_error(kind(), "delivery", "task")

    assert (reply.status, reply.content_type) == (kind.status, PROBLEM)
    assert json.loads(reply.body) == {
        "type": f"urn:celery-gateway:{kind.type}", "title": kind.__doc__.strip(),
        "status": kind.status, "detail": kind.__doc__.strip(), "delivery_id": "delivery",
        "task_id": "task",
    }  # fmt: skip
    assert ("Retry-After" in reply.headers) == (kind.status in (429, 503))


def test_error_types_are_stable_and_unique():
    # Others are told as what they are derived from.
    types = {kind.__name__: kind.type for kind in error_types() if "type" in vars(kind)}
    assert len(set(types.values())) == len(types)
    assert types["NotFound"] == "not-found" and types["DeadlinePassed"] == "deadline-passed"


def test_error_without_ids_leaves_them_out_and_keeps_its_headers_and_detail():
    error = errors.MethodNotAllowed("Send a POST.", headers={"Allow": "POST"})
    reply = answer.of_error(error)
    problem = json.loads(reply.body)
    assert problem["detail"] == "Send a POST."
    assert reply.headers == {"Allow": "POST"}
    assert not {"delivery_id", "task_id"} & problem.keys()


def test_a_header_name_that_only_folds_to_an_allowed_one_is_refused():
    assert "Lin\u212a".lower() == "link"
    assert "not allowed" in refused(Answer(headers={"Lin\u212a": "x"}))
