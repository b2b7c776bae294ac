"""What was said of the first gateway is judged by the rows of `strategies`."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.lab.first_gateway import judge
from loadtest.summary import Row, summarize
from tests.support.rows import row


def accepting(strategy: str, rps: float) -> Row:
    return row(strategy, rps, case="accept, 64 connections", answer="accept")


def crowd(**more: Any) -> Row:
    return row(
        "threadpool", 300, connections=1_000, case="1,000 connections",
        latency_ms={"p50": 2_000.0, "p99": 4_000.0, "max": 4_700.0}, **more,
    )  # fmt: skip


@pytest.mark.parametrize(("accept", "verdict"), [(600, "confirmed"), (440, "refuted")])
def test_publishing_alone_is_compared_with_waiting_in_the_pool_of_threads(
    accept: float, verdict: str
):
    rows = [
        row("threadpool", 300), accepting("threadpool", accept),
        row("pika", 2_000), accepting("pika", 1_800),
        # Tasks that take time are not what is accepted.
        row("threadpool", 20, case="50 ms, 64 connections", task_seconds=0.05),
    ]  # fmt: skip
    publishing, _ = judge(summarize(rows), 10)
    assert publishing.text.endswith("(245 requests/s instead of 165), or more, with threadpool")
    assert publishing.verdict == verdict
    assert publishing.shown == f"threadpool {accept / 300:.1f} times, pika 0.9 times"


def test_the_pool_of_threads_hangs_only_where_an_answer_is_missing():
    _, hanging = judge(summarize([crowd(), crowd(repeat=2)]), 30)
    assert hanging.verdict == "refuted"
    assert hanging.shown == "2 runs of 30 s: 2,000 answers, 0 missing, the slowest after 4.7 s"
    missing = crowd(errors=3, errors_by_kind={"missing": 3})
    assert judge(summarize([missing]), 30)[1].verdict == "confirmed"
    assert judge(summarize([crowd(errors=3)]), 30)[1].verdict == "refuted"  # 503s, say


def test_what_answered_nothing_is_compared_with_nothing():
    rows = [row("threadpool", 0, errors=9, requests=0), accepting("threadpool", 600)]
    publishing, _ = judge(summarize(rows), 10)
    assert publishing.verdict == "not measured"


def test_what_was_not_measured_is_not_judged():
    rows = [row("threadpool", 300), row("pika", 2_000), accepting("pika", 1_800), crowd()]
    assert {claim.verdict for claim in judge(summarize(rows), 10)} == {"not measured"}
    assert {claim.verdict for claim in judge([], 30)} == {"not measured"}
