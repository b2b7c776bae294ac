"""Put the committed reports' figures into documents: ``python -m loadtest.figures``.

README.md has a block for the strategies. In docs/performance.md a block begins with
``<!-- NAME targets -->`` or ``<!-- NAME table -->``, and docs/reports/NAME.json is the report. All
end with the same after a slash.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from loadtest.machine import ROOT
from loadtest.summary import Summary, summarize

README = ROOT / "README.md"
DOCUMENT = ROOT / "docs" / "performance.md"
REPORTS = ROOT / "docs" / "reports"

_strategies = re.compile(r"<!-- strategies -->\n.*?<!-- /strategies -->", re.DOTALL)
_block = re.compile(r"<!-- (\w+) (targets|table) -->\n.*?<!-- /\1 \2 -->", re.DOTALL)


def fill(document: str) -> str:
    """Return `document` with the figures of the committed reports in its blocks."""
    return _block.sub(lambda found: _filled(found[1], found[2]), document)


def fill_readme(document: str) -> str:
    """Return `document` with the comparison of the strategies in its block."""
    report = json.loads((REPORTS / "strategies.json").read_text("utf-8"))
    options, cores = report["options"], report["machine"]["cores"]
    rows = sorted(summarize(report["rows"]), key=lambda s: (s.connections, -s.median("rps")))
    head = (
        "strategy",
        "connections",
        "req/s",
        "p50 ms",
        "p99 ms",
        "gateway µs",
        "worker µs",
        "errors",
    )
    text = textwrap.fill(
        "Echo task, 250-byte body, one gateway process, one `solo` worker, wrk with "
        f"{options['threads']} threads; medians of {options['repeats']} runs of "
        f"{options['duration']} s, alternating; commit `{report['commit'][:10]}`. µs: CPU time per "
        f"request. Everything, the load generator included, shares the {cores} cores of one "
        "machine: compare the rows, not the numbers with others'.",
        100,
    )
    table = _markdown([head, *map(_row, rows)], names=1)
    block = f"<!-- strategies -->\n{table}\n{text}\n<!-- /strategies -->"
    return _strategies.sub(lambda _: block, document)


def _row(summary: Summary) -> list[str]:
    figures = [
        ("rps",),
        ("latency_ms", "p50"),
        ("latency_ms", "p99"),
        ("cpu_us_per_request", "gateway"),
        ("cpu_us_per_request", "worker"),
    ]
    faults = summary.total("errors") + summary.total("wrong_answers")
    return [
        f"`{summary.strategy}`",
        f"{summary.connections:,}",
        *(f"{summary.median(*figure):,.0f}" for figure in figures),
        f"{faults:,}",
    ]


def _filled(name: str, what: str) -> str:
    report = json.loads((REPORTS / f"{name}.json").read_text("utf-8"))
    text = _markdown(report["shown"][what], names=2 if what == "table" else 1)
    return f"<!-- {name} {what} -->\n{text}\n{_source(name, report)}\n<!-- /{name} {what} -->"


def _markdown(lines: Sequence[Sequence[str]], names: int) -> str:
    head, *rest = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    rule = ["---" if i < names else "---:" for i in range(len(head))]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rest))


def _source(name: str, report: dict[str, Any]) -> str:
    options, machine = report["options"], report["machine"]
    faults = len(report["problems"])
    repeats = options["repeats"]
    runs = f"{repeats} runs of each in turn" if repeats > 1 else "one run of each"
    return (
        f"[Report](reports/{name}.json), commit `{report['commit'][:10]}`, {runs}, "
        f"{machine['cores']} cores, {machine['cpu']}; "
        f"{f'{faults} problems' if faults else 'no answer wrong or missing'}."
    )


def main() -> None:
    README.write_text(fill_readme(README.read_text("utf-8")), encoding="utf-8")
    DOCUMENT.write_text(fill(DOCUMENT.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
