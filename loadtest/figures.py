"""Put the committed reports' figures into documents: ``python -m loadtest.figures``.

README.md has a block for the strategies, and one for what else stands between HTTP and Celery. In
docs/performance.md a block begins with ``<!-- NAME targets -->`` or ``<!-- NAME table -->``, and
docs/reports/NAME.json is the report. All end with the same after a slash.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from gateway.cli.sizing import costs
from loadtest.machine import ROOT
from loadtest.summary import Summary, summarize
from loadtest.table import PROCESSES

README = ROOT / "README.md"
DOCUMENT = ROOT / "docs" / "performance.md"
REPORTS = ROOT / "docs" / "reports"
COSTS = ROOT / "gateway" / "cli" / "sizing" / "costs.json"

#: The reports that have the costs of `gateway capacity`: a later one's replace an earlier one's.
COSTED = ("slow", "strategies", "openloop", "soak", "waiting")

#: The rows of the block of peers, and what they are.
PEERS = {
    "pika": "this gateway, `--strategy=pika`",
    "redis": "this gateway, `--strategy=redis`",
    "flower": "Flower, `/api/task/apply`",
    "fastapi": "FastAPI, `apply_async` and `get()` in its thread pool",
}
_LATENCIES = (("latency_ms", "p50"), ("latency_ms", "p99"))

_strategies = re.compile(r"<!-- strategies -->\n.*?<!-- /strategies -->", re.DOTALL)
_peers = re.compile(r"<!-- peers -->\n.*?<!-- /peers -->", re.DOTALL)
_block = re.compile(r"<!-- (\w+) (targets|table) -->\n.*?<!-- /\1 \2 -->", re.DOTALL)


def fill(document: str) -> str:
    """Return `document` with the figures of the committed reports in its blocks."""
    return _block.sub(lambda found: _filled(found[1], found[2]), document)


def fill_readme(document: str) -> str:
    """Return `document` with the comparisons of strategies and of peers in their blocks."""
    strategies, peers = _strategies_block(), _peers_block()
    document = _strategies.sub(lambda _: strategies, document)
    return _peers.sub(lambda _: peers, document)


def costs_text() -> str:
    """Return what costs.json has to be: the costs of the committed reports."""
    found: dict[str, costs.Cost] = {}
    for name in COSTED:
        report = json.loads((REPORTS / f"{name}.json").read_text("utf-8"))
        found.update(costs.read(report, f"{name}.json", found))
    return costs.dump(found)


def _peers_block() -> str:
    report = json.loads((REPORTS / "peers.json").read_text("utf-8"))
    fewest = min(row["connections"] for row in report["rows"])
    rows = sorted(
        (s for s in summarize(report["rows"]) if s.connections == fewest and s.strategy in PEERS),
        key=lambda s: -s.median("rps"),
    )
    head = ("", "req/s", "p50 ms", "p99 ms", "CPU µs a request, all processes")
    lines = [
        [
            PEERS[row.strategy],
            *(f"{row.median(*f):,.0f}" for f in (("rps",), *_LATENCIES)),
            f"{sum(row.median('cpu_us_per_request', name) for name in PROCESSES):,.0f}",
        ]
        for row in rows
    ]
    text = textwrap.fill(
        f"{fewest} connections, the same echo task, worker, RabbitMQ and Redis; medians of "
        f"{report['options']['repeats']} runs in turn on {report['machine']['cores']} cores that "
        "carry everything, wrk too. Only the gateway's messages are confirmed. "
        f"[Report](docs/reports/peers.json), commit `{report['commit'][:10]}`.",
        100,
    )
    return f"<!-- peers -->\n{_markdown([head, *lines], names=1)}\n{text}\n<!-- /peers -->"


def _strategies_block() -> str:
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
    return f"<!-- strategies -->\n{table}\n{text}\n<!-- /strategies -->"


def _row(summary: Summary) -> list[str]:
    figures = [
        ("rps",),
        *_LATENCIES,
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
    COSTS.write_text(costs_text(), encoding="utf-8")
    DOCUMENT.write_text(fill(DOCUMENT.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
