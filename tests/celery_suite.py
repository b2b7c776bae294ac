"""Run Celery's own integration tests: stock, with late acknowledgement, with `appserver.setup`.

They are in the sdist of the installed version of Celery. Each file has a run of its own, with
private servers that are empty, for each way, pool and repetition. A test passes if it passes each
time. The report names the tests that do not pass in each way. It is printed, and written to
build/celery-suite/report.md after each run.

Exit codes: 0 what passes with late acknowledgement passes with `appserver.setup`; 1 something does
not, or there was no time for everything; 2 an option is wrong.

In the tests' own processes this module is a plugin of pytest, which changes app and worker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis

from tests.support.stack import RabbitMQ, Server, Stack

ROOT = Path(__file__).parent.parent
HOME = ROOT / "build" / "celery-suite"
WAYS = ("stock", "late", "setup")
POOLS = ("prefork", "threads")
LONGEST = 1_500.0  # seconds for one file
DOWNLOAD = 300.0  # seconds
PASSED, SKIPPED = "passed", "skipped"


class Run(NamedTuple):
    """One file in one way; `number` is that of the repetition."""

    number: int
    file: str
    pool: str
    way: str


#: How often each outcome was seen, by pool, way and test.
Outcomes = defaultdict[tuple[str, str, str], Counter[str]]


# The plugin ---------------------------------------------------------------------------------


def pytest_configure() -> None:
    """Change the apps and the workers that Celery's fixtures make; called by pytest."""
    if "SUITE_WAY" not in os.environ:
        return
    from celery.contrib.testing import app, worker

    import appserver

    way, pool = os.environ["SUITE_WAY"], os.environ["SUITE_POOL"]
    make_app, start_worker = app.TestApp, worker.start_worker

    def changed_app(*args: Any, config: dict[str, Any] | None = None, **options: Any) -> Any:
        late = {"task_acks_late": True, "task_reject_on_worker_lost": True} if way == "late" else {}
        made = make_app(*args, config={**(config or {}), **late}, **options)
        if way == "setup":
            appserver.setup(made)
        return made

    def changed_worker(*args: Any, **options: Any) -> Any:
        return start_worker(*args, **{**options, "pool": pool})

    app.TestApp, worker.start_worker = changed_app, changed_worker


# The command --------------------------------------------------------------------------------


def main() -> int:
    chosen = _options()
    tests = _tests()
    files = sorted(path.name for path in (tests / "t" / "integration").glob("test_*.py"))
    files = [name for name in files if chosen.only in name]
    runs = [Run(*each) for each in product(range(chosen.times), files, chosen.pools, chosen.ways)]
    end = monotonic() + chosen.minutes * 60
    outcomes: Outcomes = defaultdict(Counter)
    done, text, worse = 0, "", list[str]()
    with Stack() as stack, _servers(stack, chosen.lanes) as lend:

        def one(run: Run) -> dict[str, str] | None:
            if monotonic() > end:
                return None
            with lend() as env:
                return _run(run, tests, env, min(LONGEST, max(end - monotonic(), 1)))

        with ThreadPoolExecutor(chosen.lanes) as lanes:
            for run, found in zip(runs, lanes.map(one, runs), strict=True):
                if found is None:
                    continue
                done += 1
                for test, outcome in found.items():
                    outcomes[run.pool, run.way, test][outcome] += 1
                counts = ", ".join(f"{n} {kind}" for kind, n in Counter(found.values()).items())
                print(f"{run.number + 1} {run.file} {run.pool} {run.way}: {counts}", flush=True)
                text, worse = report(outcomes, chosen.times)
                text += f"\n{done} of {len(runs)} runs were done.\n"
                (HOME / "report.md").write_text(text)
    print(text)
    return int(bool(worse or done < len(runs)))


def report(outcomes: Outcomes, times: int) -> tuple[str, list[str]]:
    """Return a report, and the tests that pass with late acknowledgement and not with setup."""
    lines = [f"Celery {version('celery')}, {times} times each: tests that pass each time", ""]
    lines += ["| pool | stock | late acknowledgement | appserver.setup |", "|---|---|---|---|"]
    notes, worse = list[str](), list[str]()
    for pool in sorted({pool for pool, _, _ in outcomes}):
        found = {way: _passing(outcomes, pool, way) for way in WAYS}
        lines.append(f"| {pool} | {' | '.join(str(len(found[way])) for way in WAYS)} |")
        late = sorted(found["stock"] - found["late"])
        lost = sorted(found["late"] - found["setup"])
        gained = sorted(found["setup"] - found["late"])
        worse += [f"{pool} {test}" for test in lost]
        for title, tests in (
            ("stock passes, late acknowledgement does not", late),
            ("late acknowledgement passes, setup does not", lost),
            ("setup passes, late acknowledgement does not", gained),
        ):
            notes += ["", f"{pool}: {title}: {len(tests)}", ""]
            notes += [f"- {test}: {_counts(outcomes, pool, test)}" for test in tests]
    return "\n".join([*lines, *notes, ""]), worse


def _passing(outcomes: Outcomes, pool: str, way: str) -> set[str]:
    """Return the tests that have passed each time, and at least once."""
    return {
        test
        for (one, other, test), seen in outcomes.items()
        if (one, other) == (pool, way) and set(seen) == {PASSED}
    }


def _counts(outcomes: Outcomes, pool: str, test: str) -> str:
    parts = (
        f"{way} {', '.join(f'{n} {kind}' for kind, n in outcomes[pool, way, test].items())}"
        for way in WAYS
    )
    return "; ".join(parts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.celery_suite", description=__doc__)
    parser.add_argument("--only", default="", help="files with this text in their names")
    parser.add_argument("--times", type=int, default=3, help="repetitions of each file")
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=POOLS)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--lanes", type=int, default=1, help="files at the same time")
    parser.add_argument("--minutes", type=float, default=360, help="begin no run after that")
    return parser.parse_args()


def _tests() -> Path:
    """Return the directory with the tests of the installed Celery; download them if necessary."""
    name = f"celery-{version('celery')}"
    if not (HOME / name / "t").exists():
        HOME.mkdir(parents=True, exist_ok=True)
        how = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(HOME)]
        pip = [sys.executable, "-m", "pip", "--quiet", "download", *how]
        subprocess.run([*pip, name.replace("-", "==")], check=True, timeout=DOWNLOAD)
        with tarfile.open(HOME / f"{name}.tar.gz") as archive:
            wanted = (f"{name}/t/", f"{name}/pyproject.toml")  # the installed package is tested
            members = [each for each in archive if each.name.startswith(wanted)]
            archive.extractall(HOME, members, filter="data")
    return HOME / name


@contextmanager
def _servers(stack: Stack, lanes: int) -> Iterator[Callable[[], Any]]:
    """Yield a function that lends a broker and a Redis that are empty, as variables."""
    free: SimpleQueue[tuple[RabbitMQ, Server]] = SimpleQueue()
    for _ in range(lanes):
        free.put((stack.rabbitmq(), stack.redis()))

    @contextmanager
    def lend() -> Iterator[dict[str, str]]:
        broker, results = free.get()
        try:
            broker.wipe()
            with redis.Redis.from_url(results.url) as client:
                client.flushall()
            port = str(urlsplit(results.url).port)
            yield {
                "TEST_BROKER": broker.url,
                "TEST_BACKEND": results.url,
                "REDIS_HOST": "127.0.0.1",
                "REDIS_PORT": port,
            }
        finally:
            free.put((broker, results))

    yield lend


def _run(run: Run, tests: Path, env: dict[str, str], seconds: float) -> dict[str, str]:
    """Run a file, and return the outcomes of its tests."""
    name = f"{run.file}-{run.pool}-{run.way}-{run.number}"
    xml = HOME / f"{name}.xml"
    xml.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "celery.contrib.pytest"]
    command += [
        "-p",
        "tests.celery_suite",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "--timeout=120",
    ]
    command += [f"--junit-xml={xml}", f"t/integration/{run.file}"]
    own = {"SUITE_WAY": run.way, "SUITE_POOL": run.pool, "PYTHONPATH": str(ROOT)}
    with open(HOME / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=tests,
            env={**os.environ, **env, **own},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(process)
    if not xml.exists():
        return {run.file: "did not end"}
    return _read(xml)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what a run has left, its workers' processes included."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def _read(xml: Path) -> dict[str, str]:
    """Return the outcome of each test in a report of pytest."""
    seen: dict[str, str] = {}
    for case in ET.parse(xml).iter("testcase"):
        test = f"{case.get('classname', '').removeprefix('t.integration.')}::{case.get('name')}"
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcome = "failed" if kinds - {"skipped"} else SKIPPED if kinds else PASSED
        # An error of its fixtures at the end is a second entry.
        seen[test] = "failed" if "failed" in (outcome, seen.get(test)) else outcome
    return seen


if __name__ == "__main__":
    sys.exit(main())
