"""What was said of the first gateway, and whether the rows of `strategies` show it; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from loadtest.lab.claims import Claim
from loadtest.summary import Summary

#: What was said of the first gateway, which waited in a pool of threads: requests a second without
#: and with the result, and where it hung: wrk -t4 -c1000 -d30.
PUBLISHED, POOL = (245, 165), "threadpool"
HUNG_CONNECTIONS, HUNG_SECONDS = 1_000, 30


def judge(summaries: Sequence[Summary], duration: int) -> list[Claim]:
    """Decide what was said of the first gateway, by the strategy that waits as it did."""
    return [_publishing(summaries), _hanging(summaries, duration)]


def _publishing(summaries: Sequence[Summary]) -> Claim:
    without, with_ = PUBLISHED
    text = (
        f"Publishing without fetching the result is {without / with_:.1f} times as fast "
        f"({without} requests/s instead of {with_}), or more"
    )
    gains = accepting_gains(summaries)
    if POOL not in gains:
        return Claim(text)
    shown = ", ".join(f"{name} {gain:.1f} times" for name, gain in gains.items())
    return Claim(f"{text}, with {POOL}", gains[POOL] >= without / with_, shown)


def _hanging(summaries: Sequence[Summary], duration: int) -> Claim:
    text = f"{POOL} hangs with {HUNG_CONNECTIONS:,} connections for {HUNG_SECONDS} s"
    for s in summaries:
        if s.strategy == POOL and s.connections == HUNG_CONNECTIONS and duration >= HUNG_SECONDS:
            kinds = [row["errors_by_kind"] for row in s.rows]
            missing = sum(each.get("missing", 0) + each.get("timeout", 0) for each in kinds)
            shown = (
                f"{len(s.rows)} runs of {duration} s: {s.total('requests'):,} answers, {missing:,} "
                f"missing, the slowest after {s.range('latency_ms', 'max')[1] / 1e3:.1f} s"
            )
            return Claim(text, missing > 0, shown)
    return Claim(text)


def accepting_gains(summaries: Sequence[Summary]) -> dict[str, float]:
    """Return how many times as many requests a second each strategy takes where it accepts, the
    greatest first."""
    gains = {}
    for taken, waiting in permutations((s for s in summaries if s.clean), 2):
        if (
            _answer(taken) == "accept"
            and _answer(waiting) == "wait"
            # The route that accepts runs a task that takes no time.
            and not waiting.rows[0].get("task_seconds")
            and (taken.strategy, taken.connections) == (waiting.strategy, waiting.connections)
        ):
            gains[taken.strategy] = taken.median("rps") / waiting.median("rps")
    return dict(sorted(gains.items(), key=lambda gain: -gain[1]))


def _answer(summary: Summary) -> str:
    return str(summary.rows[0].get("answer", "wait"))
