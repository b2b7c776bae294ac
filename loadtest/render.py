"""Draw the pages of reports again, from their JSON files: ``python -m loadtest.render FILE...``.

Each FILE.json gets its FILE.html, beside it or in a directory, with ``--plots`` also an SVG file
for each plot. All figures stay as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest import page
from loadtest.report import Report


def read(file: Path) -> Report:
    """Read a report from its JSON file; raises OSError, KeyError, TypeError or ValueError."""
    return Report.read(json.loads(file.read_text("utf-8")))


def main(argv: Sequence[str] | None = None) -> int:
    """Draw all files that are named; returns the exit code, 1 where one cannot be read."""
    parser = argparse.ArgumentParser(prog="loadtest.render", description=__doc__.split("\n\n")[0])
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
            page.write(report, html, html.parent if options.plots else None)
            print(html)
            continue
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
