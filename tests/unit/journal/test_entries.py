"""How a delivery's state is read from its task's result, and which deliveries a filter takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.journal.entry import End, Entry, Original, stored
from gateway.journal.filter import Filter, read_route, read_status, read_until
from gateway.journal.refusals import BODY, _cut
from gateway.journal.writing import end_of


def failure(kind: str, *message: object, status: str = "FAILURE") -> dict[str, Any]:
    return {"status": status, "result": {"exc_type": kind, "exc_message": list(message)}}


@pytest.mark.parametrize(
    ("kept", "end"),
    [
        ({"status": "SUCCESS", "result": "x"}, End("succeeded")),
        ({"status": "PENDING"}, None),
        ({"status": "RETRY", "result": {}}, None),
        ({"status": "STARTED", "result": {"hostname": "w"}}, End("running")),
        (failure("KeyError", "id"), End("failed", "KeyError: id")),
        (failure("KeyError"), End("failed", "KeyError")),
        ({"status": "FAILURE", "result": {"exc_type": "E", "exc_message": "x"}},
         End("failed", "E: x")),
        ({"status": "FAILURE", "result": "no object"}, End("failed", "unknown")),
        (failure("WorkerLostError", "it lies in 'gateway.dead' now"),
         End("dead-lettered", "WorkerLostError: it lies in 'gateway.dead' now")),
        (failure("TaskRevokedError", "expired", status="REVOKED"),
         End("expired", "TaskRevokedError: expired")),
        ({**failure("KeyError", "id"), "retries": 2}, End("failed", "KeyError: id", 3)),
        ({"status": "SUCCESS", "result": "x", "retries": 1}, End("succeeded", "", 2)),
        # The text says how often its workers were lost.
        ({**failure("WorkerLostError", "it lies in 'gateway.dead' now"), "retries": 0},
         End("dead-lettered", "WorkerLostError: it lies in 'gateway.dead' now")),
    ],
)  # fmt: skip
def test_the_state_of_a_result(kept: dict[str, Any], end: End | None):
    assert end_of(json.dumps(kept).encode()) == end


def test_a_result_that_is_no_json_is_a_failure():
    assert end_of(b"\x80pickle") == End("failed", "no JSON result (UnicodeDecodeError)")


def entry(**values: Any) -> Entry:
    delivery = {
        "id": "d1", "route": "/orders/{shop}", "source": "shop", "event": "orders/paid",
        "received_at": "2026-01-31T12:00:00+00:00",
    }  # fmt: skip
    call = json.dumps([[{"q": "1"}, {"x-shop": "north"}, "the body"], {"n": [5]}, None]).encode()
    about = {"task": "t", "task_id": "t1", "queue": "q", "status": 202, "seconds": 0.1}
    return Entry(delivery, **{**about, "call": call, **values})


@pytest.mark.parametrize(
    ("wanted", "takes"),
    [
        ({}, True),
        ({"state": frozenset(["accepted", "failed"])}, True),
        ({"state": frozenset(["failed"])}, False),
        ({"status": "202"}, True),
        ({"status": "2xx"}, True),
        ({"status": "5??"}, False),
        ({"route": "/orders/{shop}"}, True),
        ({"route": "/orders/*"}, True),
        ({"route": "/orders"}, False),
        ({"route": "/orders/?shop?"}, False),
        ({"source": "shop"}, True),
        ({"source": "other"}, False),
        ({"event": "orders/*"}, True),
        ({"event": "refunds/*"}, False),
        ({"text": "the body"}, True),
        ({"text": "x-shop"}, True),
        ({"text": "t1"}, True),
        ({"text": "d1"}, True),
        ({"text": "elsewhere"}, False),
        ({"text": "the body", "source": "other"}, False),
    ],
)
def test_what_a_filter_takes(wanted: dict[str, Any], takes: bool):
    assert Filter(**wanted).takes(entry()) is takes


def test_a_batch_is_found_by_each_of_its_events():
    batch = entry()
    batch.delivery["event"] = "open,bounce"
    for event, takes in (("open", True), ("bounce", True), ("open,b*", True), ("click", False)):
        assert Filter(event=event).takes(batch) is takes


def test_the_error_is_searched_too_and_a_sender_that_has_left_is_a_status():
    gone = entry(status=0, error="KeyError: id")
    assert Filter(text="KeyError", status="gone").takes(gone)
    assert not Filter(status="gone").takes(entry(status=None))


def test_a_get_is_known_by_its_query():
    for query, body, method in (("a=1", "a=1", "GET"), ("a=1", "b", "POST"), ("", "", "POST")):
        assert Original({}, {}, body).method(query) == method


def test_what_no_filter_can_be_is_refused():
    for read, wrong, right in (
        (read_route, "orders", ["", "/orders", "*orders"]),
        (read_status, "20", ["", "5xx", "gone"]),
        (read_until, "9999-01-01T00:00Z", ["9998-12-31T00:00Z", "2h"]),
        (read_until, "1969-12-31T00:00Z", ["1970-01-01T00:00Z"]),
    ):
        with pytest.raises(ValueError, match=f"^{wrong}: is "):
            read(wrong)
        for text in right:
            read(text)


@pytest.mark.parametrize("name", ["remote", "traceparent", "query_string", "edited_from"])
def test_a_delivery_whose_text_is_none_is_damaged(name):
    about = {"delivery": {**entry().delivery, name: 5}, "task": "t", "queue": "q", "options": {}}
    known = {"about": json.dumps(about), "state": "accepted", "task_id": "t", "position": "1-1"}
    flat = [each.encode() for pair in known.items() for each in pair]
    assert stored("d1", flat) is None
    about["delivery"][name] = "text"
    flat[1] = json.dumps(about).encode()
    assert stored("d1", flat) is not None


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b"short", b"short"),
        (b"\xff", b"\xff"),
        (b"x" * BODY, b"x" * BODY),
        (b"x" * BODY + b"y", b"x" * BODY),
        (b"x" + "ü".encode() * BODY, b"x" + "ü".encode() * (BODY // 2 - 1)),
        (b"\xff" * BODY * 2, b"\xff" * BODY),
    ],
)
def test_a_body_is_cut_between_characters(body, kept):
    assert _cut(body) == kept
