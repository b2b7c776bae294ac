"""Draw a report as one HTML page that needs nothing else: text, bars, plots, tables.

``python -m loadtest.render FILE...`` draws reports again, from their JSON files. Each FILE.json
gets its FILE.html, beside it or in a directory, with ``--plots`` also an SVG file for each plot.
All figures stay as they are.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
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


def read(file: Path) -> Report:
    """Read a report from its JSON file; raises OSError, KeyError, TypeError or ValueError."""
    return Report.read(json.loads(file.read_text("utf-8")))


def main(argv: Sequence[str] | None = None) -> int:
    """Draw all files that are named; returns the exit code, 1 where one cannot be read."""
    parser = argparse.ArgumentParser(prog="loadtest.render", description=__doc__.split("\n\n")[1])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.json")
    parser.add_argument("--plots", action="store_true", help="write each plot to an SVG file, too")
    parser.add_argument("--to", type=Path, metavar="DIRECTORY", help="write there, not beside FILE")
    options = parser.parse_args(argv)
    if options.to:
        options.to.mkdir(parents=True, exist_ok=True)
    failed = False
    for file in options.files:
        try:
            report = read(file)
        except OSError as exc:
            print(f"{file}: {exc.strerror}", file=sys.stderr)
        except (KeyError, TypeError, ValueError) as exc:
            print(f"{file}: not a report of loadtest/run.sh ({exc!r})", file=sys.stderr)
        else:
            html = (options.to or file.parent) / file.with_suffix(".html").name
            write(report, html, html.parent if options.plots else None)
            print(html)
            continue
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
