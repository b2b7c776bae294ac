"""What the original investigations claimed is judged by the rows of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.claims import CONFIRMED, REFUTED, UNMEASURED, Claim, judge, reasons, tables
from loadtest.summary import Row
from tests.support.rows import row

REPORTS = Path(__file__).parents[3] / "docs/reports"
C, R, U = CONFIRMED, REFUTED, UNMEASURED


def ratio(**more: Any) -> Claim:
    claim: dict[str, Any] = {
        "of": [{"strategy": "pika"}], "over": [{"strategy": "redis"}], "at_least": 2, **more,
    }  # fmt: skip
    return Claim("Twice as fast", "requests/s", "rps", **claim)


TWO = [row("pika", 300), row("pika", 500, repeat=2), row("redis", 200), row("redis", 100, repeat=2)]


def test_settings_are_compared_repeat_by_repeat():
    found = ratio().judge(TWO)
    assert found.values == [1.5, 5]
    assert found.line() == [
        "Twice as fast", CONFIRMED, "3.25 (1.50-5.00)", "at least 2",
        "requests/s: pika, 64 connections / redis, 64 connections",
    ]  # fmt: skip
    assert ratio(at_most=3).judge(TWO).verdict == REFUTED
    outside = ratio(at_least=4, at_most=5, outside=True).judge(TWO)
    assert (outside.verdict, outside.line()[3]) == (CONFIRMED, "below 4, or above 5")


def test_a_difference_and_a_product_are_values_too():
    minus = ratio(of=[{"strategy": "pika"}] * 2, over=[], minus=[{"strategy": "redis"}])
    found = minus.judge(TWO[::2])
    assert found.values == [300 * 300 - 200]
    assert found.shown.endswith(
        "pika, 64 connections x pika, 64 connections - redis, 64 connections"
    )


@pytest.mark.parametrize(
    ("side", "values"),
    [
        ({"strategy": "p.*|none"}, [300]),
        ({"strategy": "pik"}, []),
        ({"case": "64 .*"}, [300]),
        ({"connections": 1_000}, [100]),
        ({"connections": {"from": 65}}, [100]),
        ({"duration": {"from": 30}}, []),
        ({"least": "rps"}, [100]),
        ({"most": "rps"}, [300]),
        ({"most": "rps", "figure": "latency_ms.p50 + latency_ms.p99"}, [8]),
        # One that erred is not picked, unless errors are asked for.
        ({"most": "rps", "faulty": True}, [900]),
        ({"least": "nothing"}, []),
    ],
)
def test_a_setting_is_picked_by_what_its_rows_have(side: dict[str, Any], values: list[float]):
    rows = [row("pika", 300), row("redis", 900, errors=1), row("gevent", 100, connections=1_000)]
    assert ratio(of=[side], over=[]).judge(rows).values == values


def test_what_was_not_measured_is_not_judged():
    for rows in ([], TWO[:2], [TWO[0], TWO[3]], [row("pika", 3), row("redis", 0)]):
        found = ratio().judge(rows)
        assert (found.verdict, found.line()[2]) == (UNMEASURED, "-")


@pytest.mark.parametrize(
    ("experiment", "expected"),
    [
        ("strategies", [C, R]),
        ("pools", [R, C, R, C, R, R, R, C, C, C]),
        ("consumers", [R, C, R, C, C, C, C, C, U, U, U]),
        ("transports", [C, R, C, C]),
        ("loops", [C, R, C, C]),
    ],
)
def test_the_claims_are_judged_by_the_committed_reports(experiment: str, expected: list[str]):
    report = json.loads((REPORTS / f"{experiment}.json").read_text("utf-8"))
    rows: list[Row] = report["rows"]
    for each in rows:
        each.setdefault("duration", report["options"]["duration"])
    beats = "Heartbeats, and workers that a script starts"
    for worker, calls, again, closed, lost, after in report["tables"].get(beats, [])[1:]:
        name, case = worker.split(", ", 1)
        assert calls
        kept = int(after != "never" and (again, closed, lost) == ("0", "0", "0"))
        rows.append(row(name, 1, case=case, kept=kept, ended=int(after != "never")))
    judged = judge(experiment, rows)
    assert [each.verdict for each in judged] == expected
    assert {each.verdict for each in judge(experiment, [])} == {UNMEASURED}


def pool(name: str, size: int, seconds: float, memory: float) -> Row:
    return row(name, 1, case=str(size), total_seconds=seconds, most={"rss_mb": memory})


def test_the_originals_figures_are_beside_ours():
    found = tables("pools", [pool("prefork", 1, 19.5, 100)], {"total_seconds": 100})
    head, first, second, *_ = found["The original's figures beside ours"]
    assert head[:3] == ["setting", "total time, s, then", "now"]
    assert first == ["prefork, 1", "1,947", "1,950", "100", "100", "1", "-", "3", "-"]
    assert second[:3] == ["prefork, 2", "986", "-"]


def test_an_order_differs_where_both_differences_are_clear():
    rows = [pool("prefork", 2, 9.9, 50), pool("gevent", 2, 9.9, 75), pool("gevent", 4, 1, 1)]
    same, differs = reasons("pools", rows)
    assert same == "By total time, s, the order is the original's."
    assert differs.startswith("By memory, MB, the order differs: here prefork, 2 below gevent, 2, ")
    assert reasons("pools", rows[2:]) == []


def test_a_reason_is_given_for_a_verdict_that_has_one():
    name = "a script, not patched"
    (reason,) = reasons("pools", [row("gevent", 1, case=name, ended=0)])
    assert reason.startswith("A script has to make the pool's monkey patches")
    assert reasons("pools", [row("gevent", 1, case=name, ended=1)]) == []
