"""What becomes of verified and unverified deliveries: tasks, queues, limits, headers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.senders import SECRET, github, wechat
from tests.integration.webhooks import TASKS, ask, ask_all
from tests.support.config import toml
from tests.support.requests import PUBLISHED, metric
from tests.support.stack import Server

UNROUTED = "gateway_events_unrouted_total"

GITHUB = {"scheme": "github", "secrets": SECRET}
SOURCES: dict[str, dict[str, Any]] = {
    "github": GITHUB,
    "strict": {**GITHUB, "unrouted": 410},
    "open": {**GITHUB, "pass_headers": ["Authorization", "X-Hub-Signature-256"]},
    "slow": {**GITHUB, "rate": 0.01},
    "wechat": {"scheme": "wechat", "secrets": SECRET},
}
ROUTES = [
    {"path": "/github", "source": "github", "events": ["push", "star.*"], "task": "tests.seen"},
    {"path": "/github", "source": "github", "events": ["issues.*"], "task": "tests.seen",
     "queue": "issues"},
    {"path": "/strict", "source": "strict", "events": ["push"]},
    {"path": "/open", "source": "open", "task": "tests.seen"},
    {"path": "/slow", "source": "slow"},
    {"path": "/wechat", "source": "wechat", "events": ["text"]},
]  # fmt: skip
WORKER = {"app": TASKS, "queues": ["celery", "issues"]}


@pytest.fixture(scope="module")
def gateway(start_gateway, worker: Server) -> Server:
    return start_gateway(toml(SOURCES, ROUTES), "--strategy=pika")


# Events -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "queue"),
    [("push", "celery"), ("star.created", "celery"), ("issues.opened", "issues")],
)
def test_an_event_goes_to_its_routes_queue(nginx, event, queue):
    answer = ask(nginx, github("/github", event))

    assert answer.status == 200, answer.body
    seen = json.loads(answer.body)
    assert seen["queue"] == queue
    assert (seen["delivery"]["event"], seen["delivery"]["source"]) == (event, "github")


@pytest.mark.parametrize(
    ("call", "status", "body"),
    [
        (lambda: github("/github", "fork"), 204, b""),
        (lambda: github("/github", "pushed"), 204, b""),
        (lambda: github("/strict", "issues.opened"), 410, b""),
        (lambda: wechat("event"), 200, b"success"),
    ],
    ids=["none", "not quite", "configured", "wechat"],
)
def test_an_event_that_no_route_takes_is_answered_and_counted(gateway, nginx, call, status, body):
    unrouted, published = metric(gateway, UNROUTED), metric(gateway, PUBLISHED)

    answer = ask(nginx, call())

    assert (answer.status, answer.body) == (status, body)
    assert metric(gateway, UNROUTED) == unrouted + 1
    assert metric(gateway, PUBLISHED) == published


def test_an_event_that_is_not_verified_is_not_counted(gateway, nginx):
    unrouted, published = metric(gateway, UNROUTED), metric(gateway, PUBLISHED)
    calls = [github("/github", event, "wrong") for event in ("push", "issues.opened", "fork")]
    assert {answer.status for answer in ask_all(nginx, calls)} == {401}
    assert (metric(gateway, UNROUTED), metric(gateway, PUBLISHED)) == (unrouted, published)


# Limits -------------------------------------------------------------------------------------


def test_a_sources_rate_is_spent_by_verified_deliveries_only(gateway, nginx):
    # Given a rate of one delivery in 100 s, and anybody's requests,
    calls = [github("/slow", secret="wrong") for _ in range(20)]
    assert {answer.status for answer in ask_all(nginx, calls)} == {401}

    # when the source sends, then its first delivery is taken,
    assert ask(nginx, github("/slow")).status == 200
    published = metric(gateway, PUBLISHED)

    # and the next one is not: it is told when to come again.
    answer = ask(nginx, github("/slow"))
    assert (answer.status, answer.type) == (429, "too-many")
    assert 90 <= int(answer.headers["retry-after"]) <= 100
    assert ask(nginx, github("/slow", secret="wrong")).status == 401
    assert metric(gateway, PUBLISHED) == published
    # Others' rates are their own.
    assert ask(nginx, github("/github")).status == 200


# Headers ------------------------------------------------------------------------------------

PRIVATE = {
    "Authorization": "Bearer abc",
    "Cookie": "a=b",
    "Proxy-Authorization": "Basic abc",
    "X-Custom": "mine",
}


def test_the_task_gets_no_secret_header(nginx):
    headers = json.loads(ask(nginx, github("/github", **PRIVATE)).body)["headers"]

    assert headers["x-custom"] == "mine"
    assert headers["x-github-event"] == "push"
    private = {"authorization", "cookie", "proxy-authorization"}
    assert not headers.keys() & (private | {"x-hub-signature-256", "x-hub-signature"})


def test_the_task_gets_the_secret_headers_that_are_passed(nginx):
    call = github("/open", **PRIVATE)

    headers = json.loads(ask(nginx, call).body)["headers"]

    assert headers["authorization"] == "Bearer abc"
    assert headers["x-hub-signature-256"] == call.headers["X-Hub-Signature-256"]
    assert not headers.keys() & {"cookie", "proxy-authorization", "x-hub-signature"}
