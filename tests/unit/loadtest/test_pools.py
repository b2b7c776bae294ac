"""The verdicts on worker pools, and the work that pools are compared by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loadtest.lab.claims import CONFIRMED, REFUTED, UNMEASURED, Claim
from loadtest.lab.pools import claims, original, starts
from loadtest.lab.pools.chords import Outcome, Work, split
from loadtest.lab.pools.sleeping_server import sleep_of
from loadtest.lab.pools.starts import HEARTBEAT, Found
from loadtest.lab.pools.worker import COMMAND, PATCHED, UNPATCHED, Start
from loadtest.summary import Row


def row(pool: str, size: int, seconds: float, memory: float, **more: Any) -> Row:
    return {
        "strategy": pool,
        "case": str(size),
        "repeat": 1,
        "requests": 12,
        "errors": 0,
        "wrong_answers": 0,
        "total_seconds": seconds,
        "most": {"rss_mb": memory, "cpu_percent": 17.0},
        "shared_once_mb": memory,
        "begun_within_seconds": 0.02,
        "connections_open": {"redis": 4, "broker": 3},
        **more,
    }


#: As the original's, a hundredth of the time.
AS_SAID = [
    row("prefork", 1, 19.5, 100),
    row("prefork", 32, 2.06, 550),
    row("gevent", 2, 9.9, 75),
    row("gevent", 16, 2.3, 76),
    row("gevent", 32, 2.06, 77),
    row("eventlet", 32, 2.06, 85),
]


def said(rows: list[Row], part: str, found: tuple[Found, ...] = ()) -> Claim:
    (claim,) = (claim for claim in claims.claims(rows, found) if part in claim.text)
    return claim


@pytest.mark.parametrize("part", ["89 %", "every concurrency", "the best", "17.5 %"])
def test_figures_as_the_originals_confirm_what_was_said(part: str):
    assert said(AS_SAID, part).verdict == CONFIRMED


def test_less_time_saved_refutes_how_much_it_was():
    claim = said([*AS_SAID[1:], row("prefork", 1, 10.0, 100)], "89 %")
    assert claim.verdict == REFUTED
    assert claim.shown == "2.06 s instead of 10.00 s: 79 % less"


def test_memory_that_grows_with_concurrency_refutes_that_it_is_steady():
    claim = said([*AS_SAID, row("gevent", 64, 2.06, 90)], "every concurrency")
    assert claim.verdict == REFUTED
    assert claim.shown == "75 to 90 MB, at 2 to 64"


def test_eventlets_peak_is_that_of_the_setting_that_used_the_most():
    busy = row("eventlet", 16, 2.06, 85, most={"rss_mb": 85, "cpu_percent": 25.0})
    claim = said([*AS_SAID, busy], "17.5 %")
    assert (claim.verdict, claim.shown) == (REFUTED, "eventlet at 16: 25.0 %")


@pytest.mark.parametrize(("calls", "other"), [("only wait", "block"), ("block", "only wait")])
def test_heartbeats_are_judged_apart_where_calls_wait_and_where_they_block(calls: str, other: str):
    on, off = beats(on=replace(KEPT, missed=1, twice=2), off=KEPT)
    blocks = starts.LONG if calls == "block" else 0.0
    found = tuple(replace(run, start=replace(run.start, blocks=blocks)) for run in (on, off))
    claim = said([], f"With gevent, broker_heartbeat has to be 0, or {MISSED}: where calls {calls}",
                 found)  # fmt: skip
    assert claim.verdict == CONFIRMED
    assert claim.shown == "2 s: 3 of 3 calls in 8.1 s, 2 again, 1 missed; 0: 3 of 3 calls in 8.1 s"
    assert said([], f"With gevent, broker_heartbeat has to be 0, or {MISSED}: where calls {other}",
                found).verdict == UNMEASURED  # fmt: skip


@pytest.mark.parametrize("better", [row("threads", 32, 1.7, 77), row("threads", 32, 2.06, 60)])
def test_a_faster_or_smaller_setting_refutes_the_best(better: Row):
    claim = said([*AS_SAID, better], "the best")
    assert claim.verdict == REFUTED
    assert "threads at 32" in claim.shown


def test_a_setting_that_erred_refutes_nothing():
    failed = row("threads", 32, 1.0, 30, errors=1)
    assert said([*AS_SAID, failed], "the best").verdict == CONFIRMED


def test_what_did_not_run_is_not_judged():
    assert {claim.verdict for claim in claims.claims([AS_SAID[0]], ())} == {UNMEASURED}
    assert {claim.verdict for claim in claims.claims([], ())} == {UNMEASURED}


def beats(on: Found, off: Found) -> tuple[Found, ...]:
    start = Start("gevent", 8, COMMAND, acks_late=True)
    return (
        replace(on, start=replace(start, heartbeat=HEARTBEAT)),
        replace(off, start=replace(start, heartbeat=0)),
    )


MISSED = "heartbeats are missed and tasks run again"
KEPT = Found(Start("gevent", 8), calls=3, done=3, seconds=8.1)


@pytest.mark.parametrize(
    "bad", [replace(KEPT, missed=1), replace(KEPT, twice=2), replace(KEPT, seconds=0, done=1)]
)
def test_a_heartbeat_has_to_be_0_only_where_that_helps(bad: Found):
    text = f"With gevent, broker_heartbeat has to be 0, or {MISSED}: where calls only wait"
    assert said([], text, beats(on=bad, off=KEPT)).verdict == CONFIRMED
    assert said([], text, beats(on=KEPT, off=KEPT)).verdict == REFUTED
    assert said([], text, beats(on=bad, off=bad)).verdict == REFUTED
    not_started = replace(KEPT, done=0, seconds=0.0, problem="not ready")
    assert said([], text, beats(on=not_started, off=KEPT)).verdict == UNMEASURED


def test_a_worker_hangs_if_a_script_starts_it_and_not_all_tasks_end():
    unpatched, patched = (
        replace(KEPT, start=Start("gevent", 8, by)) for by in (UNPATCHED, PATCHED)
    )
    hung = replace(unpatched, done=1, seconds=0.0)

    claim = said([], "A worker with gevent", (hung, patched))

    assert claim.verdict == CONFIRMED
    assert "not patched: 1 of 3 calls, then no more; " in claim.shown
    assert said([], "A worker with gevent", (unpatched, patched)).verdict == REFUTED
    not_started = replace(hung, problem="not ready")
    assert said([], "A worker with gevent", (not_started, patched)).verdict == UNMEASURED


def test_reasons_are_given_only_for_what_was_seen():
    beat = replace(KEPT, start=Start("gevent", 8, COMMAND, HEARTBEAT, acks_late=True))
    unpatched, patched = (
        replace(KEPT, start=Start("gevent", 8, by)) for by in (UNPATCHED, PATCHED)
    )
    hung = replace(unpatched, done=0, seconds=0.0)

    blocked = replace(beat, start=replace(beat.start, blocks=8.0), missed=1, twice=3)

    timer, blocks, patches = claims.reasons((beat, blocked, hung, patched))

    assert "by a timer" in timer and "monkey patches" in patches
    assert blocks.endswith("1 connections were closed for missed heartbeats, 3 calls begun again.")
    silent = replace(blocked, start=replace(blocked.start, heartbeat=0), missed=0, twice=0)
    (told,) = claims.reasons((blocked, silent))
    assert told.endswith("3 calls begun again; not so with a heartbeat of 0.")
    assert claims.reasons((replace(beat, missed=1), unpatched, patched)) == []
    assert claims.reasons((hung, replace(patched, twice=1))) == []
    assert claims.reasons(()) == []


def test_advice_is_the_smallest_of_the_fastest_and_the_simplest_of_those():
    rows = [*AS_SAID, row("threads", 32, 2.1, 78), row("threads", 16, 2.1, 79)]
    assert "with -P threads " in claims.advice(rows)
    assert (
        "with -c 16, 12 tasks took 2.1 s in 79 MB of memory, shared pages counted once; "
        in claims.advice(rows)
    )
    assert "prefork at 1 took 19.5 s, prefork at 32 took 550 MB." in claims.advice(rows)
    assert "with -P gevent " in claims.advice(AS_SAID)


def test_nothing_is_recommended_where_every_setting_erred():
    assert "recommends none" in claims.advice([row("gevent", 2, 1.0, 50, errors=1)])
    assert "recommends none" in claims.advice([])


def test_the_original_stands_beside_ours_at_its_scale():
    head, *lines = original.beside([*AS_SAID, row("threads", 4, 5.9, 60)], seconds=2.0)
    assert head[:3] == ["setting", "original, s", "ours x 100, s"]
    assert lines[0] == ["prefork at 1", "1,947", "1,950", "100", "100", "1", "4", "3", "3"]
    assert lines[-1] == ["threads at 4", "-", "590", "-", "60", "-", "4", "-", "3"]


def test_an_order_differs_where_both_differences_are_clear():
    a, b, c = ("prefork", 2), ("eventlet", 2), ("gevent", 2)
    assert original.swapped({a: 100, b: 200, c: 300}, {a: 10, b: 20, c: 30}) == []
    assert original.swapped({a: 100, b: 200, c: 300}, {a: 25, b: 20, c: 21}) == [
        (b, a),
        (c, a),
    ]
    assert original.swapped({a: 100, b: 101}, {a: 2, b: 1}) == []
    assert original.swapped({a: 100, ("gevent", 4): 200}, {a: 2, ("gevent", 4): 1}) == []
    assert original.swapped({a: 100, b: 200}, {a: 1.01, b: 1.0}) == []


def test_differences_name_the_pairs_and_say_why():
    text = original.differences([row("prefork", 2, 9.9, 50), row("gevent", 2, 9.9, 75)])
    assert "By total time, the pools are in the original's order." in text
    assert "By memory, the order differs: here prefork at 2 before gevent at 2, as Celery" in text


def test_pools_that_were_equally_fast_and_differ_here_are_named():
    fast, slow = row("prefork", 32, 2.0, 550), row("gevent", 32, 3.0, 77)
    text = original.differences([fast, slow])
    assert "order. But gevent at 32 takes 1.50 times as long as prefork at 32, where" in text
    assert "began" not in text
    late = row("gevent", 32, 3.0, 77, begun_within_seconds=0.92)
    assert "both took the same time then. Its calls began within 0.92 s, as " in (
        original.differences([fast, late])
    )
    assert "But" not in original.differences([fast, row("gevent", 32, 2.2, 77)])
    assert "But" not in original.differences(
        [row("prefork", 32, 2.0, 550), row("gevent", 16, 3.0, 77)]
    )


def test_a_run_that_has_to_be_in_order_fails_the_experiment_where_it_is_not():
    on, off = beats(on=replace(KEPT, missed=1, twice=2), off=KEPT)
    script = Found(Start("gevent", 8, UNPATCHED), calls=3)
    assert claims.broken((on, off, script)) == []
    assert claims.broken((replace(off, done=2, seconds=0.0),)) == [
        "gevent, the command, heartbeat 0 s: 2 of 3 calls, then no more"
    ]
    assert claims.broken((replace(on, problem="not ready"),)) == [
        "gevent, the command, heartbeat 2 s: not ready"
    ]
    assert claims.broken((replace(script, problem="not ready"),)) == []


def test_memory_far_above_the_originals_is_named():
    large = row("prefork", 32, 2.06, 1815, shared_once_mb=963)
    text = original.larger([*AS_SAID[2:], large])
    assert text.startswith("The memory of prefork at 32 is 3.3 times the original's.")
    assert text.endswith("all together have 963 MB.")
    assert original.larger(AS_SAID) == original.larger([]) == ""


def test_one_pool_has_no_order():
    assert "cannot be compared" in original.differences([row("gevent", 2, 9.9, 75)])
    assert "cannot be compared" in original.differences([])


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
    summaries = [
        {"ids": [0, 1], "start": 10.0, "end": 14.0},
        {"ids": [2], "start": 12.0, "end": 15.0},
    ]
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
