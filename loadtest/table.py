"""Lay out rows as lines of text: what the terminal shows and the page draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.summary import Row, Summary, figure, summarize

#: The kinds of processes a row counts CPU and memory of.
PROCESSES = ("gateway", "worker", "broker", "redis", "nginx")


@dataclass(frozen=True)
class Column:
    """A figure in the table: its median, with the spread or without, or the sum of all repeats."""

    head: str
    path: tuple[str, ...]
    spread: bool = False
    total: bool = False

    def text(self, summary: Summary) -> str:
        values = summary.values(*self.path)
        if not values:
            return "-"
        if self.total:
            return f"{summary.total(*self.path):,}"
        text = _figure(summary.median(*self.path))
        return (
            f"{text} ({'-'.join(map(_figure, (min(values), max(values))))})"
            if self.spread
            else text
        )


REQUESTS = Column("req/s", ("rps",), spread=True)
LATENCIES = [
    Column("p50 ms", ("latency_ms", "p50")),
    Column("p99 ms", ("latency_ms", "p99")),
    Column("p99.9 ms", ("latency_ms", "p999")),
    Column("max ms", ("latency_ms", "max")),
]
FAULTS = [
    Column("others %", ("cores", "others_percent")),
    Column("errors", ("errors",), total=True),
    Column("wrong", ("wrong_answers",), total=True),
]


def standard(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of an experiment that has none of its own."""
    return [
        REQUESTS,
        *LATENCIES,
        *cpu(rows),
        Column("gateway MB", ("rss_mb", "gateway")),
        Column("AMQP", ("connections_open", "broker")),
        Column("Redis", ("connections_open", "redis")),
        *FAULTS,
    ]


def cpu(rows: Sequence[Row]) -> list[Column]:
    """Return a column for each kind of process that took part."""
    took_part = [n for n in PROCESSES if any(figure(row, ("rss_mb", n)) for row in rows)]
    return [Column(f"{name} us", ("cpu_us_per_request", name)) for name in took_part]


def lines(rows: Sequence[Row], columns: Sequence[Column]) -> list[list[str]]:
    """Return the head and a line for each case and strategy."""
    summaries = summarize(rows)
    return [
        ["strategy", "case", *(column.head for column in columns)],
        *([s.strategy, s.case, *(column.text(s) for column in columns)] for s in summaries),
    ]


def align(lines: Sequence[Sequence[str]], left: int = 2) -> str:
    """Return `lines` as text in columns, of which the first `left` are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"
