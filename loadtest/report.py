"""What a load test found: as a table for the terminal, and as JSON. `page` draws it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from textwrap import fill
from typing import Any, Self, Unpack

from rich.console import Console

from loadtest import table, targets
from loadtest.costs import costs
from loadtest.plot import Plot
from loadtest.summary import Row, Summary, case_of, figure, summarize
from loadtest.table import Column
from loadtest.targets import Bounds, Pair, Target

#: Per cent of all cores that other programs may have, in the median of all measurements.
MOST_OTHERS = 5.0

_CHECK_KINDS = ("wrong_answers", "not_2xx", "missing")
_WIDE = 1_000  # characters, of which a table takes what it needs

_numbers = re.compile(r"(?<=\[)\n[-+.\deE,\s]*(?=\])")

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
    #: What a reader should do, in a sentence: the first one of the page, the last in the terminal.
    advice: str = ""
    #: Title -> head and lines of a further table, as what others have measured beside this run.
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    #: Per cent of all cores that other programs may have before nothing is concluded.
    most_others: float = MOST_OTHERS
    #: How it is shown.
    heads: tuple[str, str] = ("strategy", "case")
    columns: list[Column] = field(default_factory=list)
    charts: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=lambda: list(CHARTS))
    plots: list[Plot] = field(default_factory=list)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the report whose `document` this is; raises KeyError, TypeError, ValueError."""
        shown = document["shown"]
        report = cls(
            **{name: value for name, value in document.items() if name in _PLAIN},
            targets=[Target.read(each) for each in document["targets"]],
            heads=(shown["heads"][0], shown["heads"][1]),
            columns=[Column(**{**each, "path": tuple(each["path"])}) for each in shown["columns"]],
            charts=[(title, better, tuple(path)) for title, better, path in shown["charts"]],
            plots=[Plot(**each) for each in shown["plots"]],
        )
        report.conclude()
        return report

    @property
    def repeats(self) -> int:
        """How often each measurement was made."""
        repeats: int = self.options.get("repeats", 1)
        return repeats

    @property
    def judged(self) -> bool:
        """Is there a figure of which something is asked?"""
        return any(target.reached is not None for target in self.targets)

    def summaries(self) -> list[Summary]:
        return summarize(self.rows)

    def disturbance(self) -> str:
        """Say how other programs made the run worthless; empty where they did not."""
        path = ("cores", "others_percent")
        shares = [share for row in self.rows if (share := figure(row, path)) is not None]
        if not shares or median(shares) <= self.most_others:
            return ""
        return (
            f"Other programs had {median(shares):.1f} % of all cores, in the median of "
            f"{len(shares)} measurements; {self.most_others:g} % are allowed. Nothing follows from "
            "times and CPU times of such a run: stop the others, and measure again."
        )

    def conclude(self) -> None:
        """Withdraw what would follow from the figures, if other programs have disturbed them."""
        if self.disturbance():
            self.conclusion = self.advice = ""

    def problems(self) -> list[str]:
        """List all that was wrong, missing or not 2xx; empty after a clean experiment."""
        found = list(self.failures)
        if not self.rows and not found:
            found.append(f"{self.experiment} has nothing to measure with these options")
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
            f"{word.capitalize()}: {', '.join(f'{t.name} {t.said}' for t in those)}."
            for word in ("reached", "missed")
            if (those := [t for t in self.targets if t.verdict == word])
        )

    def compare(
        self, name: str, path: Sequence[str], of: Pair, to: Pair, **bounds: Unpack[Bounds]
    ) -> None:
        """Judge a figure `of` one strategy and case over that of another, round by round."""
        self.judge(Target(name, targets.ratios(self.rows, path, of, to), **bounds))

    def document(self) -> dict[str, Any]:
        """Return what goes into the JSON file."""
        found = costs(self.experiment, self.options, self.rows)
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "costs": {name: {"points": cost.points} for name, cost in found.items()},
            "targets": [target.document() for target in self.targets],
            "problems": self.problems(),
            "disturbance": self.disturbance(),
            "shown": {
                "heads": self.heads,
                "columns": [asdict(column) for column in self.columns],
                "charts": self.charts,
                "plots": [asdict(plot) for plot in self.plots],
                "targets": self.target_lines(),
                "table": self.lines(),
            },
        }

    def runs(self) -> str:
        """Say how often everything was measured."""
        return f"{self.repeats} runs of each, in turn" if self.repeats > 1 else "One run of each"

    def shared(self) -> str:
        """Say what absolute numbers depend on."""
        return (
            f"All processes, the load generator included, share the {self.machine['cores']} cores "
            "of this machine: compare within this run, not with other machines."
        )

    def notes(self) -> str:
        """Explain the table's columns."""
        medians = (
            f"Medians of {self.repeats} runs; errors and wrong answers are sums."
            if self.repeats > 1
            else "Each figure is of one run."
        )
        return (
            f"{medians} us: user "
            "and system CPU time per request, by process (gateway: whatever answers HTTP). MB: "
            "resident memory. AMQP, Redis: open connections, the worker's included. others: what "
            "all cores spent on anything but the load test and its servers."
        )

    def lines(self) -> list[list[str]]:
        """Return the table's head and lines."""
        return table.lines(self.rows, self.columns or table.standard(self.rows), self.heads)

    def target_lines(self) -> list[list[str]]:
        return targets.lines(self.targets)

    def show(self) -> None:
        """Print the medians of the repeats as tables, and what they say."""
        tables = [table.draw(self.lines())] if self.rows else []
        if self.targets:
            tables.append(table.draw(self.target_lines(), names=1))
        # Where a terminal is narrower, it breaks the lines; rich would leave out figures.
        console = Console(width=_WIDE, highlight=False, markup=False, emoji=False)
        for each in tables:
            console.print("", each, sep="\n")
        for title, lines in self.tables.items():
            console.print("", title, table.draw(lines, names=1), sep="\n")
        explained = (*self.remarks, self.notes(), self.shared()) if self.rows else ()
        for text in filter(None, (*explained, self.conclusion, self.advice)):
            console.print("", fill(text, 100), sep="\n")


#: What is in the JSON file as it is.
_PLAIN = (
    "experiment", "versions", "commit", "machine", "options", "rows", "checks", "failures",
    "remarks", "conclusion", "advice", "tables", "most_others",
)  # fmt: skip


def dump(document: Mapping[str, Any]) -> str:
    """Return the text of the JSON file, in which a list of numbers is one line."""
    text = json.dumps(document, indent=1)
    return _numbers.sub(lambda found: " ".join(found[0].split()), text) + "\n"


def counted(counts: dict[str, Any], kinds: Sequence[str] = _CHECK_KINDS) -> str:
    """Say how many there are of each of `kinds`; empty where there are none."""
    return ", ".join(f"{counts[kind]:,} {kind.replace('_', ' ')}" for kind in kinds if counts[kind])


def _name(row: dict[str, Any]) -> str:
    return f"{row['strategy']}, repeat {row['repeat']}"
