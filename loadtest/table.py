"""Lay out rows as lines of text, which the terminal and the page show as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

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
            if self.spread and len(values) > 1
            else text
        )


REQUESTS = Column("req/s", ("rps",), spread=True)
LATENCIES = [
    Column("p50 ms", ("latency_ms", "p50")),
    Column("p99 ms", ("latency_ms", "p99")),
    Column("p99.9 ms", ("latency_ms", "p999")),
    Column("max ms", ("latency_ms", "max")),
]
#: What makes the other figures worthless if it is not 0: in a table these two are first.
_FAILED = [
    Column("errors", ("errors",), total=True),
    Column("wrong", ("wrong_answers",), total=True),
]
FAULTS = [Column("others %", ("cores", "others_percent")), *_FAILED]


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


def lines(rows: Sequence[Row], columns: Sequence[Column], heads: Sequence[str]) -> list[list[str]]:
    """Return the head and a line for each case and strategy, which the head calls `heads`."""
    summaries = summarize(rows)
    columns = sorted(columns, key=lambda column: column not in _FAILED)
    return [
        [*heads, *(column.head for column in columns)],
        *([s.strategy, s.case, *(column.text(s) for column in columns)] for s in summaries),
    ]


def draw(lines: Sequence[Sequence[str]], names: int = 2) -> Table:
    """Return `lines` as a table, of which the first `names` columns are aligned to the left."""
    head, *rest = lines
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for n, name in enumerate(head):
        table.add_column(name, justify="left" if n < names else "right")
    for line in rest:
        table.add_row(*line)
    return table


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"
