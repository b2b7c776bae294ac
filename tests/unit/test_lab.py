"""What the lab's experiments say follows from their rows."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.experiments.loops import compared
from loadtest.lab import loop_verdicts as loops
from loadtest.lab import loop_ways
from loadtest.lab import transport_verdicts as transports
from loadtest.lab.loop_ways import AIOHTTP, ASYNCIO, MANY, NO_LOOP, ONE, THREADS, UVLOOP
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
    (QUEUE, PICKLES): (100_000, 110_000),
    (PUSH, BYTES): (1_600_000, 1_500_000),
    (PUSH, PICKLES): (1_200_000, 1_100_000),
    (BUFFERED, BYTES): (2_000_000, 2_000_000),
    (EACH, BYTES): (250_000, 250_000),
    (PIPE, BYTES): (150_000, 150_000),
    (PIPE, PICKLES): (120_000, 120_000),
    (CONFIRMED, BYTES): (5_000, 5_000),
}


def verdicts(changed: Rates) -> list[str]:
    return [claim.verdict for claim in transports.judge(rows({**RATES, **changed}, "rps"))]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ["confirmed", "confirmed", "refuted", "confirmed"]),
        # In one of two repeats the queue was faster, and so the distance is none.
        (
            {(PUSH, BYTES): (90_000, 120_000)},
            ["refuted", "refuted", "refuted", "confirmed"],
        ),
        # Most of the distance is that of pickles.
        (
            {(PUSH, PICKLES): (150_000, 150_000)},
            ["confirmed", "confirmed", "confirmed", "confirmed"],
        ),
        ({(CONFIRMED, BYTES): (300_000,)}, ["confirmed", "confirmed", "refuted", "refuted"]),
        (
            {(QUEUE, PICKLES): (), (CONFIRMED, BYTES): ()},
            ["not measured"] * 4,
        ),
    ],
)
def test_what_was_said_of_transports_is_judged_by_the_rows(changed: Rates, expected: list[str]):
    assert verdicts(changed) == expected


def test_a_verdict_on_transports_names_the_rows_that_show_it():
    faster, times, pickling, far = transports.judge(rows(RATES, "rps"))
    assert faster.shown == (
        "ZeroMQ PUSH/PULL, ipc, bytes: 1,550,000/s; multiprocessing.Queue: 105,000/s"
    )
    assert times.shown == "14.8 times (13.6-16.0)"
    assert "1,150,000/s, which is 1.3 of the 14.8 times; the other 11.0 are" in pickling.shown
    assert far.shown.startswith(f"{BUFFERED}: 2,000,000/s; {CONFIRMED}: 5,000/s, 400.0 times")


def test_the_advice_on_transports_names_the_fastest_and_what_a_broker_costs():
    advice = transports.advice(rows(RATES, "rps"))
    assert "UNIX socket, buffered moves 2,000,000 messages a second, 19 times" in advice
    assert "moves 5,000, 400 times fewer" in advice
    # Nothing is said of what has failed.
    assert transports.advice(rows({(PUSH, BYTES): 5}, "rps")) == ""


def test_the_originals_transports_are_beside_ours():
    measured = rows(RATES, "rps")
    assert transports.beside(measured)[1:] == [
        ["multiprocessing.Queue, pickles", "79,781", "105,000", "1.32"],
        ["ZeroMQ PUSH/PULL, ipc, bytes", "1,699,180", "1,550,000", "0.91"],
        ["ZeroMQ / queue", "21.3 times", "14.8 times", "0.70"],
    ]
    (why,) = transports.why(measured)
    assert why.startswith("The order is the same as then; the distance is 14.8 times here")
    assert "8.0 times slower than writes of 64 KiB" in why
    (other,) = transports.why(rows({**RATES, (PUSH, BYTES): (9_000, 9_000)}, "rps"))
    assert other.startswith("The order is the other way round as then")
    assert transports.why([]) == []
    assert transports.beside([])[1][2:] == ["-", "-"]


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
    (ONE, NO_LOOP): (27_000, 28_000),
    (MANY, NO_LOOP): (3_600, 3_800),
    (THREADS, NO_LOOP): (700, 750),
    (AIOHTTP, ASYNCIO): (650, 660),
    (AIOHTTP, UVLOOP): (500, 490),
}
CPU: Rates = {
    ("echo, sockets", ASYNCIO): (20.0, 21.0),
    ("echo, sockets", UVLOOP): (19.0, 20.0),
    ("echo, streams", ASYNCIO): (30.0, 30.0),
    ("echo, streams", UVLOOP): (20.0, 20.0),
    ("echo, protocols", ASYNCIO): (15.0, 15.0),
    ("echo, protocols", UVLOOP): (5.0, 6.0),
    ("gateway, pika", ASYNCIO): (200.0, 200.0),
    ("gateway, pika", UVLOOP): (150.0, 155.0),
}


def lab(times: Rates = TIMES, cpu: Rates = CPU) -> list[Row]:
    """Make the rows of `loops`, with what belongs to a checker's time."""
    checkers = rows(times, "checker", "ms")
    for row in checkers:
        row["requests"], row["rps"] = 1_000, 1e6 / row["checker"]["ms"]
        row["cpu_us_per_request"] = {"checker": 400.0 if row["case"] == UVLOOP else 500.0}
        row["rss_mb"] = {"checker": 40.0}
    return [*checkers, *rows(cpu, "server", "cpu_us")]


@pytest.mark.parametrize(
    ("times", "cpu", "expected"),
    [
        ({}, {}, ["confirmed", "confirmed", "confirmed"]),
        # A way that was as slow as one thread once, and a loop that saves nothing.
        (
            {(MANY, NO_LOOP): (3_600, 28_000), (AIOHTTP, UVLOOP): (640, 650)},
            {},
            ["refuted", "refuted", "confirmed"],
        ),
        # uvloop helps everywhere and as much.
        (
            {},
            {
                ("echo, sockets", UVLOOP): (10.0, 10.0),
                ("echo, streams", UVLOOP): (15.0, 15.0),
                ("echo, protocols", UVLOOP): (7.0, 8.0),
            },
            ["confirmed", "confirmed", "refuted"],
        ),
        # It helps nowhere.
        (
            {},
            {
                (f"echo, {name}", loop): (9.0, 9.0)
                for name in loop_ways.INTERFACES
                for loop in loop_ways.LOOPS
            },
            ["confirmed", "confirmed", "refuted"],
        ),
        # Different in the median only: the repeats overlap.
        (
            {},
            {
                ("echo, sockets", UVLOOP): (10.0, 20.0),
                ("echo, streams", UVLOOP): (15.0, 15.0),
                ("echo, protocols", UVLOOP): (5.0, 8.0),
            },
            ["confirmed", "confirmed", "refuted"],
        ),
        (
            {(ONE, NO_LOOP): (), (AIOHTTP, UVLOOP): ()},
            {("echo, streams", UVLOOP): ()},
            ["not measured"] * 3,
        ),
    ],
)
def test_what_was_said_of_ways_and_loops_is_judged_by_the_rows(
    times: Rates, cpu: Rates, expected: list[str]
):
    measured = lab({**TIMES, **times}, {**CPU, **cpu})
    assert [claim.verdict for claim in loops.judge(measured)] == expected


def test_a_verdict_on_loops_names_the_rows_that_show_it():
    many, saved, differ = loops.judge(lab())
    assert "8 processes: 7.4 times; 100 threads: 38.0 times; aiohttp on asyncio" in many.shown
    assert saved.text.startswith("uvloop saves a checker on asyncio 44% of its time")
    assert saved.shown == "24% saved by aiohttp (23% to 26%)"
    assert differ.shown.endswith("sockets 1.05; echo, streams 1.50; echo, protocols 2.75; "
                                 "gateway, pika 1.31")  # fmt: skip


def test_the_advice_on_loops_names_the_fastest_way_and_where_uvloop_helps():
    advice = loops.advice(lab())
    assert advice.startswith(
        "To wait for many, use aiohttp on uvloop: 0.49 s and 40 MB where one thread takes 27.50 s"
    )
    assert "CPU time (echo, streams: 33%; echo, protocols: 64%; gateway, pika: 24%)" in advice
    assert advice.endswith("elsewhere (echo, sockets: 5%).")
    near = loops.advice(lab({**TIMES, (AIOHTTP, ASYNCIO): (500, 510)}))
    assert "takes 27.50 s (about as fast: aiohttp on asyncio, 0.51 s); and" in near
    same = dict.fromkeys(CPU, (9.0, 9.0))
    assert loops.advice(lab(cpu=same)).endswith("; and do without uvloop.")
    assert loops.advice(lab(cpu={})) == loops.advice([]) == ""


def test_the_originals_checkers_are_beside_ours():
    measured = lab()
    assert [line[:2] for line in loops.beside(measured)[1:]] == [
        ["100 threads", "5.4"],
        ["aiohttp on asyncio", "46.4"],
        ["aiohttp on uvloop", "82.2"],
        ["uvloop / asyncio", "1.77"],
    ]
    (why,) = loops.why(measured)
    assert why.startswith("The order is the same as then, from the fastest: aiohttp on uvloop, ")
    assert "used CPU for 76% of its time, 500 us a URL, and on uvloop 400 us" in why
    (other,) = loops.why(lab({**TIMES, (THREADS, NO_LOOP): 100}))
    assert other.startswith("The order was, from the fastest: aiohttp on uvloop, ")
    assert loops.why([]) == []
    assert loops.beside([])[1][2:] == ["-", "-"]


def test_a_checkers_counts_have_to_be_those_of_the_sites():
    expected = statuses(1_000)
    assert sum(expected.values()) == 1_000 and len(expected) == 3
    assert compared(expected, expected) == {"wrong_answers": 0, "errors": {"missing": 0}}
    other = {**expected, "200": expected["200"] - 3, "500": 1}
    assert compared(other, expected) == {"wrong_answers": 1, "errors": {"missing": 3}}


def test_sites_are_the_same_in_each_run_and_the_first_ones_whatever_their_number():
    assert sites(100) == sites(1_000)[:100]
    assert all(LEAST <= site.delay <= MOST for site in sites(1_000))
