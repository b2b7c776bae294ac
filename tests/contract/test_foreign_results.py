"""What a worker that is not Celery's own stores or replies has one answer with every strategy."""

from __future__ import annotations

import json

import pytest

from tests.support.requests import post_all, post_each

GOOD = b'{"status": "SUCCESS", "result": "good"}'
SUCCESS = '{"status": "SUCCESS", '
FAILURE = '{"status": "FAILURE", '

#: Stored or replied, and the body of the 200 that it is.
ANSWERS = [
    ('{"status": "SUCCESS"}', b""),  # JSON has no `undefined`, which celery-node would store
    (SUCCESS + '"result": null}', b""),
    (SUCCESS + '"result": "x", "traceback": 5, "children": "y", "date_done": {}}', b"x"),
    (SUCCESS + '"result": "x", "children": [["1"]]}', b"x"),
    (SUCCESS + '"result": "x", "task_id": "another"}', b"x"),
    (SUCCESS + '"result": "x", "task_id": ["another"]}', b"x"),
]

#: Stored or replied, and the type of the 502 that it is.
ERRORS = [
    *((payload, "result-unusable") for payload in ('{"result": 1}', "[]", "5", "null", '"x"')),
    *((payload, "result-unusable") for payload in ("", "{", '{"status": []}', '{"status": {}}')),
    (b"\xff\xfe", "result-unusable"),
    (b'{"status": "SUCCESS", "result": "\xc3\x28"}', "result-unusable"),
    (b"\x80\x04N.", "result-unusable"),
    (b"\x00celery-compressed\x00x\x9c", "result-unusable"),
    (SUCCESS + '"result": {"__type__": "uuid", "__value__": "none"}}', "result-unusable"),
    (SUCCESS + '"result": ' + "[" * 100_000 + "]" * 100_000 + "}", "result-unusable"),
    ('{"status": "FAILURE"}', "task-failed"),
    ('{"status": "REVOKED"}', "task-failed"),
    *(
        (f'{FAILURE}"result": {value}}}', "task-failed")
        for value in ('"text"', "null", "5", "[]", "[1]", "{}", '{"message": "x"}', "true")
    ),
    *(
        (f'{FAILURE}"result": {{"exc_type": {value}}}}}', "task-failed")
        for value in ("5", "null", '"NoSuchError"', '["x"]', '"os.system"')
    ),
    (FAILURE + '"result": {"exc_type": "SystemExit", "exc_module": "builtins"}}', "task-failed"),
    (FAILURE + '"result": {"exc_type": "x", "exc_module": 5, "exc_message": {}}}', "task-failed"),
]


def encoded(payload: str | bytes) -> bytes:
    return payload if isinstance(payload, bytes) else payload.encode()


def test_they_are_answers_or_a_502_and_nobody_elses_concern(gateway):
    # Given such results, and good ones beside each,
    odd = [encoded(payload) for payload, _ in (*ANSWERS, *ERRORS)]
    bodies = [body for payload in odd for body in (payload, GOOD)]

    answers = post_all(f"{gateway.url}/stored", bodies)

    # then each has its own answer.
    assert {(a.code, a.body) for a in answers[1::2]} == {(200, b"good")}
    found = answers[::2]
    for payload, answer in zip(odd, found, strict=True):
        assert answer.code in (200, 502), (payload[:99], answer.body)
    assert [a.body for a in found[: len(ANSWERS)]] == [body for _, body in ANSWERS]
    told = [json.loads(a.body)["type"] for a in found[len(ANSWERS) :]]
    assert told == [f"urn:celery-gateway:{kind}" for _, kind in ERRORS]


@pytest.mark.parametrize("status", ["DONE", "STARTED", "", "success"])
def test_a_state_that_is_not_final_is_no_result(gateway, status):
    payload = json.dumps({"status": status, "result": "x"}).encode()

    late, good = post_each([(f"{gateway.url}/unended", payload), (f"{gateway.url}/stored", GOOD)])

    assert (late.code, json.loads(late.body)["type"]) == (504, "urn:celery-gateway:deadline-passed")
    assert (good.code, good.body) == (200, b"good")
