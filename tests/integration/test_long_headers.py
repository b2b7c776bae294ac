"""What a request says may be longer than the broker takes beside a body: that concerns it alone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gateway.config.strategies import STRATEGIES
from tests.integration.deliveries import URLS, gather, run
from tests.support.config import route
from tests.support.http_client import Answer, ask, request
from tests.support.requests import metric
from tests.support.stack import Server

FRAME = 8192  # bytes
CONFIG = (
    f"{URLS}\nmax_header = 65536"
    + route("/", "tests.seen")
    + route("/orders/{shop}", "tests.seen")
    + route("/accept", "tests.seen", answer="accept")
)
NEIGHBOURS = 20
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


WORKER = {"app": "tests.integration.tasks"}


@pytest.fixture(scope="module", autouse=True)
def small_frames(own_rabbitmq) -> Iterator[None]:
    with own_rabbitmq.setting("frame_max", FRAME):
        yield


@pytest.fixture(scope="module", params=STRATEGIES)
def gateway(request, start_gateway, worker) -> Iterator[Server]:
    gateway = start_gateway(CONFIG, f"--strategy={request.param}")
    yield gateway
    assert metric(gateway, "gateway_broker_connections_total") == 1


async def send(gateway: Server, target: str, *headers: str, body: bytes = b"hello") -> Answer:
    return await ask(gateway.port, request(body, target, *headers))


def among_others(gateway: Server, *work) -> list[Answer]:
    """Do `work` while others have requests under way, which succeed."""
    others = [send(gateway, "/", body=b"%d" % n) for n in range(NEIGHBOURS)]
    answers = run(gather(*others[:10], *work, *others[10:]))
    neighbours = answers[:10] + answers[-10:]
    assert {answer.status for answer in neighbours} == {200}
    return answers[10:-10]


def test_a_query_is_taken_whole_or_not_at_all(gateway):
    lengths = [*range(6_900, 7_900, 50), 9_000, 60_000]

    answers = among_others(gateway, *(send(gateway, f"/?{'q' * n}") for n in lengths))

    taken = [n for n, answer in zip(lengths, answers, strict=True) if answer.status == 200]
    assert taken and taken == lengths[: len(taken)]
    for answer in answers[len(taken) :]:
        assert (answer.status, answer.type) == (414, "uri-too-long")
        assert "query string" in answer.problem["detail"] and answer.problem["delivery_id"]
    assert len(taken) < len(lengths) - 2


@pytest.mark.parametrize("target", ["/orders/" + "s" * 9_000, "/accept?" + "q" * 9_000])
def test_what_is_too_long_is_a_414_and_is_not_published(gateway, target):
    (answer,) = among_others(gateway, send(gateway, target))

    assert (answer.status, answer.type) == (414, "uri-too-long")
    assert "task_id" not in answer.problem


@pytest.mark.parametrize("trace", ["\u00fc" * 60_000, "x" * 9_000, "", TRACE])
def test_headers_are_the_tasks_own_however_long(gateway, trace):
    (answer,) = among_others(gateway, send(gateway, "/", f"traceparent: {trace}"))

    assert answer.status == 200
    seen = json.loads(answer.body)
    assert seen["headers"]["traceparent"] == trace
    assert seen["delivery"]["traceparent"] == (trace if trace == TRACE else "")


def test_a_body_of_many_frames_arrives(gateway):
    body = b"x" * (5 * FRAME)

    (answer,) = among_others(gateway, send(gateway, "/", body=body))

    assert json.loads(answer.body)["body"] == body.decode()
