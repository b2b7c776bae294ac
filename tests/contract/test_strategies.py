"""What every strategy owes, over real servers: the same answers for the same outcomes.

That includes what a worker stores or replies that is not Celery's own.
"""

from __future__ import annotations

import json
import socket
import struct
import time

from gateway.celery_message import MAX_STORED
from tests.contract.conftest import DEADLINE, GRACE
from tests.support.requests import REQUESTS, confirmed, fetch, metric, post, post_all, post_each
from tests.support.waiting import until

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


def problem(answer):
    assert answer.headers["Content-Type"] == "application/problem+json"
    return json.loads(answer.body)


def published(gateway) -> float:
    """Return how many requests have ended whose message is confirmed, or will be."""
    # RabbitMQ returns the messages of `/nowhere`, as no queue takes them.
    answered = metric(gateway, REQUESTS)
    gone = metric(gateway, "gateway_clients_gone_total")
    return answered + gone - metric(gateway, REQUESTS, http_route="/nowhere")


def test_each_of_many_requests_gets_its_own_answer(gateway):
    bodies = [b"request %d " % n + b"x" * 200 for n in range(250)]

    # How long so many take depends on the machine, so their deadline is late.
    answers = post_all(f"{gateway.url}/patient", bodies, at_once=200)

    assert [a.code for a in answers] == [200] * len(bodies), {a.body for a in answers if a.error}
    assert [a.body for a in answers] == bodies
    assert metric(gateway, "gateway_in_flight") == 0


def test_bodies_come_back_byte_for_byte(gateway):
    text, binary = "grüße, 世界 \0 \r\n".encode(), bytes(range(256))

    as_text, as_bytes = post(f"{gateway.url}/", text), post(f"{gateway.url}/", binary)

    assert (as_text.code, as_text.body) == (200, text)
    assert as_text.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert (as_bytes.code, as_bytes.body) == (200, binary)
    assert as_bytes.headers["Content-Type"] == "application/octet-stream"


def test_a_delivery_is_accepted_once_the_broker_has_confirmed_it(gateway):
    # Given that no earlier message is still to be confirmed, as one may be after its result,
    until(lambda: confirmed(gateway) == published(gateway))
    before = confirmed(gateway)

    answer = post(f"{gateway.url}/accept", b"x")

    assert answer.code == 202
    assert confirmed(gateway) == before + 1


def test_a_large_result_is_answered_whole(gateway):
    answer = post(f"{gateway.url}/large?bytes=1000000")

    assert (answer.code, len(answer.body)) == (200, 1_000_000)


def test_a_result_too_large_to_be_read_is_a_502_and_nobody_elses_concern(gateway):
    large = f"{gateway.url}/large?bytes={MAX_STORED}"

    answers = post_each([(large, b""), *((f"{gateway.url}/stored", GOOD) for _ in range(9))])

    assert [(a.code, a.body) for a in answers[1:]] == [(200, b"good")] * 9
    assert answers[0].code == 502
    assert problem(answers[0])["type"] == "urn:celery-gateway:result-unusable"


def test_a_failed_task_is_a_502_that_names_the_exception_and_no_more(gateway):
    answer = post(f"{gateway.url}/fail")

    assert answer.code == 502
    told = problem(answer)
    assert told["type"] == "urn:celery-gateway:task-failed"
    assert told["task_id"] and told["delivery_id"]
    assert b"Traceback" not in answer.body and b".py" not in answer.body


def test_a_task_that_no_worker_knows_is_a_502(gateway):
    answer = post(f"{gateway.url}/unknown")

    assert answer.code == 502
    assert "NotRegistered" in problem(answer)["detail"]


def test_a_result_that_cannot_be_sent_is_a_502_and_nobody_elses_concern(gateway):
    # Given requests that are under way, and one whose header's name folds to one that is allowed:
    # U+212A, the sign of the kelvin, is a k in lower case, and no byte on the wire.
    good = b'{"status": 200, "body": "good"}'
    bad = '{"status": 200, "body": "", "headers": {"Lin\u212a": "x"}}'
    bodies = [good] * 20 + [bad.encode()] + [good] * 20

    answers = post_all(f"{gateway.url}/returned", bodies)

    told = answers.pop(20)
    assert (told.code, problem(told)["type"]) == (502, "urn:celery-gateway:result-unusable")
    assert {(a.code, a.body) for a in answers} == {(200, b"good")}
    assert metric(gateway, "gateway_broker_connections_total") == 1


def test_a_task_slower_than_the_deadline_is_a_504_in_time(gateway):
    began = time.monotonic()
    answer = post(f"{gateway.url}/slow?seconds=1.6")
    took = time.monotonic() - began

    assert answer.code == 504
    assert problem(answer)["task_id"]
    assert DEADLINE <= took <= DEADLINE + GRACE
    # and its late result is nobody else's answer
    assert post(f"{gateway.url}/sleep?seconds=1.2", b"next").body == b"next"


def test_a_missing_queue_is_a_503_from_the_mandatory_return(gateway):
    answers = post_all(f"{gateway.url}/nowhere", [b""] * 5)

    assert [a.code for a in answers] == [503] * 5
    assert {problem(a)["type"] for a in answers} == {"urn:celery-gateway:unroutable"}
    assert answers[0].headers["Retry-After"]
    assert post(f"{gateway.url}/").code == 200


def test_a_client_that_leaves_frees_its_waiter(gateway):
    gone = metric(gateway, "gateway_clients_gone_total")
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /sleep?seconds=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
        # Close with a reset once the gateway has taken it.
        if gateway.strategy != "blocking":
            until(lambda: metric(gateway, "gateway_in_flight") == 1)
            assert metric(gateway, "gateway_in_flight_bytes") > 0
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    answer = post(f"{gateway.url}/sleep?seconds=1", b"after")

    assert (answer.code, answer.body) == (200, b"after")
    assert metric(gateway, "gateway_in_flight") == 0
    assert metric(gateway, "gateway_in_flight_bytes") == 0
    if gateway.strategy != "blocking":  # which sees nothing but the task it waits for
        assert metric(gateway, "gateway_clients_gone_total") == gone + 1


def test_it_is_ready_and_says_so(gateway):
    answer = fetch(f"{gateway.admin_url}/readyz")

    assert answer.status == 200
    (child,) = json.loads(answer.body)["children"]
    assert child.pop("pid")
    assert set(child.values()) == {""}


# Results of other workers -------------------------------------------------------------------


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
    told = [problem(a)["type"] for a in found[len(ANSWERS) :]]
    assert told == [f"urn:celery-gateway:{kind}" for _, kind in ERRORS]


def test_a_state_that_is_not_final_is_no_result(gateway):
    payloads = [
        json.dumps({"status": status, "result": "x"}).encode()
        for status in ("DONE", "STARTED", "RETRY", "", "success")
    ]

    answers = post_each(
        [
            *((f"{gateway.url}/unended", payload) for payload in payloads),
            *((f"{gateway.url}/stored", GOOD) for _ in payloads),
        ]
    )

    late, good = answers[: len(payloads)], answers[len(payloads) :]
    assert [a.code for a in late] == [504] * len(payloads)
    assert {problem(a)["type"] for a in late} == {"urn:celery-gateway:deadline-passed"}
    assert {(a.code, a.body) for a in good} == {(200, b"good")}
