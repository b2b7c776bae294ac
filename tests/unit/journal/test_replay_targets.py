"""Where a replay goes after its route has changed: never to a queue that the route has left."""

from __future__ import annotations

import pytest

from gateway.config.settings import Config
from gateway.errors import NotFound
from gateway.journal.entry import Entry
from gateway.journal.replay import aimed

PATH = {"path": "/orders"}
CHANGED = "no route leads to its task shop.take in the queue orders any more, and "


def entry(event: str = "", **fields) -> Entry:
    about = {"delivery": {"id": "d", "route": "/orders", "event": event}, "task_id": "t"}
    own = {"task": "shop.take", "queue": "orders", "status": 200, "seconds": 0.1, "call": b"[]"}
    return Entry(**{**about, **own, **fields})


def aim(one: Entry, *routes: dict) -> tuple[str, str, str]:
    found = aimed(Config(broker_url="amqp://h//", routes=[PATH | route for route in routes]), one)
    return found.task, found.queue, found.options.get("exchange", "")


DYNAMIC = {
    "task": "shop.take", "queue": "s-{header:x}", "queue_pattern": "s-[0-9]+",
    "static_queue": "sessions",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "routes", "found"),
    [
        ({}, [{"task": "shop.take", "queue": "orders"}], ("shop.take", "orders", "")),
        ({}, [{"task": "shop.take", "queue": "new"}], ("shop.take", "new", "")),
        ({}, [{"task": "shop.new", "queue": "orders"}], ("shop.new", "orders", "")),
        ({}, [{"task": "shop.new", "queue": "new"}], ("shop.new", "new", "")),
        # Of several routes the one with the same task is meant.
        (
            {},
            [
                {"task": "shop.a", "queue": "orders", "when": {"json:/a": "1"}},
                {"task": "shop.take", "queue": "new"},
            ],
            ("shop.take", "new", ""),
        ),
        # A dynamic queue may be gone.
        ({"queue": "s-7"}, [DYNAMIC], ("shop.take", "sessions", "")),
        ({}, [DYNAMIC], ("shop.take", "sessions", "")),
        (
            {"queue": "o.paid", "options": {"exchange": "events"}},
            [{"task": "shop.take", "exchange": "events", "routing_key": "o.{header:x}"}],
            ("shop.take", "o.paid", "events"),
        ),
        (
            {"queue": "o.paid", "options": {"exchange": "events"}},
            [{"task": "shop.take", "queue": "orders"}],
            ("shop.take", "orders", ""),
        ),
        (
            {},
            [{"task": "shop.take", "exchange": "events", "routing_key": "o"}],
            ("shop.take", "o", "events"),
        ),
    ],
)
def test_a_replay_goes_where_its_route_leads_today(fields, routes, found):
    assert aim(entry(**fields), *routes) == found


@pytest.mark.parametrize(
    ("routes", "why"),
    [
        ([{"path": "/other"}], CHANGED + "no route has the path /orders"),
        (
            [
                {"task": "shop.a", "when": {"json:/a": "1"}},
                {"task": "shop.b", "when": {"json:/a": "2"}},
            ],
            CHANGED + "2 routes have the path /orders",
        ),
        ([{"task": "shop.a", "exchange": "events", "routing_key": "o.{header:x}"}],
         "/orders has a new exchange, and a routing key that only a request has"),
    ],
)  # fmt: skip
def test_a_replay_whose_route_is_not_known_any_more_is_refused(routes, why):
    with pytest.raises(NotFound, match=why.replace(".", r"\.")):
        aim(entry(), *routes)
