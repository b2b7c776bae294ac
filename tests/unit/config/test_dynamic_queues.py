"""Queues with pointers in their names: which settings they need, and what they become."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config import cross_checks, dynamic
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.delivery import Delivery
from gateway.errors import BadRequest

OWN = {"queue": "session-{param:session}", "queue_pattern": "session-[a-z]{1,8}"}


def route(**settings: Any) -> Route:
    return Route(path="/{session}", **settings)


def delivery(session: str) -> Delivery:
    return Delivery("id", "/", {"session": session}, {}, "", {}, b"", "192.0.2.1", 1000.5)


def test_the_name_is_filled():
    message = route(**OWN).message(delivery("abc"), "task", False, True, None)
    assert message.queue == "session-abc"


@pytest.mark.parametrize("session", ["ABC", "abcdefghi", "a.b", "abc\n", "é"])
def test_a_name_outside_the_pattern_is_refused_by_its_name(session):
    with pytest.raises(BadRequest, match="param:session"):
        route(**OWN).message(delivery(session), "task", False, True, None)


def test_the_queue_that_is_known_is_the_static_one():
    known = route(**OWN, static_queue="sessions")
    assert known.queue_names == ["sessions"]
    assert known.arguments() == {}
    assert ("queue", "param:session") in list(known.places())


def test_a_message_leaves_the_queue_before_that_expires():
    found = route(**OWN, queue_expires=60, queue_arguments={"x-max-length": 9}).dynamic_arguments()
    assert found == {
        "x-max-length": 9, "x-queue-type": "classic", "x-expires": 60_000, "x-message-ttl": 30_000,
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "celery",
    }  # fmt: skip
    assert dynamic.RENEWED + dynamic.WAITING < 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"queue": "a-{param:session}"}, "queue_pattern: is needed"),
        ({"queue": "a-{session}"}, "is written as json:/pointer"),
        ({"queue": "a-{param:x}", "queue_pattern": "a"}, "queue: the path has no parameter x"),
        ({"queue": "a", "queue_pattern": "a"}, "queue_pattern: is for a queue with pointers"),
        ({"queue": "a", "queue_limit": 9}, "queue_limit: is for a queue with pointers"),
        ({"static_queue": "a"}, "static_queue: is for a queue with pointers"),
        ({**OWN, "queue_pattern": "("}, "is no regular expression"),
        ({**OWN, "queue_type": "quorum"}, "queue_type: a dynamic queue is classic"),
        ({**OWN, "declare": False}, "declare: dynamic queues are declared on first use"),
        ({**OWN, "queue_arguments": {"x-expires": 1}}, "queue_arguments: x-expires"),
        ({**OWN, "static_queue": "session-a"}, "static_queue: must not fit queue_pattern"),
        ({**OWN, "countdown": 600}, "countdown: has to be below queue_expires"),
        ({**OWN, "queue_expires": 3}, "greater than or equal to 4"),
        ({**OWN, "exchange": "e"}, "leave out queue"),
        ({**OWN, "queues": ["a", "b"], "ordering_key": "header:k"}, "queues: `queue` has pointers"),
    ],
)
def test_settings_that_cannot_be(settings, problem):
    with pytest.raises(ValidationError, match=re.escape(problem)):
        route(**settings)


LATE = "routes[0].queue_expires: a message could arrive after its queue has expired; set it to"


@pytest.mark.parametrize(
    ("settings", "routes", "problem"),
    [
        ({"broker_url": "redis://localhost/0"}, [route(**OWN)],
         "routes[0].queue: only an AMQP broker has queues that expire; use a fixed name"),
        ({}, [route(**OWN, queue_expires=8)], f"{LATE} 12 or more"),
        ({"strategy": "threadpool"}, [route(**OWN, queue_expires=30)], f"{LATE} 52 or more"),
        ({}, [route(**OWN), Route(path="/b/{session}", **OWN, queue_limit=7)],
         "routes[1]: the queue session-{param:session} has other values of queue_pattern, "
         "queue_limit, queue_expires, static_queue or queue_arguments than in routes[0] "
         "(path /{session}); make them the same"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_together(settings, routes, problem):
    assert cross_checks.problems(Config(**settings, routes=routes)) == [problem]


def test_a_fixed_queue_has_nothing_to_do_with_it():
    assert not route(queue="a").dynamic
    assert Config(routes=[route(queue="a")]).dynamic_paths == []
    assert Config(routes=[route(**OWN)]).dynamic_paths == ["/{session}"]
