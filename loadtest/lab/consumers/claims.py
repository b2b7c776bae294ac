"""What was said of consumers and of the broker, and whether the figures show it; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from loadtest.lab.consumers.bindings import Times
from loadtest.lab.consumers.broker_memory import Cost
from loadtest.lab.consumers.originals import ORIGINALS
from loadtest.lab.consumers.settings import (
    ACKS,
    C_LIBRARY,
    LOOP,
    NEAR,
    RATE,
    TASKS,
    THREADS,
    best,
    case,
    several,
    single,
)
from loadtest.summary import Row, Summary, summarize
from loadtest.targets import number, ratios


@dataclass(frozen=True)
class Claim:
    """A sentence that is confirmed where the median of `values` is above `bound`.

    `shown` says what the values are, and of which rows; there is one for each repeat.
    """

    text: str
    shown: str
    values: list[float]
    bound: float

    @property
    def verdict(self) -> str:
        return "confirmed" if median(self.values) > self.bound else "refuted"

    def line(self) -> list[str]:
        """Return the texts of the columns `HEAD`."""
        least, middle, greatest = map(
            number, (min(self.values), median(self.values), max(self.values))
        )
        figure = f"{middle} ({least}-{greatest})" if len(self.values) > 1 else middle
        return [self.text, self.verdict, figure, f"above {self.bound:.3g}", self.shown]


HEAD = ["what was said", "verdict", "figure", "confirmed if", "the figure is"]


def of_drivers(rows: Sequence[Row]) -> list[Claim]:
    """Judge what was said of drivers, as far as there are rows that show it."""
    threads, loop = (best(rows, name, single) for name in (THREADS, LOOP))
    one = best(rows, THREADS, lambda row: single(row) and row["connections"] == 1)
    more = best(rows, THREADS, lambda row: single(row) and row["connections"] > 1)
    c_library = best(rows, C_LIBRARY, single)
    return [
        *_compared(
            "Threads (py-amqp) beat asynchronous code (pika) at prefetch 1", rows, threads, loop
        ),
        *_compared(
            "Threads (py-amqp) beat asynchronous code (aio-pika) at prefetch 1",
            rows, threads, best(rows, TASKS, single),
        ),
        *_compared(
            "because the interpreter lock is released around I/O: several threads are faster than "
            "one",
            rows, more, one, bound=1 / NEAR,
        ),
        *_compared(
            "With prefetch and multiple acknowledgements pika beats threads",
            rows, best(rows, LOOP, several), best(rows, THREADS, several),
        ),
        *_explicit(rows),
        *_cheaper_acks(rows),
        *_compared(
            "A library written in C is more than twice as fast as py-amqp",
            rows, c_library, threads, bound=2,
        ),
    ]  # fmt: skip


def of_bindings(times: Times, rows: Sequence[Row]) -> list[Claim]:
    """Judge what was said of bindings; `rows` tell how fast messages are."""
    most = max(size for _, size in times)
    queue, exchange = times["queue", most], times["exchange", most]
    fastest = max((s.median(*RATE) for s in summarize(rows)), default=0.0)
    at = f"at {most:,} bindings"
    return [
        Claim(
            "Binding is expensive",
            f"messages that the fastest consumer takes while a queue is bound, {at}",
            [seconds * fastest for seconds in queue],
            10,
        ),
        Claim(
            "so subscribe by binding an exchange to an exchange: such a bind takes less time than "
            "one of a queue, and not only where it stands for several",
            f"time to bind a queue / an exchange, {at}",
            [a / b for a, b in zip(queue, exchange, strict=True)],
            1 / NEAR,
        ),
    ]


def of_memory(costs: Mapping[str, Cost]) -> list[Claim]:
    """Judge what was said of the broker's memory."""
    least = min(costs, key=lambda kind: costs[kind].each)
    return [
        Claim(
            "Queues, exchanges, connections and channels cost memory",
            f"KB of the smallest, which is the {least}",
            [costs[least].each],
            0.5,
        )
    ]


def _compared(
    text: str, rows: Sequence[Row], of: Summary | None, to: Summary | None, bound: float = 1.0
) -> list[Claim]:
    """Return the claim that one setting is faster than another; nothing where one is missing."""
    if of is None or to is None:
        return []
    sides = (of.strategy, of.case), (to.strategy, to.case)
    shown = "messages/s, " + " / ".join(", ".join(side) for side in sides)
    values = ratios(rows, RATE, *sides)
    return [Claim(text, shown, values, bound)] if values else []


def _explicit(rows: Sequence[Row]) -> list[Claim]:
    """Judge that pika keeps more of its rate over many connections, as it switches explicitly."""
    fastest = best(rows, LOOP, several)
    if fastest is None:
        return []
    prefetch = fastest.rows[0]["prefetch"]
    counts = [row["connections"] for row in rows if row["prefetch"] == prefetch]
    many, few = case(max(counts), prefetch), case(min(counts), prefetch)
    kept = [ratios(rows, RATE, (name, many), (name, few)) for name in (LOOP, THREADS)]
    values = [loop / threads for loop, threads in zip(*kept, strict=False)]
    shown = f"what pika keeps of its rate / what py-amqp keeps, {many} / {few}"
    text = "because switching between connections is explicit: more connections cost it less"
    return [Claim(text, shown, values, 1.0)] if values and many != few else []


def _cheaper_acks(rows: Sequence[Row]) -> list[Claim]:
    """Judge that multiple acknowledgements make basic_ack cheap."""
    claims = []
    for name in (LOOP, THREADS):
        settings = {
            (row["connections"], row["prefetch"])
            for row in rows
            if row["strategy"] == name and several(row)
        }
        then = {(o.connections, o.prefetch) for o in ORIGINALS if o.driver == name and o.ack_ms}
        for connections, prefetch in sorted(settings & then) or sorted(settings)[-1:]:
            sides = (name, case(connections, 1)), (name, case(connections, prefetch))
            if values := ratios(rows, ACKS, *sides):
                text = f"Multiple acknowledgements save {name} nine tenths of the time in basic_ack"
                shown = f"seconds in basic_ack, {' / '.join(where for _, where in sides)}"
                claims.append(Claim(text, shown, values, 10))
    return claims
