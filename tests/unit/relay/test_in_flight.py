"""How long a request is held, and what it is told where nothing came."""

from __future__ import annotations

from copy import copy
from time import monotonic
from typing import Any

import pytest

from gateway.answer import Answer
from gateway.claims.claim import CONFIRMED, LAPSED, MINE, PUBLISHING, Claim
from gateway.config.route import Route
from gateway.delivery import Delivery, Request
from gateway.errors import TaskFailed
from gateway.outcome import FAILURE, SUCCESS, Outcome
from gateway.pending_task import PendingTask
from gateway.relay.claimed_delivery import ClaimedDelivery
from gateway.relay.in_flight import ResultLookup
from gateway.sources.base import Verified
from gateway.tracing.trace import CONFIRM, PUBLISH, Trace

DEADLINE = 5.0


@pytest.fixture
def harness(relaying):
    return relaying(routes=[{"path": "/", "deadline": DEADLINE, "prefer": True}])


def request(ago: float = 0.0) -> Request:
    """Return a request whose header came `ago` seconds before its body."""
    return Request("POST", "/", "", {}, b"hello", "127.0.0.1", monotonic() - ago, 0.0)


def waiting(harness, applied: str = "", **settings: Any) -> ClaimedDelivery:
    """Return a delivery that waits for its claim."""
    in_flight = ClaimedDelivery(harness.relay.context, request(), harness.given.append)
    given = {"tries": 3, "retry_after": 5, "deadline": DEADLINE, "idempotency": "header:Key"}
    route = Route(path="/", **given | settings)
    delivery = Delivery("id", "/", {}, {}, "", {"key": "1"}, b"hello", "127.0.0.1", 0.0)
    in_flight.make_messages(route, delivery, Verified(b"hello"))
    in_flight.applied = applied
    return in_flight


def test_the_log_has_the_text_of_a_tasks_error_and_the_sender_its_type(harness, caplog):
    said = "take_order() missing 1 required positional argument: 'shop'"
    delivery = waiting(harness)
    delivery.outcome = Outcome(FAILURE, error="TypeError", detail=said)
    delivery.refuse(TaskFailed("The task failed: TypeError."))
    assert "take_order() missing 1 required" in caplog.text
    (given,) = harness.given
    assert b"The task failed: TypeError." in given.body and b"take_order" not in given.body


@pytest.mark.parametrize("ago", [0.0, DEADLINE - 1])
def test_a_body_in_time_is_published(harness, ago):
    harness.send(request(ago))
    assert [(answer.status, answer.body) for answer in harness.given] == [(200, b"hello")]


def test_a_body_after_the_deadline_is_not_published(harness):
    answer = harness.send(request(ago=DEADLINE))
    assert answer.status == 408 and b"The body came after the deadline." in answer.body
    assert harness.strategy.sent.empty()


@pytest.mark.parametrize(("applied", "held"), [("", True), ("wait=5", False)])
async def test_earlier_tries_are_held_unless_the_sender_says_how_long_it_waits(
    harness, applied, held
):
    claim = Claim(b"key", "owner", 15.0, CONFIRMED, "task", b"", tries=1)
    delivery = waiting(harness, applied)
    delivery.enter(0)
    delivery.join(claim, again=False)
    delivery.give(Answer(200, "", b""))
    assert delivery.deadline - delivery.request.arrived == pytest.approx(DEADLINE + 10 * held)


def test_the_claim_of_an_unattended_task_has_no_body(harness):
    claim = Claim(b"key", "owner", 15.0, CONFIRMED, "task", b"", tries=1)
    waiting(harness, redact=["header:key"]).join(claim, again=False)
    assert claim.redacted.is_in(Answer(200, "", b"1"))
    assert b"hello" not in vars(claim.redacted).values()


@pytest.mark.parametrize(
    ("state", "asked"), [(MINE, 0), (LAPSED, 1), (PUBLISHING, 1), (CONFIRMED, 1)]
)
async def test_a_later_try_asks_whether_its_result_was_sent_late(harness, state, asked):
    class Late:
        def __init__(self) -> None:
            self.tasks: list[str] = []

        def yields(self, task_id: str, *_: object, doubtful: bool) -> None:
            self.tasks.append(task_id)

    delivery, late = waiting(harness), Late()
    delivery.route = delivery.route.model_copy(update={"late": object()})
    delivery.context = copy(delivery.context)
    delivery.context.late = late
    claim = Claim(b"key", "owner", 15.0, state, "task", b"", tries=1)
    delivery.enter(0)
    delivery.join(claim, again=False)
    delivery.answer_with(Answer(200, "", b""))
    assert late.tasks == ["task"] * asked and len(harness.given) == 1 - asked


@pytest.mark.parametrize(("wait", "seconds"), [(1, 1), (4, 4), (5, 5), (6, 5), (99_999, 5)])
async def test_no_sender_waits_longer_than_the_route_allows(harness, wait, seconds):
    harness.strategy.task = None
    asked = request()
    asked.headers["prefer"] = f"wait={wait}"
    in_flight = harness.relay.relay(asked, harness.given.append)
    assert harness.strategy.sent.get_nowait().deadline == in_flight.deadline
    in_flight.cancel()
    assert in_flight.deadline - asked.arrived == pytest.approx(seconds)


def test_the_message_of_a_lapsed_claim_is_published_in_steps_of_its_trace(harness):
    delivery = waiting(harness)
    harness.strategy.publish = harness.strategy.send  # which is in memory
    delivery.trace = Trace("1" * 32, "2" * 16, "", sampled=True)
    delivery.publish(delivery.message)
    assert [step for step, _ in delivery.trace.steps] == [PUBLISH, CONFIRM]


def test_who_waits_for_a_store_in_vain_is_told_which(harness):
    waiting(harness).expire()
    ResultLookup(harness.relay.context, request(), harness.given.append).expire()

    claims, results = harness.given
    assert b"state-unavailable" in claims.body
    assert b"results-unavailable" in results.body


@pytest.mark.parametrize(
    ("settings", "route", "kept"),
    [
        ({}, {}, False),
        ({}, {"idempotency": "header:key"}, True),
        ({"journal": 10}, {}, True),
        ({"journal": 10}, {"journal": False}, False),
        ({"trace_sample": 1.0, "trace_endpoint": "http://127.0.0.1:1"}, {}, True),
    ],
)
async def test_a_message_is_kept_after_its_confirm_where_something_may_read_it(
    relaying, settings, route, kept
):
    made = relaying(routes=[{"path": "/", **route}], **settings)
    made.strategy.task = None
    delivery = waiting(made, **{"idempotency": "none", **route, "tries": 1})
    delivery.claim = None
    body, limits = delivery.message.body, made.relay.limits
    delivery.enter(len(body) + 5)
    pending = PendingTask(delivery.message, delivery.deadline)
    delivery.follow(pending)
    pending.confirm()
    assert (delivery.message.body, bool(delivery.message.delivery)) == (body * kept, kept)
    assert limits.bytes == len(body) * kept + 5
    pending.settle(Outcome(SUCCESS, "done"))
    assert (limits.bytes, len(made.given)) == (0, 1)


def test_a_whole_post_to_a_results_url_is_refused(harness):
    whole = Request("POST", "/results/x", "", {}, b"hello", "127.0.0.1", monotonic(), 0.0)
    answer = harness.send(whole)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
