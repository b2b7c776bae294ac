"""A line for each seed and strategy, a table of all with their sums."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.combined.oracle import Result
from tests.faults.report import markdown

COLUMNS = (
    "sent",
    "tries",
    "acknowledged",
    "executed",
    "lost",
    "duplicated",
    "second_ids",
    "different_answers",
    "late",
    "errors_500",
    "recovery",
)


def seed_and_strategy(result: Result) -> tuple[int, str]:
    return result.seed, result.strategy


def line(result: Result) -> str:
    """Tell in a line what a lane has shown; below it what broke, and what was done to it."""
    figures = "  ".join(f"{_title(name)} {getattr(result, name):g}" for name in COLUMNS)
    statuses = " ".join(f"{status}:{count}" for status, count in result.statuses.items())
    verdict = "holds " if result.holds else "BROKEN"
    text = f"seed {result.seed:3} {verdict} {result.strategy:10} {figures}  ({statuses})"
    if result.holds:
        return text
    faults = result.injected or result.schedule
    return "\n".join([text, *(f"    {each}" for each in (*result.problems, *faults))])


def table(results: Sequence[Result]) -> str:
    """Return all results as a table in Markdown, with their sums and the slowest recovery."""
    rows = [
        (f"{one.seed}", f"`{one.strategy}`", *_figures(one), "" if one.holds else "broken")
        for one in results
    ]
    sums = {name: sum(getattr(one, name) for one in results) for name in COLUMNS}
    sums["recovery"] = max((one.recovery for one in results), default=0.0)
    total = Result(0, "", 0.0, **sums)
    broken = sum(not one.holds for one in results)
    last = ("all", "", *_figures(total), f"{broken} of {len(results)} broken")
    return markdown(("seed", "strategy", *map(_title, COLUMNS), ""), [*rows, last])


def _figures(result: Result) -> list[str]:
    return [f"{getattr(result, name):,g}" for name in COLUMNS]


def _title(name: str) -> str:
    return {"errors_500": "500s"}.get(name, name.replace("_", " "))
