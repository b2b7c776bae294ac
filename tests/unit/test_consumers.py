"""Verdicts and advice of the load test's experiment `consumers` follow from its rows."""

from __future__ import annotations

import pytest

from loadtest.experiments.consumers import settings
from loadtest.lab.consumers import claims, originals
from loadtest.lab.consumers.advice import advise
from loadtest.lab.consumers.broker_memory import Cost
from loadtest.lab.consumers.part import QUEUES, Part, divide, queue_of
from loadtest.lab.consumers.settings import case


def row(
    driver: str, connections: int, prefetch: int, rps: float, cpu: float = 50, ack_ms: float = 10
) -> dict:
    return {
        "strategy": driver, "case": case(connections, prefetch), "repeat": 1, "rps": rps,
        "connections": connections, "prefetch": prefetch, "acks": 10, "ack_ms": ack_ms,
        "user_ms": 500, "system_ms": 100, "cpu_us_per_request": {"worker": cpu},
    }  # fmt: skip


#: As it was then, so far as that is known, and with one connection of py-amqp.
AS_THEN = [
    row("py-amqp", 1, 1, 6_000, 110),
    row("py-amqp", 2, 1, 9_090, 110, 218),
    row("pika", 32, 1, 6_250, 150, 351),
    row("pika", 2, 32, 14_000, 65, 20),
    row("py-amqp", 2, 32, 9_259, 105, 15),
    row("pika", 32, 32, 15_151, 65, 14),
    row("py-amqp", 32, 32, 7_000, 105, 15),
]


def verdicts(rows: list[dict]) -> list[str]:
    return [claim.verdict for claim in claims.of_drivers(rows)]


def test_rows_as_they_were_then_confirm_what_was_said():
    assert verdicts(AS_THEN) == ["confirmed"] * 6


def test_each_claim_is_refuted_by_rows_that_show_the_contrary():
    # Given rates in the opposite order, and acknowledgements that cost the same,
    contrary = [
        row("py-amqp", 1, 1, 9_000),
        row("py-amqp", 2, 1, 8_000),
        row("pika", 32, 1, 9_100),
        row("pika", 2, 32, 10_000),
        row("py-amqp", 2, 32, 11_000),
        row("pika", 32, 32, 5_000),
        row("py-amqp", 32, 32, 11_000),
    ]
    assert verdicts(contrary) == ["refuted"] * 6


def test_a_claim_shows_the_settings_it_compares_and_the_spread_of_repeats():
    rows = [*AS_THEN, {**row("py-amqp", 2, 1, 10_000), "repeat": 2}]
    rows.append({**row("pika", 32, 1, 5_000), "repeat": 2})
    first = claims.of_drivers(rows)[0]
    assert first.values == [9_090 / 6_250, 2]
    assert first.line()[2:] == [
        "1.73 (1.45-2.00)",
        "above 1",
        "messages/s, py-amqp, 2 connections, prefetch 1 / pika, 32 connections, prefetch 1",
    ]


def test_what_was_not_measured_is_not_judged():
    assert claims.of_drivers([]) == []
    only = claims.of_drivers([row("pika", 32, 1, 6_250), row("librabbitmq", 2, 1, 30_000)])
    assert only == []
    with_c = claims.of_drivers([*AS_THEN, row("librabbitmq", 2, 1, 30_000)])
    assert with_c[-1].text.startswith("A library written in C")
    assert with_c[-1].verdict == "confirmed"


@pytest.mark.parametrize(
    ("queue", "exchange", "expected"),
    [
        (0.003, 0.002, ["confirmed", "confirmed"]),
        (0.002, 0.0019, ["confirmed", "refuted"]),
        (0.0005, 0.0004, ["refuted", "confirmed"]),
    ],
)
def test_binds_are_judged_where_most_bindings_are(
    queue: float, exchange: float, expected: list[str]
):
    # Given a consumer that takes 10,000 messages a second, and a first size that says the contrary,
    times = {
        ("queue", 1): [0.0001], ("exchange", 1): [1.0],
        ("queue", 10_000): [queue], ("exchange", 10_000): [exchange],
    }  # fmt: skip
    judged = claims.of_bindings(times, [row("pika", 2, 16, 10_000)])
    assert [claim.verdict for claim in judged] == expected


def test_memory_is_judged_by_the_smallest_object():
    costs = {"classic queue": Cost(10, 300 * 1024), "exchange": Cost(100, 200 * 1024)}
    (claim,) = claims.of_memory(costs)
    assert (claim.values, claim.verdict) == ([2.0], "confirmed")
    assert "exchange" in claim.shown
    (claim,) = claims.of_memory({"exchange": Cost(100, 40 * 1024)})
    assert claim.verdict == "refuted"


def test_originals_stand_beside_rows_of_the_same_setting():
    head, *lines = originals.beside([row("pika", 32, 1, 12_500)])
    assert len(lines) == len(originals.ORIGINALS)
    assert {len(line) for line in lines} == {len(head)}
    (pika,) = [line for line in lines if line[0] == "pika, 32 connections, prefetch 1"]
    assert pika[1:] == [
        "6,250", "12,500", "2.00", "1.39 + 0.09", "0.50 + 0.10", "10,000 calls, 351 ms",
        "10 calls, 10 ms",
    ]  # fmt: skip
    (c_library,) = [line for line in lines if line[0].startswith("librabbitmq")]
    assert c_library[2:4] == ["-", "-"]


def test_a_sentence_tells_what_differs_in_order_and_why():
    rows = [
        row("py-amqp", 2, 1, 9_000, 100),
        row("pika", 32, 1, 10_000, 95),
        row("py-amqp", 2, 32, 9_000, 60),
        row("pika", 32, 32, 15_000, 61),
    ]
    told = originals.order(rows)
    assert "prefetch 1: then py-amqp before pika, here pika before py-amqp" in told
    assert "prefetch 32: then pika before py-amqp, as here" in told
    assert "With prefetch 1, the faster one, pika, needs less CPU time for a message" in told
    assert "With more, the faster one, pika, needs more CPU time for a message, but waits" in told
    assert originals.order(rows[:1]) == ""


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
    assert advise(rows) == (
        "Consume with pika over 2 connections, with a prefetch of 16 and one multiple "
        "acknowledgement for every 16 messages: 14,900 messages/s at 60 us of CPU each, 2.00 times "
        "the best with prefetch 1."
    )
    assert "acknowledge each message" in advise([row("py-amqp", 1, 1, 9_000)])
    assert advise([]) == ""


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
def test_larger_limits_are_measured_with_a_part_of_the_connections(
    connections: list[int], prefetch: list[int], expected: list[tuple[int, int]]
):
    assert settings(connections, prefetch) == expected
