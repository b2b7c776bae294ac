"""Verdicts and advice of the load test's experiment `consumers` follow from its rows."""

from __future__ import annotations

import pytest

from loadtest.experiments.consumers import case, settings
from loadtest.lab import advice
from loadtest.lab.consumers.part import QUEUES, Part, divide, queue_of


def row(driver: str, connections: int, prefetch: int, rps: float, cpu: float = 50) -> dict:
    return {
        "strategy": driver, "case": case(connections, prefetch), "repeat": 1, "rps": rps,
        "connections": connections, "prefetch": prefetch, "acks": 10, "ack_ms": 10,
        "user_ms": 500, "system_ms": 100, "cpu_us_per_request": {"worker": cpu},
    }  # fmt: skip


def test_advice_is_the_cheapest_setting_near_the_best_of_a_library():
    rows = [
        row("frames", 2, 16, 90_000),  # the gateway's own, which is no library
        row("librabbitmq", 2, 1, 40_000),  # nobody maintains it
        row("pika", 32, 64, 15_200),
        row("pika", 32, 16, 15_000, 61),
        row("pika", 2, 16, 14_900, 60),
        row("pika", 2, 1, 7_450),
        row("py-amqp", 2, 64, 9_000),
    ]
    assert advice.driver(rows) == (
        "Consume with pika over 2 connections and acknowledge 16 messages at once, with a prefetch "
        "of 16: 14,900 messages/s at 60 us of CPU each, 2.00 times the best with prefetch 1."
    )
    assert "acknowledge each message" in advice.driver([row("py-amqp", 1, 1, 9_000)])
    assert advice.driver([]) == ""


def test_each_message_belongs_to_the_connection_that_has_its_queue():
    parts = divide(1_000, connections=32, prefetch=4)
    assert sorted(queue for part in parts for queue in part.queues) == QUEUES
    assert sum(part.left for part in parts) == 1_000
    for number in range(1_000):
        (owner,) = [part for part in parts if queue_of(number) in part.queues]
        assert owner.due(b"%d" % number) in (True, False)
    assert [(part.left, part.wrong) for part in parts] == [(0, 0)] * 32


def test_every_kth_message_and_the_last_one_are_acknowledged():
    part = Part(["q"], range(10), prefetch=4)
    assert part.multiple
    assert [number for number in range(10) if part.due(b"%d" % number)] == [3, 7, 9]
    single = Part(["q"], range(3), prefetch=1)
    assert not single.multiple
    assert all(single.due(b"%d" % number) for number in range(3))


def test_a_message_that_comes_twice_is_counted_and_acknowledged():
    part = Part(["q"], range(3), prefetch=1)
    assert all(part.due(body) for body in (b"0", b"0", b"7", b"1"))
    assert (part.left, part.wrong) == (1, 2)


@pytest.mark.parametrize(
    ("connections", "prefetch", "expected"),
    [
        ([1, 2, 32], [1, 4], [(1, 1), (2, 1), (32, 1), (2, 4), (32, 4)]),
        ([1, 3], [1, 4], [(1, 1), (3, 1), (3, 4)]),
        ([2], [8], [(2, 8)]),
    ],
)
def test_larger_limits_are_measured_with_a_part_of_the_connections(connections, prefetch, expected):
    assert settings(connections, prefetch) == expected
