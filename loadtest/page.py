"""Draw a report as one HTML page that needs nothing else: text, bars, plots, tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtest import picture
from loadtest.report import Report
from loadtest.summary import Summary

_pages = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write(report: Report, file: Path | None, plots: Path | None) -> None:
    """Write the page to `file`, and the report's plots to SVG files in the directory `plots`."""
    if file:
        file.write_text(draw(report), encoding="utf-8")
    if plots:
        for plot in report.plots:
            name = f"{report.experiment}-{plot.name}.svg"
            (plots / name).write_text(picture.lines(plot), encoding="utf-8")


def draw(report: Report) -> str:
    """Return the page."""
    summaries = report.summaries()
    pictures = [
        *((plot.title, "", picture.lines(plot)) for plot in report.plots),
        *(
            (title, _better(better, path, summaries), picture.bars(summaries, path, title))
            for title, better, path in report.charts
            if any(s.values(*path) for s in summaries)
        ),
    ]
    page = _pages.get_template("page.html").render(
        report=report,
        pictures=pictures,
        checked=sum(check["requests"] for check in report.checks),
    )
    return re.sub(r'(<svg [^>]*) xmlns="[^"]*"', r"\1", page)  # HTML knows it


def _better(better: str, path: Sequence[str], summaries: Sequence[Summary]) -> str:
    scale = ", logarithmic scale" if picture.logarithmic(summaries, path) else ""
    return f"({better}{scale})"
