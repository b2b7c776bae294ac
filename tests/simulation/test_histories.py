"""The checker of claims' histories accepts what a claim may answer, and refuses anything else."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from gateway.claims.claim import CONFIRMED, DONE, LAPSED, MINE, PUBLISHING
from tests.simulation.histories import (
    CONFIRM,
    FAIL,
    FINISH,
    FREE,
    HELD,
    PROLONG,
    RELEASE,
    RENEW,
    STATE,
    TAKE,
    TAKE_OVER,
    Operation,
    unexplained,
    until_loss,
)

A, B = b"a" * 16, b"b" * 16
LEASE, KEPT, WINDOW = 4_000, 25_000, 120_000  # ms


def take(began: float, ended: float, owner: bytes, found: str = "", **told: Any) -> Operation:
    given = {
        "owner": owner, "task": owner, "digest": b"", "lease": LEASE, "life": WINDOW,
        "strict": 0, "rerun": told.pop("rerun", 1),
    }  # fmt: skip
    return Operation(TAKE, began, ended, given=given, found=found, **{"task": owner, **told})


def write(name: str, began: float, ended: float, task: bytes, **given: Any) -> Operation:
    lease = LEASE if name == RENEW else KEPT
    values = {
        "task": task, "owner": task, "digest": b"", "lease": lease, "life": WINDOW,
        "answer": b"it", "remembered": 20_000, "not_taken": 0, **given,
    }  # fmt: skip
    return Operation(name, began, ended, given=values)


def taken_over(began: float, ended: float, task: bytes, found: str) -> Operation:
    return replace(write(TAKE_OVER, began, ended, task), found=found)


def state(began: float, ended: float, task: bytes, found: str, **told: Any) -> Operation:
    known = {"task": b"" if found == FREE else task, **told}
    return Operation(STATE, began, ended, given={"task": task}, found=found, **known)


RIGHT = {
    "what is taken over lasts": [
        take(0, 1, A, MINE),
        write(CONFIRM, 1, 2, A),
        taken_over(20, 21, A, HELD),
        take(30, 31, B, CONFIRMED, task=A),
        write(FINISH, 31, 32, A),
        taken_over(33, 34, A, FREE),
    ],
    "one try": [
        take(0, 1, A, MINE),
        write(CONFIRM, 2, 3, A),
        state(3, 4, A, CONFIRMED),
        write(FINISH, 4, 5, A),
        take(6, 7, B, DONE, task=A, answer=b"it"),
    ],
    "of two at once, the one that is answered later may be the first": [
        take(0, 3, A, PUBLISHING, task=B),
        take(1, 2, B, MINE),
    ],
    "without an answer, it may have happened": [
        take(0, inf, A),
        take(1, 2, B, PUBLISHING, task=A),
    ],
    "or not": [take(0, inf, A), take(1, 2, B, MINE)],
    "or later": [take(0, inf, A), take(1, 2, B, MINE), write(RELEASE, 3, 4, B, not_taken=1),
                 take(5, 6, B, PUBLISHING, task=A)],
    "a lease lapses": [take(0, 1, A, MINE), take(4.5, 5.5, B, LAPSED, task=A)],
    "a lease that is renewed lasts longer": [
        take(0, 1, A, MINE),
        write(RENEW, 2, 3, A),
        take(5, 5.5, B, PUBLISHING, task=A),
    ],
    "it is told how long another's lease lasts": [
        take(0, 1, A, MINE),
        write(RENEW, 2, 3, A),
        take(4, 4.5, B, PUBLISHING, task=A, left=2.2),
    ],
    "what is uncertain lapses at once, and keeps its task": [
        take(0, 1, A, MINE),
        write(RELEASE, 1, 2, A),
        state(2, 3, A, PUBLISHING, lapsed=True),
        take(2, 3, B, LAPSED, task=A),
        write(RELEASE, 3, 4, B, not_taken=1),
        take(4, 5, B, LAPSED, task=A),
    ],
    "what was surely not published is free": [
        take(0, 1, A, MINE),
        write(RELEASE, 1, 2, A, not_taken=1),
        take(2, 3, B, MINE),
    ],
    "after a failure another task": [
        take(0, 1, A, MINE),
        write(FAIL, 1, 2, A),
        write(CONFIRM, 2, 3, A),
        state(3, 4, A, FREE, failed=True),
        take(4, 5, B, MINE),
    ],
    "a success after a failure is final": [
        take(0, 1, A, MINE),
        write(FAIL, 1, 2, A),
        write(FINISH, 2, 3, A),
        state(3, 4, A, DONE),
        take(4, 5, B, DONE, task=A, answer=b"it"),
    ],
    "a confirm restores what is lost": [write(CONFIRM, 0, 1, A), state(1, 2, A, CONFIRMED)],
    "a result expires": [
        take(0, 1, A, MINE),
        write(CONFIRM, 1, 2, A),
        take(26.5, 27, B, LAPSED, task=A),
    ],
    "which is none where it need not run again": [
        take(0, 1, A, MINE),
        write(CONFIRM, 1, 2, A),
        take(40, 41, B, CONFIRMED, task=A, rerun=0),
    ],
    "after the window a delivery is a new one": [
        take(0, 1, A, MINE),
        write(FINISH, 1, 2, A),
        take(122, 123, B, MINE),
    ],
}  # fmt: skip

WRONG = {
    "two own it": [take(0, 1, A, MINE), take(1, 2, B, MINE)],
    "an earlier answer is not seen": [
        take(0, 1, A, MINE),
        write(FINISH, 1, 2, A),
        take(2, 3, B, CONFIRMED, task=A),
    ],
    "another answer": [
        take(0, 1, A, MINE),
        write(FINISH, 1, 2, A),
        take(2, 3, B, DONE, task=A, answer=b"other"),
    ],
    "a lease lapses too early": [take(0, 1, A, MINE), take(2, 3, B, LAPSED, task=A)],
    "a lease does not lapse": [take(0, 1, A, MINE), take(6, 7, B, PUBLISHING, task=A)],
    "a renewal has no effect": [
        take(0, 1, A, MINE),
        write(RENEW, 2, 3, A),
        take(5.5, 5.9, B, LAPSED, task=A),
    ],
    "who does not own it renews it": [
        take(0, 1, A, MINE),
        take(5.5, 5.6, B, LAPSED, task=A),
        write(RENEW, 6, 7, A),
        take(8, 8.1, A, PUBLISHING, left=2.2),
    ],
    "what lapses gets another task": [take(0, 1, A, MINE), take(6, 7, B, LAPSED, task=B)],
    "what is uncertain gets another task": [
        take(0, 1, A, MINE),
        write(RELEASE, 1, 2, A),
        take(2, 3, B, MINE),
    ],
    "a failed task is restored": [
        take(0, 1, A, MINE),
        write(FAIL, 1, 2, A),
        write(CONFIRM, 2, 3, A),
        state(3, 4, A, CONFIRMED, failed=True),
    ],
    "a failure is not told": [
        take(0, 1, A, MINE),
        write(FAIL, 1, 2, A),
        state(2, 3, A, FREE),
    ],
    "who does not own it releases it": [
        take(0, 1, A, MINE),
        write(RELEASE, 1, 2, B, not_taken=1),
        take(2, 3, B, MINE),
    ],
    "what is prolonged expires": [
        take(0, 1, A, MINE),
        write(CONFIRM, 1, 2, A),
        write(PROLONG, 20, 21, A),
        take(30, 31, B, LAPSED, task=A),
    ],
    "what is taken over expires": [
        take(0, 1, A, MINE),
        write(CONFIRM, 1, 2, A),
        taken_over(20, 21, A, HELD),
        take(30, 31, B, LAPSED, task=A),
    ],
    "what has ended is taken over": [
        take(0, 1, A, MINE),
        write(FINISH, 1, 2, A),
        taken_over(3, 4, A, HELD),
    ],
    "it is forgotten before its time": [
        take(0, 1, A, MINE),
        write(FINISH, 1, 2, A),
        take(100, 101, B, MINE),
    ],
    "what was answered before the question": [
        take(0, 1, A, PUBLISHING, task=B),
        take(2, 3, B, MINE),
    ],
}  # fmt: skip


@pytest.mark.parametrize("history", RIGHT.values(), ids=RIGHT)
def test_what_a_claim_answers_is_explained(history):
    assert unexplained(history) is None


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_what_no_claim_answers_is_refused(history):
    assert unexplained(history) is not None


def test_the_operation_that_cannot_be_explained_is_named():
    history = WRONG["two own it"]
    assert unexplained(history) is history[1]


def test_a_clock_that_jumps_explains_a_lapse_and_no_second_owner():
    assert unexplained(WRONG["a lease lapses too early"], steady=False) is None
    assert unexplained(WRONG["what lapses gets another task"], steady=False) is not None


def test_a_history_ends_where_redis_loses_what_it_has_confirmed():
    history = [take(0, 1, A, MINE), write(CONFIRM, 1, 3, A), take(4, 5, B, MINE)]
    assert unexplained(history) is history[2]
    begun = until_loss(history, [2.0])
    assert [one.ended for one in begun] == [1, inf]
    assert unexplained(begun) is None


def test_a_claim_that_is_newer_than_the_loss_is_judged():
    history = WRONG["two own it"]
    assert until_loss(history, [-1.0]) == history


def test_the_search_does_not_grow_with_what_is_written_again_and_again():
    again = [write(name, 1 + n, inf, A) for n in range(20) for name in (CONFIRM, RELEASE)]
    never = take(200, 201, B, DONE, task=A)
    assert unexplained([take(0, 1, A, MINE), *again, never], steady=False) is never
