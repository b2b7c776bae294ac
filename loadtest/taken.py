"""Load a route that accepts: each delivery that got a 202 has to run, and once."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic, sleep

from loadtest import wrk
from loadtest.bench import Bench, Front
from loadtest.driver import ran
from loadtest.envelope import ACCEPTED
from loadtest.load import AROUND, Load, take
from loadtest.summary import Row

_EVERY = 0.5  # seconds between two looks at the worker


def accepted(
    bench: Bench, connections: int, duration: int, threads: int, path: str, case: str
) -> Load:
    """Have wrk keep `connections` busy, then wait until the worker has run what was taken.

    In a row, `drained` are the seconds that this took. What was taken and has not run counts as
    missing; more runs than requests count as wrong answers. wrk leaves up to a request for each
    connection behind, of which it does not know whether it was taken.
    """

    def measure(front: Front) -> Row:
        url = front.at(path).url
        timeout = bench.deadline + 5
        before = ran(bench)
        row = take(
            bench,
            replace(front, envelope=ACCEPTED),
            connections,
            lambda: wrk.run(url, connections, threads, duration, timeout, ACCEPTED),
        )
        taken, begin = row["requests"] - row["errors_by_kind"]["status"], monotonic()
        # As long as it took to take them, and as long again.
        end = begin + 2 * duration + timeout
        done, last = ran(bench) - before, -1
        # Until no more run, too: one that runs twice may do so last.
        while (done < taken or done != last) and monotonic() < end:
            sleep(_EVERY)
            done, last = ran(bench) - before, done
        row["drained"] = round(monotonic() - begin, 1)
        missing = max(0, taken - done)
        row["errors_by_kind"]["missing"] += missing
        row["errors"] += missing
        row["wrong_answers"] += max(0, done - taken - connections)
        return {**row, "answer": "accept"}

    return Load(case, 2 * duration + AROUND, measure)
