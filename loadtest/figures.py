"""Put the committed reports' figures into documents: ``python -m loadtest.figures``.

In docs/performance.md, docs/scaling.md and docs/reliability.md a block begins with ``<!-- NAME
targets -->``, ``<!-- NAME table -->``, ``<!-- NAME advice -->`` or ``<!-- NAME commit -->``, and
docs/reports/NAME.json is the report. All end with the same after a slash. In docs/simulation.md a
block ``<!-- simulation totals -->`` has the sums of all runs of the simulator. docs/scaling.md also
has the costs of a gateway process over its rate, and what `gateway capacity` prints with these
costs.

Each block names the commit that was measured, and says so where the measured code has changed
since: so a change of the code needs no new measurement, and misleads no reader.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from gateway.cli import main as gateway
from loadtest.costs import costs
from loadtest.machine import ROOT, measured_code
from loadtest.report import Report
from loadtest.summary import Summary, summarize

DOCUMENTS = [
    ROOT / "docs" / f"{name}.md" for name in ("performance", "scaling", "reliability", "simulation")
]
REPORTS = ROOT / "docs" / "reports"
PICTURE = ROOT / "docs" / "images" / "strategies.svg"
COSTS = ROOT / "gateway" / "cli" / "commands" / "costs.json"

#: The reports that have the costs of `gateway capacity`: a later one's replace an earlier one's.
COSTED = ("capacity", "slow", "strategies", "openloop", "waiting")

#: Experiments that measure none of this project's code, so that no change of it outdates them.
FOREIGN = ("pools", "transports")

#: Experiments whose plots documents show.
PLOTTED = ("growth", "soak")

PICTURE_TITLE = "Requests per second"

_measured_code = cache(measured_code)  # it reads all modules, and each figure of a report asks

_per_process = re.compile(r"<!-- costs per process -->\n.*?<!-- /costs per process -->", re.DOTALL)
_command = re.compile(r"(?<=```\n)\$ gateway (capacity .*)\n(?:(?!```).*\n)*")
_block = re.compile(
    r"<!-- ([\w-]+) (targets|table|commit|advice|totals) -->\n.*?<!-- /\1 \2 -->", re.DOTALL
)


def written() -> dict[Path, str]:
    """Return each file that has figures of the committed reports, and what it has to be."""
    return {
        COSTS: costs_text(),
        **{document: fill(document.read_text("utf-8")) for document in DOCUMENTS},
    }


def fill(document: str) -> str:
    """Return `document` with the figures of the committed reports in its blocks.

    What a command prints after ``$ gateway capacity`` follows from the costs, so from costs.json.
    """
    document = _block.sub(lambda found: _filled(found[1], found[2]), document)
    document = _per_process.sub(lambda _: _per_process_block(), document)
    return _command.sub(lambda found: _printed(found[1]), document)


def costs_text() -> str:
    """Return what costs.json has to be: the costs of the committed reports."""
    found = {}
    for name in COSTED:
        report = _report(name)
        for key, cost in costs(name, report["options"], report["rows"]).items():
            found[key] = json.dumps({"report": f"{name}.json", "points": cost.points})
    lines = ",\n".join(f'  "{key}": {found[key]}' for key in sorted(found))
    return f'{{\n "costs": {{\n{lines}\n }}\n}}\n'


def picture_text() -> str:
    """Return what strategies.svg has to be: the rates of the committed report."""
    # Imported when it is needed, as matplotlib takes a second to load.
    from loadtest import picture

    return picture.bars(_waiting(_report("strategies")), ("rps",), PICTURE_TITLE)


def picture_figures() -> list[str]:
    """Return the texts that the picture has to have: each rate, as it is written there."""
    return [f"{s.median('rps'):,.0f}" for s in _waiting(_report("strategies"))]


def picture_strategies() -> set[str]:
    """Return the strategies that the committed report has; a new one may not be measured yet."""
    return {s.strategy for s in _waiting(_report("strategies"))}


def _report(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((REPORTS / f"{name}.json").read_text("utf-8"))
    return document


def _waiting(report: Mapping[str, Any]) -> list[Summary]:
    """Return what was measured of routes that wait for the result of a task that takes no time."""
    return summarize(
        row
        for row in report["rows"]
        if row.get("answer", "wait") == "wait" and not row.get("task_seconds")
    )


def _per_process_block() -> str:
    strategies = ("pika", "redis")
    head = [
        "requests/s of one gateway process",
        *(f"`{name}`, {what}" for name in strategies for what in ("us a request", "of a core")),
    ]
    lines: dict[str, list[str]] = {}
    for each in summarize(_report("growth")["rows"]):
        rate = each.case.removesuffix("/s")
        if rate != each.case and each.strategy in strategies:
            us = each.median("cpu_us_per_request", "gateway")
            use = us * float(rate.replace(",", "")) / 1e6
            lines.setdefault(rate, [rate]).extend((f"{us:,.0f}", f"{100 * use:.0f} %"))
    table = markdown([head, *lines.values()], names=0)
    return f"<!-- costs per process -->\n{table}<!-- /costs per process -->"


def _printed(command: str) -> str:
    """Return the command line of `gateway`, and below it what that prints."""
    printed = StringIO()
    with redirect_stdout(printed):
        code = gateway(shlex.split(command))
    if code:
        raise RuntimeError(f"gateway {command}: exit code {code}")
    return f"$ gateway {command}\n{printed.getvalue()}"


def _filled(name: str, what: str) -> str:
    report = _report(name)
    if what == "totals":
        text = _totals(report)
    elif what == "commit":
        text = f"{_cited(report)}."
    elif what == "advice":
        text = textwrap.fill(f"**{report['advice']}**", 100) + f"\n\n{_source(report)}"
    else:
        text = markdown(report["shown"][what], names=2 if what == "table" else 1)
        text += f"\n{_source(report)}"
    return f"<!-- {name} {what} -->\n{text}\n<!-- /{name} {what} -->"


def _totals(report: dict[str, Any]) -> str:
    """Return the sums of all runs of the simulator, and the means of a seed."""
    runs = report["runs"]
    seeds, violations = (sum(run[key] for run in runs) for key in ("seeds", "violations"))
    strategies: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for run in runs:
        strategies.update(run["strategies"])
        faults.update(run["faults"])
    means = {
        name: sum(run["means"][name] * run["seeds"] for run in runs) / seeds
        for name in ("seconds", "gateways", "deliveries", "identified", "callbacks", "cpu")
    }
    kinds = sorted(faults.items(), key=lambda item: -item[1])
    found = [mutant for mutant in report["mutants"] if mutant["found"]]
    lines = [
        ("seeds", ", ".join(f"{name} {n:,}" for name, n in sorted(strategies.items()))),
        ("violations", f"{violations:,}"),
        ("virtual hours", f"{sum(run['virtual_hours'] for run in runs):,.0f}"),
        (
            "a seed",
            f"{means['seconds']:.0f} virtual seconds, {means['gateways']:.1f} gateways, "
            f"{means['deliveries']:.0f} deliveries, {means['identified']:.0f} of them with an "
            f"identity, {sum(faults.values()) / seeds:.1f} faults",
        ),
        ("callbacks a second of CPU", f"{means['callbacks'] / means['cpu']:,.0f}"),
        ("faults", ", ".join(f"{kind} {n:,}" for kind, n in kinds)),
        ("defects found", f"{len(report['defects'])}"),
        ("mutants found", f"{len(found)} of {len(report['mutants'])}"),
    ]
    table = markdown([("", "all runs"), *lines], names=2)
    return f"{table}\n{_cited({'experiment': report['experiment'], **_last(report)})}."


def _last(report: dict[str, Any]) -> dict[str, Any]:
    """Return the commit of a report, and the code that was measured: of its last run."""
    last = report["runs"][-1] if "runs" in report else report
    return {"commit": last["commit"], "versions": last.get("versions", {"code": last.get("code")})}


def commit_of(report: dict[str, Any]) -> str:
    """Return the commit of a report; the last one where it has several runs."""
    return str(_last(report)["commit"])


def markdown(lines: Sequence[Sequence[str]], names: int) -> str:
    head, *rest = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    rule = ["---" if i < names else "---:" for i in range(len(head))]
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rule, *rest))


def _source(report: dict[str, Any]) -> str:
    options, machine = report["options"], report["machine"]
    faults = len(report["problems"])
    repeats = options["repeats"]
    runs = f"{repeats} runs of each in turn" if repeats > 1 else "one run of each"
    others = f" {report['disturbance'].partition(',')[0]}." if report["disturbance"] else ""
    return (
        f"{_cited(report)}, {runs}, "
        f"{machine['cores']} cores, {machine['cpu']}, {_servers(report)}; "
        f"{f'{faults} problems' if faults else 'no answer wrong or missing'}.{others}"
    )


def _servers(report: dict[str, Any]) -> str:
    named = {"RabbitMQ": "RabbitMQ", "Redis": "Redis", "celery": "Celery", "python": "Python"}
    versions = report["versions"]
    return ", ".join(f"{name} {versions[key]}" for key, name in named.items() if versions.get(key))


def _cited(report: dict[str, Any]) -> str:
    """Name a report with its commit, and say whether a request runs through other code now."""
    text = f"[Report](reports/{report['experiment']}.json), commit `{report['commit'][:10]}`"
    same = report["experiment"] in FOREIGN or report["versions"].get("code") == _measured_code()
    return text if same else f"{text} (the measured code has changed since)"


def main() -> None:
    # Imported when it is needed, as matplotlib takes a second to load.
    from loadtest import render

    for name in PLOTTED:
        render.write(Report.read(_report(name)), None, PICTURE.parent)
    PICTURE.write_text(picture_text(), encoding="utf-8")
    COSTS.write_text(costs_text(), encoding="utf-8")  # before what is calculated with them
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
