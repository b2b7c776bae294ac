"""What the lab's experiments say follows from their rows."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.experiments.loops import (
    AIOHTTP,
    ASYNCIO,
    MANY,
    NO_LOOP,
    ONE,
    THREADS,
    UVLOOP,
    compared,
)
from loadtest.lab import advice
from loadtest.lab.sites import LEAST, MOST, sites, statuses
from loadtest.lab.transport import END, MESSAGE, Counts, Settings, Transport
from loadtest.lab.transport_cases import (
    BUFFERED,
    BYTES,
    CONFIRMED,
    EACH,
    PICKLES,
    PIPE,
    PUSH,
    QUEUE,
)
from loadtest.lab.transports import sum_up
from loadtest.summary import Row

Rates = dict[tuple[str, str], Any]


def rows(figures: Rates, *path: str) -> list[Row]:
    """Make a row of each repeat, with its figure at `path`; one figure counts for one repeat."""
    made = []
    for (strategy, case), repeats in figures.items():
        for repeat, value in enumerate(repeats if isinstance(repeats, tuple) else (repeats,), 1):
            for name in reversed(path):
                value = {name: value}
            made.append({"strategy": strategy, "case": case, "repeat": repeat, **value})
    return made


RATES: Rates = {
    (QUEUE, PICKLES): (100_000, 110_000), (PUSH, BYTES): (1_600_000, 1_500_000),
    (PUSH, PICKLES): (1_200_000, 1_100_000), (BUFFERED, BYTES): (2_000_000, 2_000_000),
    (EACH, BYTES): (250_000, 250_000), (PIPE, BYTES): (150_000, 150_000),
    (PIPE, PICKLES): (120_000, 120_000), (CONFIRMED, BYTES): (5_000, 5_000),
}  # fmt: skip


def test_the_advice_on_transports_names_the_fastest_and_what_a_broker_costs():
    text = advice.transport(rows(RATES, "rps"))
    assert "UNIX socket, buffered moves 2,000,000 messages a second, 19 times" in text
    assert "moves 5,000, 400 times fewer" in text
    # Nothing is said of what has failed.
    assert advice.transport(rows({(PUSH, BYTES): 5}, "rps")) == ""


class Nothing(Transport):
    """Is only counted."""

    sending = receiving = None


@pytest.mark.parametrize(
    ("copies", "came", "missing", "repeated"),
    [
        (False, [3, 7], 0, 0),
        (False, [3, 6], 1, 0),
        (False, [5, 6], 0, 1),
        # One of the receivers got another's message as well: each has to have all.
        (True, [10, 10], 0, 0),
        (True, [9, 11], 1, 1),
    ],
)
def test_a_message_that_is_missing_or_comes_twice_is_counted(
    copies: bool, came: list[int], missing: int, repeated: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Nothing, "copies", copies)
    figures = {"cpu": 1.0, "memory": 2.0, "wrong": 0}
    sender = {**figures, "right": 0, "begin": 5.0, "end": 6.0}
    receivers = [{**figures, "right": n, "begin": 5.5, "end": 6.0 + n} for n in came]

    found = sum_up(Nothing(Settings(10, 2)), [sender, *receivers])

    assert (found["missing"], found["repeated"]) == (missing, repeated)
    assert found["seconds"] == 1 + max(came)
    assert found["cpu"] == {"sender": 1.0, "receivers": 2.0}


def test_an_answer_that_does_not_come_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Nothing, "answers", True)
    each = {"cpu": 0.0, "memory": 0.0, "wrong": 0, "begin": 0.0, "end": 1.0}
    found = sum_up(Nothing(Settings(10)), [{**each, "right": 9}, {**each, "right": 10}])
    assert (found["requests"], found["missing"]) == (9, 1)


def test_a_receiver_counts_until_the_end_and_notices_another_message():
    came = iter([MESSAGE, MESSAGE, b"MASSAGE", MESSAGE, END, MESSAGE])
    assert Nothing(Settings(4)).take(came.__next__) == Counts(right=3, wrong=1)
    # As many bytes, or a transport of messages of one size could not tell them apart.
    assert len(MESSAGE) == len(END)


TIMES: Rates = {
    (ONE, NO_LOOP): (27_000, 28_000), (MANY, NO_LOOP): (3_600, 3_800),
    (THREADS, NO_LOOP): (700, 750), (AIOHTTP, ASYNCIO): (650, 660), (AIOHTTP, UVLOOP): (500, 490),
}  # fmt: skip
CPU: Rates = {
    ("echo, sockets", ASYNCIO): (20.0, 21.0), ("echo, sockets", UVLOOP): (19.0, 20.0),
    ("echo, streams", ASYNCIO): (30.0, 30.0), ("echo, streams", UVLOOP): (20.0, 20.0),
    ("echo, protocols", ASYNCIO): (15.0, 15.0), ("echo, protocols", UVLOOP): (5.0, 6.0),
    ("gateway, pika", ASYNCIO): (200.0, 200.0), ("gateway, pika", UVLOOP): (150.0, 155.0),
}  # fmt: skip


def lab(times: Rates = TIMES, cpu: Rates = CPU) -> list[Row]:
    """Make the rows of `loops`, with what belongs to a checker's time."""
    checkers = rows(times, "checker", "ms")
    for row in checkers:
        row["requests"], row["rps"] = 1_000, 1e6 / row["checker"]["ms"]
        row["cpu_us_per_request"] = {"checker": 400.0 if row["case"] == UVLOOP else 500.0}
        row["rss_mb"] = {"checker": 40.0}
    return [*checkers, *rows(cpu, "server", "cpu_us")]


def test_the_advice_on_loops_names_the_fastest_way_and_where_uvloop_helps():
    text = advice.loop(lab())
    assert text.startswith(
        "To wait for many, use aiohttp on uvloop: 0.49 s and 40 MB where one thread takes 27.50 s"
    )
    assert "CPU time (echo, streams: 33%; echo, protocols: 64%; gateway, pika: 24%)" in text
    assert text.endswith("elsewhere (echo, sockets: 5%).")
    same = dict.fromkeys(CPU, (9.0, 9.0))
    assert advice.loop(lab(cpu=same)).endswith("; and do without uvloop.")
    assert advice.loop(lab(cpu={})) == advice.loop([]) == ""


def test_a_checkers_counts_have_to_be_those_of_the_sites():
    expected = statuses(1_000)
    assert sum(expected.values()) == 1_000 and len(expected) == 3
    assert compared(expected, expected) == {"wrong_answers": 0, "errors": {"missing": 0}}
    other = {**expected, "200": expected["200"] - 3, "500": 1}
    assert compared(other, expected) == {"wrong_answers": 1, "errors": {"missing": 3}}


def test_sites_are_the_same_in_each_run_and_the_first_ones_whatever_their_number():
    assert sites(100) == sites(1_000)[:100]
    assert all(LEAST <= site.delay <= MOST for site in sites(1_000))
