"""How a route's settings make a message of a delivery, and which settings cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from appserver.poison import CELERY_HEADERS
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.config.task import RESERVED
from gateway.delivery import Delivery
from gateway.errors import BadRequest
from gateway.process.handover import Start, read, write

LIMITED = {"queue": "q", "queue_arguments": {"x-max-length": 9}}
BODY = b'{"a": 1, "text": "x", "none": null, "list": [1, {"b": true}]}'


def delivery(body: bytes = BODY, **headers: str) -> Delivery:
    query, params = {"q": "last"}, {"shop": "main"}
    return Delivery(
        "id", "/", params, query, "q=last", headers, body, "192.0.2.1", 1000.5, "s", "e"
    )


def call(settings: dict[str, Any], given: Delivery | None = None) -> tuple[list, dict]:
    """Return the arguments that a task is called with."""
    route = Route(path="/{shop}", **settings)
    message = route.message(given or delivery(), "task", False, False, None)
    args, kwargs, embed = json.loads(message.body)
    assert embed.keys() == {"callbacks", "errbacks", "chain", "chord"}
    return args, kwargs


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("json:", json.loads(BODY)), ("json:/a", 1), ("json:/none", None), ("json:/list/1/b", True),
        ("header:X-Y", "yes"), ("query:q", "last"), ("param:shop", "main"),
        ("body", BODY.decode()), ("event", "e"), ("remote", "192.0.2.1"), ("delivery", "id"),
        ("source", "s"),
    ],
)  # fmt: skip
def test_a_pointer_is_an_argument(pointer, value):
    given = delivery(**{"x-y": "yes"})
    assert call({"args": [pointer], "kwargs": {"k": pointer}}, given) == ([value], {"k": value})


@pytest.mark.parametrize("pointer", ["json:/b", "json:/list/2", "json:/a/b", "header:x", "query:x"])
def test_a_missing_value_is_named_or_has_a_default(pointer):
    with pytest.raises(BadRequest, match=f"{pointer} is missing"):
        call({"args": [pointer]})
    for default in (None, "", 0, [], {"x": 1}):
        assert call({"args": [{"from": pointer, "default": default}]}) == ([default], {})


def test_an_optional_argument_is_left_out_without_a_value():
    optional = {"from": "json:/b", "optional": True}
    assert call({"kwargs": {"k": optional, "a": "json:/a"}}) == ([], {"a": 1})
    assert call({"kwargs": {"k": optional}}, delivery(b'{"b": null}')) == ([], {"k": None})
    with pytest.raises(ValueError, match="move it to kwargs"):
        call({"args": [optional]})


def test_any_json_is_a_value_and_anything_else_is_not():
    assert call({"args": ["json:"]}, delivery(b"[1]")) == ([[1]], {})
    assert call({"args": ["json:/0"]}, delivery(b'["x"]')) == (["x"], {})
    assert call({"args": ["json:/0"]}, delivery(b'["\\ud83d"]')) == (["\ud83d"], {})
    for body in (b"", b"x", b"NaN", b"\xff"):
        with pytest.raises(BadRequest, match="JSON"):
            call({"args": [{"from": "json:/a", "default": 1}]}, delivery(body))


def test_a_call_without_arguments_is_one():
    assert call({"args": []}) == ([], {})
    assert call({})[0][:2] == [{"q": "last"}, {}]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"args": ["jsn:/a"]}, "is written as json:/pointer"),
        ({"args": ["param:other"]}, "args: the path has no parameter other"),
        ({"kwargs": {"a-b": "body"}}, "'a-b' is no name of an argument"),
        ({"when": {"param:other": "x"}}, "when: the path has no parameter other"),
        ({"when": {"json:/a": []}}, "1"),
        ({"exchange": "e", "queue": "q"}, "leave out queue and queues"),
        ({"routing_key": "k"}, "set it together with exchange"),
        ({"exchange": "e", "routing_key": "a.{param:x}"}, "routing_key: the path has no parameter"),
        ({"exchange": "e", "routing_key": "a.{x}"}, "is written as json:/pointer"),
        ({"queue": "q", "queue_type": "quorum", "countdown": 1}, "use a classic queue"),
        ({"countdown": 5, "expires": 5}, "has to be above countdown"),
        ({"time_limit": 5, "soft_time_limit": 5}, "has to be below time_limit"),
        ({"message_headers": {"id": "event"}}, "one of Celery's own"),
        ({"message_headers": {"x-delivery-count": "header:n"}}, "one of RabbitMQ's own"),
        ({"message_headers": {"compression": "header:n"}}, "one of Celery's own"),
        ({**LIMITED, "answer": "accept"}, "drops the oldest message"),
        ({**LIMITED, "prefer": True}, "drops the oldest message"),
        ({"also": [{"task": "t", **LIMITED}]}, "drops the oldest message"),
        ({"queue": "q", "queue_arguments": {"x-max-length-bytes": 9, "x-overflow": "drop-head"},
          "answer": "accept"}, "with x-max-length-bytes RabbitMQ drops"),
        ({"queue": "q", "queue_arguments": {"x-message-ttl": 9}, "answer": "accept"},
         "drops what waits too long"),
        ({"queue": "q", "queue_arguments": {"x-expires": 9}, "answer": "accept"},
         "deletes a queue"),
        ({"priority": 256}, "255"),
        ({"link": "t"}, "Extra inputs are not permitted"),
        ({"eta": "2030-01-01T00:00:00Z"}, "Extra inputs are not permitted"),
        ({"ignore_result": True}, 'set answer = "accept"'),
        ({"ignore_result": True, "answer": "accept", "prefer": True}, 'set answer = "accept"'),
        ({"also": [{"queue": "q"}]}, "also.0.task"),
        ({"also": [{"task": "t", "args": ["param:x"]}]},
         r"also\[0\].args: the path has no parameter"),
        ({"also": [{"task": "t", "answer": "accept"}]}, "Extra inputs are not permitted"),
        ({"also": [{"task": "t"}] * 17}, "at most 16"),
        ({"task_id": "identity"}, 'set answer = "accept"'),
        ({"revoke": True, "answer": "accept"}, 'set answer = "wait"'),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(settings, problem):
    with pytest.raises(ValidationError, match=problem):
        Route(path="/{shop}", **settings)


@pytest.mark.parametrize(
    "own",
    [
        {"x-max-length": 9, "x-overflow": "reject-publish"},
        {"x-max-length": 9, "x-overflow": "reject-publish-dlx"},
        {"x-max-length": 9, "x-message-ttl": 9, "x-dead-letter-exchange": "kept"},
    ],
)
def test_arguments_with_which_no_accepted_message_is_lost(own):
    assert Route(path="/", answer="accept", queue="q", queue_arguments=own)


def test_what_nobody_was_told_may_be_dropped():
    assert Route(path="/", **LIMITED)


def test_no_header_of_a_message_is_one_that_a_worker_reads():
    assert {name for name in CELERY_HEADERS if name[0] != "_"} - RESERVED.keys() == set()


def test_a_text_that_was_cut_within_an_emoji_is_sent_in_a_header_of_the_message():
    route = Route(path="/", message_headers={"region": "json:/a"})
    message = route.message(delivery(rb'{"a": "cut \ud83d"}'), "t", False, False, None)
    assert message.extra == {"region": "cut ?"}  # AMQP's texts are UTF-8


def test_a_route_s_own_expiry_and_the_deadline_s_are_both_kept():
    route = Route(path="/", expires=10)
    times = [route.message(delivery(), "t", False, False, at).expires for at in (None, 1005, 1020)]
    assert times == [1010.5, 1005, 1010.5]


def test_no_result_is_stored_where_it_is_ignored():
    for ignored in (False, True):
        route = Route(path="/", answer="accept", ignore_result=ignored)
        message = route.message(delivery(), "t", True, True, None)
        assert message.delivery["store"] is not ignored
        assert message.headers()["ignore_result"] is ignored


def test_a_child_gets_the_same_settings():
    settings = {
        "path": "/{shop}", "args": ["json:/a", {"from": "json:/b", "default": None}],
        "kwargs": {"k": {"from": "body", "optional": True}},
        "when": {"json:/a": [1, "x*", True], "event": "e"},
        "priority": "json:/a", "message_headers": {"region": "header:x"},
        "also": [{"task": "other", "queue": "q", "args": ["event"]}],
    }  # fmt: skip
    config = Config(routes=[Route.model_validate(settings)])

    (route,) = read(write(Start(config, [], 0))).config.routes

    assert route == config.routes[0]


@pytest.mark.parametrize(
    ("when", "body", "taken"),
    [
        ({"json:/a": 1}, b'{"a": 1}', True),
        ({"json:/a": "1"}, b'{"a": 1}', True),
        ({"json:/a": 1}, b'{"a": "1"}', True),
        ({"json:/a": 1}, b'{"a": true}', False),
        ({"json:/a": True}, b'{"a": true}', True),
        ({"json:/a": True}, b'{"a": 1}', False),
        ({"json:/a": "true"}, b'{"a": true}', False),
        ({"json:/a": "*"}, b'{"a": null}', False),
        ({"json:/a": "*"}, b'{"a": ""}', True),
        ({"json:/a": "*"}, b"{}", False),
        ({"json:/a": "*"}, b"no json", False),
        ({"json:/a": "x*z"}, b'{"a": "x\\ny\\nz"}', True),
        ({"json:/a": "[x]?"}, b'{"a": "x1"}', False),
        ({"json:/a": "*" * 20 + "b"}, b'{"a": "' + b"a" * 2000 + b'"}', False),
        ({"json:/a": ["p", "q"], "json:/b": "r"}, b'{"a": "q", "b": "r"}', True),
        ({"json:/a": ["p", "q"], "json:/b": "r"}, b'{"a": "q"}', False),
    ],
)
def test_a_filter_takes_what_fits(when, body, taken):
    assert Route(path="/", when=when).takes(delivery(body)) is taken


def test_fair_queues_may_be_listed():
    route = Route(path="/", fair_by="header:x-tenant", queues=["a", "b", "c"])
    assert route.queue_names == ["a", "b", "c"]
    pairs = [route.fair_pair(delivery(**{"x-tenant": f"t{n}"})) for n in range(50)]
    assert {queue for pair in pairs for queue in pair} == {"a", "b", "c"}
    assert all(one != other for one, other in pairs)
