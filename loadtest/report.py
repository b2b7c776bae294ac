"""What a load test found: as a table for the terminal, and as JSON. `page` draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any

from rich.console import Console

from loadtest import table, targets
from loadtest.plot import Plot
from loadtest.summary import Row, Summary, case_of, summarize
from loadtest.table import Column
from loadtest.targets import Target

_CHECK_KINDS = ("wrong_answers", "not_2xx", "missing")
_WIDE = 1_000  # characters, of which a table takes what it needs

#: Title, what is better, and where a row has the figure.
CHARTS = [
    ("Requests per second", "longer is better", ("rps",)),
    ("Gateway CPU per request, µs", "shorter is better", ("cpu_us_per_request", "gateway")),
    ("Median latency, ms", "shorter is better", ("latency_ms", "p50")),
    ("99th percentile of latency, ms", "shorter is better", ("latency_ms", "p99")),
]


@dataclass
class Report:
    """Fills while an experiment runs.

    `rows` are the measurements, one per strategy, case and repeat; `checks` the comparisons one
    to one; `failures` say what could not be measured; `remarks` what a reader has to know.
    """

    experiment: str
    versions: dict[str, str | None] = field(default_factory=dict)
    commit: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    conclusion: str = ""
    #: How it is shown; not in the JSON file.
    columns: list[Column] = field(default_factory=list)
    charts: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=lambda: list(CHARTS))
    plots: list[Plot] = field(default_factory=list)

    def summaries(self) -> list[Summary]:
        return summarize(self.rows)

    def problems(self) -> list[str]:
        """List all that was wrong, missing or not 2xx; empty after a clean experiment."""
        found = list(self.failures)
        for check in self.checks:
            if bad := counted(check, _CHECK_KINDS):
                found.append(f"{_name(check)}, one to one: {bad} of {check['requests']:,}")
        for row in self.rows:
            kinds = {**row["errors_by_kind"], "wrong_answers": row["wrong_answers"]}
            if bad := counted(kinds, list(kinds)):
                found.append(f"{_name(row)}, {case_of(row)}: {bad}")
            if not row["requests"]:
                found.append(f"{_name(row)}, {case_of(row)}: no answer at all")
        return found

    def judge(self, *found: Target) -> None:
        """Add the figures that were measured, and say which of their bounds are kept."""
        self.targets += [target for target in found if target.values]
        self.conclusion = " ".join(
            f"{word.capitalize()}: {', '.join(f'{t.name} {t.line()[1]}' for t in those)}."
            for word in ("reached", "missed")
            if (those := [t for t in self.targets if t.verdict == word])
        )

    def document(self) -> dict[str, Any]:
        """Return what goes into the JSON file."""
        hidden = ("columns", "charts", "plots")
        shown = {name: value for name, value in vars(self).items() if name not in hidden}
        return {
            **shown,
            "targets": [target.document() for target in self.targets],
            "problems": self.problems(),
            "shown": {"targets": self.target_lines(), "table": self.lines()},
        }

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
            "and system CPU time per request, by process (gateway: whatever answers HTTP). MB: "
            "resident memory. AMQP, Redis: open connections, the worker's included. others: what "
            "all cores spent on anything but the load test and its servers."
        )

    def lines(self) -> list[list[str]]:
        """Return the table's head and lines."""
        return table.lines(self.rows, self.columns or table.standard(self.rows))

    def target_lines(self) -> list[list[str]]:
        return [targets.HEAD, *(target.line() for target in self.targets)]

    def show(self) -> None:
        """Print the medians of the repeats as tables, and what they say."""
        tables = [table.draw(self.lines())]
        if self.targets:
            tables.append(table.draw(self.target_lines(), names=1))
        # Where a terminal is narrower, it breaks the lines; rich would leave out figures.
        console = Console(width=_WIDE, highlight=False, markup=False, emoji=False)
        for each in tables:
            console.print("", each, sep="\n")
        for text in filter(None, (*self.remarks, self.notes(), self.shared(), self.conclusion)):
            console.print("", fill(text, 100), sep="\n")


def counted(counts: dict[str, Any], kinds: Sequence[str] = _CHECK_KINDS) -> str:
    """Say how many there are of each of `kinds`; empty where there are none."""
    return ", ".join(f"{counts[kind]:,} {kind.replace('_', ' ')}" for kind in kinds if counts[kind])


def _name(row: dict[str, Any]) -> str:
    return f"{row['strategy']}, repeat {row['repeat']}"
