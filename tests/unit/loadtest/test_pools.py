"""The verdicts on worker pools, and the work that pools are compared by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadtest.lab import advice
from loadtest.lab.pools import starts
from loadtest.lab.pools.chords import Outcome, Work, split
from loadtest.lab.pools.sleeping_server import sleep_of
from loadtest.lab.pools.starts import HEARTBEAT, Found
from loadtest.lab.pools.worker import COMMAND, UNPATCHED, Start
from loadtest.summary import Row
from tests.support import rows


def row(pool: str, size: int, seconds: float, memory: float, **more: Any) -> Row:
    figures = {
        "case": str(size), "requests": 12, "total_seconds": seconds, "shared_once_mb": memory,
        "most": {"rss_mb": memory, "cpu_percent": 17.0}, "begun_within_seconds": 0.02,
        "connections_open": {"redis": 4, "broker": 3}, **more,
    }  # fmt: skip
    return rows.row(pool, 1, **figures)


#: As the original's, a hundredth of the time.
AS_SAID = [
    row("prefork", 1, 19.5, 100), row("prefork", 32, 2.06, 550), row("gevent", 2, 9.9, 75),
    row("gevent", 16, 2.3, 76), row("gevent", 32, 2.06, 77), row("eventlet", 32, 2.06, 85),
]  # fmt: skip


def beats(on: Found, off: Found) -> tuple[Found, ...]:
    start = Start("gevent", 8, COMMAND, acks_late=True)
    return (
        replace(on, start=replace(start, heartbeat=HEARTBEAT)),
        replace(off, start=replace(start, heartbeat=0)),
    )


KEPT = Found(Start("gevent", 8), calls=3, done=3, seconds=8.1)


def test_advice_is_the_smallest_of_the_fastest_and_the_simplest_of_those():
    rows = [*AS_SAID, row("threads", 32, 2.1, 78), row("threads", 16, 2.1, 79)]
    for said in (
        "with -P threads ", "prefork at 1 took 19.5 s, prefork at 32 took 550 MB.",
        "with -c 16, 12 tasks took 2.1 s in 79 MB of memory, shared pages counted once; ",
    ):  # fmt: skip
        assert said in advice.pool(rows)
    assert "with -P gevent " in advice.pool(AS_SAID)


def test_nothing_is_recommended_where_every_setting_erred():
    assert "recommends none" in advice.pool([row("gevent", 2, 1.0, 50, errors=1)])
    assert "recommends none" in advice.pool([])


def test_a_run_that_has_to_be_in_order_fails_the_experiment_where_it_is_not():
    on, off = beats(on=replace(KEPT, missed=1, twice=2), off=KEPT)
    script = Found(Start("gevent", 8, UNPATCHED), calls=3)
    assert starts.broken((on, off, script)) == []
    assert starts.broken((replace(off, done=2, seconds=0.0),)) == [
        "gevent, the command, heartbeat 0 s: 2 of 3 calls, then no more"
    ]
    assert starts.broken((replace(on, problem="not ready"),)) == [
        "gevent, the command, heartbeat 2 s: not ready"
    ]
    assert starts.broken((replace(script, problem="not ready"),)) == []


def test_every_call_sleeps_as_long_in_every_setting():
    work = Work("any", (7, 3), 2.0)
    assert work.sleeps == [sleep_of(number, 2.0) for number in range(10)]
    assert all(1.8 <= sleep <= 2.1 for sleep in work.sleeps)
    assert len(set(work.sleeps)) == 10
    assert work.least(1) == pytest.approx(sum(work.sleeps))
    assert work.least(32) == max(work.sleeps)
    assert work.least(2) == pytest.approx(sum(work.sleeps) / 2, rel=0.1)


@pytest.mark.parametrize(("calls", "chords"), [(10, [7, 3]), (2, [1, 1]), (1, [1]), (3, [2, 1])])
def test_calls_are_split_into_two_chords(calls: int, chords: list[int]):
    assert split(calls) == chords


def clean() -> Outcome:
    work = Work("any", (2, 1), 2.0)
    records = [{"id": number, "sleep": sleep} for number, sleep in enumerate(work.sleeps)]
    first, second = {"start": 10.0, "end": 14.0}, {"start": 12.0, "end": 15.0}
    summaries = [{"ids": [0, 1], **first}, {"ids": [2], **second}]
    return Outcome(work, records, summaries, 0, {"0": 1, "1": 1, "2": 1})


def test_total_time_is_from_the_first_start_to_the_last_end():
    end = clean()
    assert end.seconds == 5.0
    assert end.errors == {"failed": 0, "missing": 0, "ran_twice": 0}
    assert end.wrong == 0


def test_calls_that_can_run_at_once_begin_within_the_first_and_the_last_of_them():
    records = [{"id": n, "start": start} for n, start in enumerate((10.2, 10.0, 12.0))]
    end = replace(clean(), records=records)
    assert end.begun_within(2) == pytest.approx(0.2)
    assert end.begun_within(32) == pytest.approx(2.0)
    assert replace(end, records=[]).begun_within(2) == 0


def test_what_is_lost_begun_again_failed_or_wrong_is_counted():
    end = clean()
    first, second, _ = end.records
    lost = replace(end, records=[first, second], summaries=end.summaries[:1])
    assert lost.errors == {"failed": 0, "missing": 2, "ran_twice": 0}
    assert replace(lost, failed=1).errors == {"failed": 1, "missing": 1, "ran_twice": 0}
    again = replace(end, asked={"0": 3, "1": 1, "2": 2}, records=[first, *end.records])
    assert again.errors == {"failed": 0, "missing": 0, "ran_twice": 3}
    assert replace(end, records=[first, {**second, "sleep": 1.0}]).wrong == 1
    assert replace(end, summaries=[{**end.summaries[0], "ids": [0, 0]}]).wrong == 1


LOG = """\
2026-01-01 10:00:00 [info] <0.1.0> connection <0.1.0> (127.0.0.1:4 -> 127.0.0.1:5 - beat-0): user
2026-01-01 10:00:08 [error] <0.1.0> closing AMQP connection <0.1.0> (127.0.0.1:4 -> 127.0.0.1:5 - \
beat-0):
2026-01-01 10:00:08 [error] <0.1.0> missed heartbeats from client, timeout: 2s
2026-01-01 10:00:09 [warning] <0.2.0> closing AMQP connection <0.2.0> (127.0.0.1:6 -> \
127.0.0.1:5 - script-1, vhost: '/', user: 'guest'):
2026-01-01 10:00:09 [warning] <0.2.0> client unexpectedly closed TCP connection
2026-01-01 10:00:09 [error] <0.3.0> closing AMQP connection <0.3.0> (127.0.0.1:7 -> \
127.0.0.1:5 - beat-2, vhost: '/', user: 'guest', duration: '9s'):
2026-01-01 10:00:09 [error] <0.3.0> missed heartbeats from client, timeout: 2s
"""


def test_connections_without_heartbeats_are_found_by_their_names():
    assert starts.missed(LOG) == ["beat-0", "beat-2"]
