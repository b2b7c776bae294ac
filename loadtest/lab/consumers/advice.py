"""What to consume with, by the rows of a run; no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.lab.consumers.settings import C_LIBRARY, CPU, NEAR, SCANNER, counted, rate, single
from loadtest.summary import Row, summarize
from loadtest.targets import number

#: A part of the gateway, and a library that is not maintained any more.
_NOT_ADVISED = (SCANNER, C_LIBRARY)


def advise(rows: Sequence[Row]) -> str:
    """Say what to consume with, and how: the cheapest setting that is near the best one."""
    libraries = [s for s in summarize(rows) if s.strategy not in _NOT_ADVISED]
    if not libraries:
        return ""
    best = max(libraries, key=rate)
    same = [s for s in libraries if s.strategy == best.strategy]
    near = [s for s in same if rate(s) >= NEAR * rate(best)]
    chosen = min(near, key=lambda s: (s.rows[0]["prefetch"], s.connections))
    prefetch, connections = chosen.rows[0]["prefetch"], chosen.connections
    over = f"over {counted(connections)}"
    cost = f"{rate(chosen):,.0f} messages/s at {chosen.median(*CPU):,.0f} us of CPU each"
    if prefetch == 1:
        text = f"Consume with {best.strategy} {over} and acknowledge each message: {cost}"
        if any(not single(s.rows[0]) for s in same):
            text += f"; no larger prefetch was more than {1 / NEAR - 1:.0%} faster"
        return f"{text}."
    text = (
        f"Consume with {best.strategy} {over}, with a prefetch of {prefetch} and one multiple "
        f"acknowledgement for every {prefetch} messages: {cost}"
    )
    if alone := [rate(s) for s in same if single(s.rows[0])]:
        text += f", {number(rate(chosen) / max(alone))} times the best with prefetch 1"
    return f"{text}."
