"""Run all tests, and compare what they take of gateway/ and appserver/ with tests/uncovered.toml.

`make test` runs the short forms that put servers under load, and the simulator; the rest is here.
Each file may have as many statements and branches that no test takes as are written there, and a
file that is not there may have none. What some runs take and others do not depends on timing:
where a file has more, everything is run again, and what any of the runs took counts. Measuring
takes speed away: a test that fails is run again without it, and then it counts.

Other arguments are handed to pytest.

Exit codes: 0 all tests pass, and no file has more; 1 not so; 2 nothing was measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT / "build" / "coverage"
ALLOWED = Path(__file__).with_name("uncovered.toml")
HEAD = """\
# How many statements and branches of each file may be such that no test takes them. That is a few
# more than were found, as some are taken in some runs only. `make test-all` fails where a file has
# more: write a test, or say in the commit why the number has to grow. `make test-all ARGS=--allow`
# raises the numbers to what it finds.
"""
RUNS = 2
#: What is measured, unless paths are given.
MEASURED = ("tests/contract", "tests/integration", "tests/docs", "tests/unit")
#: What puts servers under load, and needs speed. The rest of it is in `make test`.
UNMEASURED = ("-m", "long", "tests/faults", "tests/simulation")
PROCESSES = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")

log = logging.getLogger("coverage")


def measure(arguments: list[str]) -> bool:
    """Run the tests, and add what they take to what was measured before; did all pass?"""
    passed = module("coverage", "run", "-m", "pytest", *PROCESSES, *arguments) == 0
    module("coverage", "combine", "--quiet", "--append")
    return (
        passed
        or module("pytest", *PROCESSES, "--last-failed", "--last-failed-no-failures=none") == 0
    )


def module(*arguments: str) -> int:
    environ = {**os.environ, "REQUIRE_SERVERS": "1"}
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, env=environ).returncode


def missing() -> dict[str, int]:
    """Return how many statements and branches of each file were not taken so far."""
    report = DATA / "report.json"
    module("coverage", "json", "--quiet", "--fail-under=0", "-o", str(report))
    files = json.loads(report.read_text())["files"]
    summaries = {name: file["summary"] for name, file in files.items()}
    return {name: s["missing_lines"] + s["missing_branches"] for name, s in summaries.items()}


def allowance(missing: int) -> int:
    """Return how many a file may have of which so many were found in one run."""
    return missing + 2 + missing // 10 if missing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--allow", action="store_true", help="write what is missing to the file")
    parser.add_argument("--of", action="append", metavar="FILE", help="judge this file only")
    options, arguments = parser.parse_known_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    allowed: dict[str, int] = tomllib.loads(ALLOWED.read_text())
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir(parents=True)
    given = any((ROOT / each.partition("::")[0]).exists() for each in arguments)
    passed = given or module("pytest", *PROCESSES, *arguments, *UNMEASURED) == 0
    arguments += () if given else MEASURED
    for _ in range(1 if options.of else RUNS):
        passed = measure(arguments) and passed
        if not (DATA / "data").exists():
            log.error("nothing was measured: see pytest's output above")
            return 2
        found = missing()
        judged = options.of or found
        if unknown := [name for name in judged if name not in found]:
            log.error("--of: no file of gateway/ or appserver/: %s", ", ".join(unknown))
            return 2
        more = {name: n for name in judged if (n := found[name]) > allowed.get(name, 0)}
        if not more or options.allow:
            break
        log.info(
            "more than allowed is not taken yet in %s; the tests are run again", ", ".join(more)
        )
    if options.allow:
        kept = {name: n for name, n in allowed.items() if name in found}
        kept |= {name: allowance(n) for name, n in more.items()}
        lines = [f'"{name}" = {n}\n' for name, n in sorted(kept.items())]
        ALLOWED.write_text(HEAD + "".join(lines))
        return 0
    module("coverage", "report")
    for name, number in more.items():
        log.error(
            "%s: no test takes %d statements and branches, and %d are allowed: "
            ".venv/bin/coverage report --include=%s lists them, and %s says what may be done",
            name, number, allowed.get(name, 0), name, ALLOWED.relative_to(ROOT),
        )  # fmt: skip
    return int(bool(more) or not passed)


if __name__ == "__main__":
    sys.exit(main())
