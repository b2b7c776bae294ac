"""What a load test found: as a table for the terminal, as JSON, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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

    def table(self) -> str:
        """Return the medians of the repeats as aligned text."""
        names = [n for n in PROCESSES if any(row["rss_mb"][n] for row in self.rows)]
        head = ["strategy", "conns", "req/s", "(min-max)", "p50 ms", "p99 ms", "p99.9 ms", "max ms"]
        head += [f"{name} us" for name in names]
        head += ["gateway MB", "AMQP", "Redis", "errors", "wrong"]
        lines = [[_cell(value) for value in _line(s, names)] for s in self.summaries()]
        text = _align([head, *lines])
        return (
            f"{text}\n\nMedians of {self.options.get('repeats', 1)}. us: user and system CPU per "
            "request, by process. MB: resident memory. AMQP, Redis: open connections, the "
            f"worker's included.\n{self.shared()}"
        )


def _line(summary: Summary, processes: Sequence[str]) -> list[str | float]:
    low, high = summary.range("rps")
    return [
        summary.strategy,
        summary.connections,
        summary.median("rps"),
        f"({low:,.0f}-{high:,.0f})",
        *(summary.median("latency_ms", name) for name in ("p50", "p99", "p999", "max")),
        *(summary.median("cpu_us_per_request", name) for name in processes),
        summary.median("rss_mb", "gateway"),
        *(summary.median("connections_open", name) for name in ("broker", "redis")),
        summary.total("errors"),
        summary.total("wrong_answers"),
    ]


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.1f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"


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
