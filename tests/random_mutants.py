"""Change lines of the product at random, and see whether the tests notice.

The seed decides which lines of `ROOMS` are changed, and how. Each mutant runs in a copy of all:
first the tests of tests/unit that enter its line, then the simulator's `SEEDS`, until something
fails. If nothing does, a test is missing, or only a real server shows it, or the mutant means the
same as the text. Those that mean the same are in `equivalent_mutants.json`, with the reason, and
others take their place.

    python -m tests.random_mutants --number 20

Exit codes: 0 all mutants were noticed; 1 not so.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import NamedTuple

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
ROOMS = (
    "gateway/claims", "gateway/relay", "gateway/journal", "gateway/amqp", "gateway/sources",
    "appserver",
)  # fmt: skip
BUILD = ROOT / "build" / "mutants"
SEEDS = {"pika,redis": "500000-500014", "worker": "500000-500029"}
PATIENCE = 300  # seconds for the tests, and for each of the simulator's runs, of one mutant
MOST = 150  # tests of one mutant: a line that all tests enter needs few of them

#: What means the same as the text, or as much to a user: the mutant's name, and why.
EQUIVALENT: dict[str, str] = json.loads((ROOT / "tests" / "equivalent_mutants.json").read_text())

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_CONFIG = """\
[run]
source = gateway, appserver
dynamic_context = test_function
data_file = {0}/data
parallel = true
patch = subprocess
concurrency = thread
disable_warnings = no-data-collected
"""


class Mutant(NamedTuple):
    """One change: `old` at `begin` of `file` becomes `new`; `line` counts from 1."""

    file: str
    line: int
    begin: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}: {self.context()}: {_short(self.old)} -> {_short(self.new)}"

    def context(self) -> str:
        return (ROOT / self.file).read_text().splitlines()[self.line - 1].strip()

    def text(self) -> str:
        text = (ROOT / self.file).read_text()
        return text[: self.begin] + self.new + text[self.begin + len(self.old) :]


def _short(text: str) -> str:
    return " ".join(text.split())[:60]


def mutants_of(file: str) -> Iterator[Mutant]:
    """Yield each change of `file` that can be made."""
    text = (ROOT / file).read_text()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:
        # Columns of the syntax tree count bytes.
        head = text[starts[line - 1] : starts[line]].encode()[:column]
        return starts[line - 1] + len(head.decode())

    def change(node: ast.expr | ast.stmt, new: str) -> Mutant:
        begin = place(node.lineno, node.col_offset)
        old = text[begin : place(node.end_lineno or 0, node.end_col_offset or 0)]
        return Mutant(file, node.lineno, begin, old, new)

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield change(node.test, "True")
            yield change(node.test, "False")
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            begin = place(node.left.end_lineno or 0, node.left.end_col_offset or 0)
            end = place(node.comparators[0].lineno, node.comparators[0].col_offset)
            old, new = _COMPARED[type(node.ops[0])]
            between = text[begin:end]
            yield Mutant(file, node.lineno, begin, between, between.replace(old, new, 1))
        elif isinstance(node, ast.BoolOp):
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            first = node.values[0]
            begin = place(first.end_lineno or 0, first.end_col_offset or 0)
            end = place(node.values[1].lineno, node.values[1].col_offset)
            between = text[begin:end]
            yield Mutant(file, node.lineno, begin, between, between.replace(word, other, 1))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield change(node, f"bool({ast.unparse(node.operand)})")
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            new = not node.value if isinstance(node.value, bool) else node.value + 1
            yield change(node, str(new))
        elif isinstance(node, ast.Return) and node.value is not None:
            yield change(node.value, "None")
        elif isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await))
        ):
            yield change(node, "pass")


def drawn(seed: int) -> Iterator[Mutant]:
    """Yield mutants in the seed's order, the rooms by turns."""
    rng, lists = Random(seed), []
    for room in ROOMS:
        files = sorted((ROOT / room).rglob("*.py"))
        found = [each for file in files for each in mutants_of(str(file.relative_to(ROOT)))]
        rng.shuffle(found)
        lists.append(found)
    for turn in zip(*lists, strict=False):
        yield from turn


def entered() -> dict[tuple[str, int], list[str]]:
    """Run the unit tests once, in a copy; return by file and line which of them enter it."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    place = BUILD / "copy"
    _copy(place)
    config = BUILD / "coveragerc"
    config.write_text(_CONFIG.format(BUILD))
    coverage = [sys.executable, "-m", "coverage"]
    options = ["-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
    tests = ["-m", "pytest", *options, "tests/unit"]
    subprocess.run([*coverage, "run", f"--rcfile={config}", *tests], cwd=place, check=True)
    subprocess.run([*coverage, "combine", "--quiet", f"--rcfile={config}"], cwd=place, check=True)
    data = CoverageData(str(BUILD / "data"))
    data.read()
    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for path in data.measured_files():
        file = str(Path(path).relative_to(place))
        for line, contexts in data.contexts_by_lineno(path).items():
            found[file, line] = sorted(filter(None, map(_node, contexts)))
    return found


def _node(context: str) -> str:
    """Return pytest's name of the test that coverage calls ``tests.unit.test_x.Class.test_y``."""
    words = context.split(".")
    for count in range(len(words) - 1, 0, -1):
        file = Path(*words[:count]).with_suffix(".py")
        if (ROOT / file).exists():
            return "::".join((str(file), *words[count:]))
    return ""


def noticed(mutant: Mutant, tests: list[str]) -> str:
    """Return what has noticed the mutant, empty: nothing."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "copy"
        _copy(place)
        (place / mutant.file).write_text(mutant.text())
        options = ["-q", "-x", "-p", "no:cacheprovider", "--timeout", "60", "-m", ""]
        few = Random(str(mutant)).sample(tests, min(MOST, len(tests)))
        if few and _fails(place, "pytest", *options, *sorted(few)):
            return "tests/unit"
        for strategies, seeds in SEEDS.items():
            arguments = ["--strategies", strategies, "--seeds", seeds, "--first", "--jobs", "1"]
            if _fails(place, "tests.simulation", *arguments):
                return f"the simulator, with {strategies}"
    return ""


def _copy(place: Path) -> None:
    ignored = shutil.ignore_patterns(
        "__pycache__", ".git", ".venv", "build", ".*_cache", "*.egg-info"
    )
    shutil.copytree(ROOT, place, ignore=ignored, symlinks=True)


def _fails(place: Path, *arguments: str) -> bool:
    command = [sys.executable, "-m", *arguments]
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=place, env=environ, capture_output=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    options = parser.parse_args()
    tests = entered()
    chosen: list[Mutant] = []
    for mutant in drawn(options.seed):
        if len(chosen) < options.number and str(mutant) not in EQUIVALENT:
            chosen.append(mutant)

    def tried(mutant: Mutant) -> str:
        by = noticed(mutant, tests[mutant.file, mutant.line])
        print(f"{by or 'NOT NOTICED'}: {mutant}", flush=True)
        return by

    with ThreadPoolExecutor(options.jobs) as threads:
        results = list(threads.map(tried, chosen))
    left = [str(mutant) for mutant, by in zip(chosen, results, strict=True) if not by]
    rows = [{"mutant": str(m), "by": by} for m, by in zip(chosen, results, strict=True)]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{len(chosen)} mutants, {len(left)} not noticed")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
