"""Compare the coverage that `make coverage` has measured with what tests/uncovered.toml allows.

Each file of the packages may have as many statements and branches that no test takes as are written
there, and a file that is not there may have none. Exit codes: 0 no file has more; 1 some have.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tomllib
from pathlib import Path

ALLOWED = Path(__file__).with_name("uncovered.toml")
HEAD = """\
# How many statements and branches of each file no test takes, or only some runs do, as they depend
# on timing. `make coverage` fails where a file has more: write a test, or say in the
# commit why the number has to grow. `python -m tests.coverage_floor --raise` writes the numbers.
"""

log = logging.getLogger("coverage")


def measured() -> dict[str, int]:
    """Return how many statements and branches of each file were not taken in the last run."""
    argv = [sys.executable, "-m", "coverage", "json", "--quiet", "--fail-under=0", "-o", "-"]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE)
    summaries = {name: file["summary"] for name, file in json.loads(done.stdout)["files"].items()}
    return {name: s["missing_lines"] + s["missing_branches"] for name, s in summaries.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--raise", action="store_true", dest="raised", help="allow what is missing")
    options = parser.parse_args()
    allowed: dict[str, int] = tomllib.loads(ALLOWED.read_text()) if ALLOWED.exists() else {}
    found = measured()
    more = {name: n for name, n in found.items() if n > allowed.get(name, 0)}
    if options.raised:
        kept = {name: n for name, n in allowed.items() if name in found}
        lines = (f'"{name}" = {n}\n' for name, n in sorted({**kept, **more}.items()))
        ALLOWED.write_text(HEAD + "".join(lines))
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for name, number in more.items():
        log.error(
            "%s: no test takes %d statements and branches, and %d are allowed; they are listed by "
            ".venv/bin/coverage report --include=%s", name, number, allowed.get(name, 0), name,
        )  # fmt: skip
    return int(bool(more))


if __name__ == "__main__":
    sys.exit(main())
