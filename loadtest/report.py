"""What a load test found: as a table for the terminal, as JSON, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any

from loadtest.bench import PROCESSES
from loadtest.summary import Summary, summarize

_CHECK_KINDS = ("wrong_answers", "not_2xx", "missing")


@dataclass
class Report:
    """Fills while an experiment runs.

    `rows` are the timed runs, one per strategy, number of connections and repeat; `checks` the
    comparisons one to one; `failures` say what could not be measured.
    """

    experiment: str
    versions: dict[str, str | None] = field(default_factory=dict)
    commit: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    conclusion: str = ""

    def summaries(self) -> list[Summary]:
        return summarize(self.rows)

    def problems(self) -> list[str]:
        """List all that was wrong, missing or not 2xx; empty after a clean experiment."""
        found = list(self.failures)
        for check in self.checks:
            if bad := _counted(check, _CHECK_KINDS):
                found.append(f"{_name(check)}, one to one: {bad} of {check['requests']:,}")
        for row in self.rows:
            kinds = {**row["errors_by_kind"], "wrong_answers": row["wrong_answers"]}
            if bad := _counted(kinds, kinds):
                found.append(f"{_name(row)}, {row['connections']} connections: {bad}")
            if not row["requests"]:
                found.append(f"{_name(row)}, {row['connections']} connections: no answer at all")
        return found

    def document(self) -> dict[str, Any]:
        """Return what goes into the JSON file."""
        return {**vars(self), "problems": self.problems()}

    def shared(self) -> str:
        """Say what absolute numbers depend on."""
        return (
            f"All processes, the load generator included, share the {self.machine['cores']} cores "
            "of this machine: compare within this run, not with other machines."
        )

    def notes(self) -> str:
        """Explain the table's columns."""
        return (
            f"Medians of {self.options['repeats']}; errors and wrong answers are sums. us: user "
            "and system CPU time per request, by process. MB: resident memory. AMQP, Redis: open "
            "connections, the worker's included."
        )

    def table(self) -> str:
        """Return the medians of the repeats as aligned text, and what they say."""
        lines = [line_names(self.rows), *(table_line(s, self.rows) for s in self.summaries())]
        texts = (self.notes(), self.shared(), self.conclusion)
        return "\n\n".join([_align(lines), *(fill(text, 100) for text in texts)])


def _processes(rows: list[dict[str, Any]]) -> list[str]:
    """List the kinds of processes that took part."""
    return [name for name in PROCESSES if any(row["rss_mb"][name] for row in rows)]


def line_names(rows: list[dict[str, Any]]) -> list[str]:
    """Return the heads of the columns that `table_line` fills."""
    head = ["strategy", "conns", "req/s", "(min-max)", "p50 ms", "p99 ms", "p99.9 ms", "max ms"]
    head += [f"{name} us" for name in _processes(rows)]
    return [*head, "gateway MB", "AMQP", "Redis", "errors", "wrong"]


def table_line(summary: Summary, rows: list[dict[str, Any]]) -> list[str]:
    """Return the texts of one line of the table."""
    low, high = summary.range("rps")
    return [
        summary.strategy,
        f"{summary.connections:,}",
        f"{summary.median('rps'):,.0f}",
        f"({low:,.0f}-{high:,.0f})",
        *(_figure(summary.median("latency_ms", name)) for name in ("p50", "p99", "p999", "max")),
        *(_figure(summary.median("cpu_us_per_request", name)) for name in _processes(rows)),
        f"{summary.median('rss_mb', 'gateway'):,.0f}",
        *(f"{summary.median('connections_open', name):,.0f}" for name in ("broker", "redis")),
        f"{summary.total('errors'):,}",
        f"{summary.total('wrong_answers'):,}",
    ]


def _figure(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _align(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _name(row: dict[str, Any]) -> str:
    return f"{row['strategy']}, repeat {row['repeat']}"


def _counted(counts: dict[str, Any], kinds: Sequence[str]) -> str:
    return ", ".join(f"{counts[kind]:,} {kind.replace('_', ' ')}" for kind in kinds if counts[kind])
