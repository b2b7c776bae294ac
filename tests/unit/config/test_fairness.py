"""Which two fair queues a publisher is assigned."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from appserver.fair import FEWEST, MOST, fair_names
from gateway.config.pointers import MAX_LENGTH, pair_chooser
from gateway.config.route import Route
from gateway.delivery import Delivery

QUEUES = [f"q.fair.{n}" for n in range(16)]
PUBLISHERS = [f"tenant-{n}" for n in range(4_800)]


def delivery(body: bytes = b"{}", remote: str = "127.0.0.1", **headers: str) -> Delivery:
    return Delivery("id", "/", {"account": "a1"}, {}, "", headers, body, remote, 0.0)


def pairs(queues: list[str]) -> dict[str, tuple[str, str]]:
    choose = pair_chooser("header:key", queues)
    return {key: choose(delivery(key=key)) for key in PUBLISHERS}


@pytest.mark.parametrize("number", [4, 5, 16, 128])
def test_two_queues_are_always_different_and_of_the_route(number):
    queues = [f"q.fair.{n}" for n in range(number)]
    found = pairs(queues).values()
    assert all(one != other for one, other in found)
    assert set(chain(*found)) == set(queues)


def test_publishers_are_spread_over_all_pairs_and_each_queue_has_its_share():
    found = pairs(QUEUES).values()
    counts = Counter(map(frozenset, found))
    assert len(counts) == 16 * 15 / 2
    assert all(15 <= share <= 70 for share in counts.values())  # 40 on average
    assert all(480 <= share <= 720 for share in Counter(chain(*found)).values())  # 600 on average


def test_the_assignment_is_written_down():
    # Another one would let an old and a new process give a publisher four queues at an upgrade,
    # and one that differs from process to process at any time: each has a seed of its own for
    # Python's hashes, and so has each run of this test.
    found = pairs(QUEUES)
    numbers = [[int(queue.rpartition(".")[2]) for queue in found[key]] for key in PUBLISHERS[:4]]
    assert numbers == [[1, 8], [11, 6], [12, 1], [4, 9]]


def test_queues_of_another_name_have_another_assignment():
    other = pairs([queue.replace("q", "r") for queue in QUEUES])
    same = sum(
        {queue.replace("r", "q") for queue in pair} == set(pairs_of)
        for pair, pairs_of in zip(other.values(), pairs(QUEUES).values(), strict=True)
    )
    assert same < len(PUBLISHERS) / 20


def test_deliveries_without_a_publisher_have_one_together():
    choose = pair_chooser("json:/account", QUEUES)
    values = (b"null", b"[]", b'""', b"true")
    some = [b"{}", b"no json", b"\xff", *(b'{"account": %b}' % value for value in values)]
    assert len({choose(delivery(body)) for body in some}) == 1


def test_a_long_name_is_cut_and_refuses_nothing():
    choose = pair_chooser("header:key", QUEUES)
    name = "x" * MAX_LENGTH
    assert choose(delivery(key=name + "1")) == choose(delivery(key=name + "2"))
    assert choose(delivery(key="\udcff")) in [(a, b) for a in QUEUES for b in QUEUES]


@pytest.mark.parametrize(
    ("place", "one", "other"),
    [
        ("json:/n", delivery(b'{"n": 1}'), delivery(b'{"n": 4}')),
        ("remote", delivery(remote="192.0.2.1"), delivery(remote="192.0.2.7")),
        ("header:X-Tenant", delivery(**{"x-tenant": "a"}), delivery(**{"x-tenant": "c"})),
    ],
)
def test_each_pointer_tells_publishers_apart(place, one, other):
    choose = pair_chooser(place, QUEUES)
    assert choose(one) != choose(other)


@pytest.mark.parametrize("number", [FEWEST, 5, MOST])
def test_a_routes_queues_have_the_names_that_workers_consume(number):
    route = Route(path="/", queue="orders", fair_by="remote", fair_queues=number)
    assert route.queue_names == fair_names("orders", number)
    message = route.message(delivery(), "id", store=False, persistent=False, expires=None)
    assert message.queue in route.fair_pair(delivery())


@pytest.mark.parametrize("number", [FEWEST - 1, MOST + 1])
def test_a_route_allows_no_numbers_that_workers_do_not(number):
    with pytest.raises(ValueError, match="fair_queues"):
        Route(path="/", fair_by="remote", fair_queues=number)
