"""Put the committed reports' figures into docs/performance.md: ``python -m loadtest.figures``.

A block begins with ``<!-- NAME targets -->`` or ``<!-- NAME table -->``; docs/reports/NAME.json
is the report. It ends with the same after a slash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from loadtest.machine import ROOT

DOCUMENT = ROOT / "docs" / "performance.md"
REPORTS = ROOT / "docs" / "reports"

_block = re.compile(r"<!-- (\w+) (targets|table) -->\n.*?<!-- /\1 \2 -->", re.DOTALL)


def fill(document: str) -> str:
    """Return `document` with the figures of the committed reports in its blocks."""
    return _block.sub(lambda found: _filled(found[1], found[2]), document)


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
    DOCUMENT.write_text(fill(DOCUMENT.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
