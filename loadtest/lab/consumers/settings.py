"""The settings of a consumer, and the best of them in the rows of a run; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadtest.summary import Row, Summary, summarize

THREADS, LOOP, TASKS, C_LIBRARY, SCANNER = "py-amqp", "pika", "aio-pika", "librabbitmq", "frames"
#: A rate within this share of another one is as good.
NEAR = 0.9

#: Where a row has its messages/s, its consumer's CPU time for a message, and the time in basic_ack.
RATE, CPU, ACKS = ("rps",), ("cpu_us_per_request", "worker"), ("ack_ms",)


def case(connections: int, prefetch: int) -> str:
    """Name a setting."""
    return f"{counted(connections)}, prefetch {prefetch}"


def counted(connections: int) -> str:
    return f"{connections} connection{'s' * (connections != 1)}"


def rate(summary: Summary) -> float:
    """Return the median of messages/s."""
    return summary.median(*RATE)


def single(row: Row) -> bool:
    """Is each message acknowledged by itself?"""
    return bool(row["prefetch"] == 1)


def several(row: Row) -> bool:
    """Are several messages acknowledged at once?"""
    return not single(row)


def best(rows: Sequence[Row], driver: str, wanted: Callable[[Row], bool]) -> Summary | None:
    """Return the fastest of a driver's settings that are wanted."""
    found = [s for s in summarize(rows) if s.strategy == driver and wanted(s.rows[0])]
    return max(found, key=rate, default=None)
