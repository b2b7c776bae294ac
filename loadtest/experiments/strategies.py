"""Compare the strategies: each gateway alone in front of the same broker, Redis and worker."""

from __future__ import annotations

import argparse
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import partial
from time import monotonic, sleep

from gateway.config.strategies import STRATEGIES, properties
from loadtest import claims, over_time, wrk
from loadtest.amqp import ran
from loadtest.bench import Bench, Front
from loadtest.envelope import ACCEPTED
from loadtest.load import AROUND, Load, closed, take
from loadtest.over_time import OverTime
from loadtest.plot import Plot, medians
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row, Summary, figure, summarize
from loadtest.tasks import Task
from loadtest.trials import AT_ONCE, Trial, alternate

#: All others work with any Celery worker.
NEEDS_REPLY_BACKEND = {name for name in STRATEGIES if properties(name).replies}

DEFAULTS = {"duration": 30, "repeats": 3}

#: What is watched over time, in a measurement.
SAMPLES = 15
ACCEPT = "accept"
_ACCEPTING = """\
public_url = "http://127.0.0.1"
secret_key = "of the load test, and no secret"

[[routes]]
path = "/accept"
task = "appserver.tasks.echo"
answer = "accept"

"""


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Measure every strategy with every task at every number of connections, `repeats` times.

    Beside the routes that wait for the result there is one that accepts, whatever tasks there are.
    """
    tasks, connections = options.tasks, options.connections
    slowest = max(tasks, key=lambda task: task.seconds)
    bench = Bench(stack, slowest.deadline(max(*connections, AT_ONCE)), config=_ACCEPTING)
    report = Report("strategies", versions=bench.versions())
    report.options = {
        "task": ", ".join(dict.fromkeys(task.name for task in tasks)),
        "task_seconds": ", ".join(f"{task.seconds:g}" for task in tasks),
        "worker_pool": ":".join(map(str, slowest.pool)),
    }
    how = options.duration, options.threads
    cases = {(task, n): _case(task, n, tasks) for task in tasks for n in connections}
    loads = [
        *(
            _watched(bench, task, options.duration, closed(bench, n, *how, task.path, case))
            for (task, n), case in cases.items()
        ),
        accepted(bench, connections[0], *how, "/accept", _accepting(connections[0])),
    ]
    trials = [
        Trial(
            strategy,
            partial(bench.gateway, strategy, path=tasks[0].path),
            loads,
            seconds_each=tasks[0].seconds,
        )
        for strategy in options.strategies
    ]
    with bench.worker(*slowest.pool):
        faulty = alternate(trials, options, report)
    report.advice = conclude(report.summaries(), faulty)
    report.tables = claims.tables("strategies", report.rows)
    report.plots = _plots(report.rows, tasks, connections)
    report.remarks = [
        "Rows without `accept` wait for the task's result. accept: a 202 as soon as RabbitMQ has "
        "confirmed the message. What got a 202 has then run; up to one more for each connection "
        "may have, as wrk does not see its last answers; all strategies "
        f"publish in the same way for that. Over time: each strategy's first run, up to {SAMPLES} "
        "samples.",
    ]
    return report


def _case(task: Task, connections: int, tasks: Sequence[Task]) -> str:
    case = f"{connections:,} connections"
    return case if len(tasks) == 1 else f"{task.title}, {case}"


def _accepting(connections: int) -> str:
    return f"{ACCEPT}, {connections:,} connections"


def _watched(bench: Bench, task: Task, duration: int, load: Load) -> Load:
    """Add to a row what its servers used over time, and what tells it from the others."""

    def measure(front: Front) -> Row:
        with OverTime(front.servers, load.seconds / SAMPLES, bench.connections_open) as watch:
            row = load.measure(front)
        more = {"task_seconds": task.seconds, "answer": "wait", "duration": duration}
        return {**row, **more, "over_time": watch.series}

    return Load(load.case, load.seconds, measure)


def _plots(rows: list[Row], tasks: Sequence[Task], connections: Sequence[int]) -> list[Plot]:
    """Return what was found over both axes, where they have enough points, and over time."""
    waiting = [s for s in summarize(rows) if figure(s.rows[0], ("answer",)) == "wait"]
    found = []
    for what, path in (("requests per second", ("rps",)), ("p99 ms", ("latency_ms", "p99"))):
        name = path[-1]
        if len(connections) > 2:
            for task in tasks:
                those = [s for s in waiting if s.rows[0]["task_seconds"] == task.seconds]
                lines = medians(those, path, lambda s: float(s.connections))
                title = f"Over connections, {task.title}"
                file = f"{name}-connections-{task.title.replace(' ', '-')}"
                found.append(Plot(file, title, "connections", what, lines))
        if len([task for task in tasks if task.seconds]) > 1:
            for n in connections:
                those = [s for s in waiting if s.connections == n and s.rows[0]["task_seconds"]]
                lines = medians(those, path, lambda s: float(s.rows[0]["task_seconds"]))
                title = f"Over the task's time, {n:,} connections"
                found.append(
                    Plot(f"{name}-task-time-{n}", title, "seconds a task takes", what, lines)
                )
    last = _case(tasks[0], connections[-1], tasks)
    return [*found, *over_time.plots(rows, last)]


def conclude(summaries: list[Summary], faulty: Set[str] = frozenset()) -> str:
    """Say which strategy to use when, from the medians of those without an error.

    `faulty` are those that failed beside the timed runs. Two rates whose ranges over the
    repeats overlap are called equal. What counts is the case with the most connections; of several
    tasks there is a sentence for each.
    """
    faulty = faulty | {s.strategy for s in summaries if not s.clean}
    text = f"Not before their errors are explained: {', '.join(sorted(faulty))}. " if faulty else ""
    clean = [s for s in summaries if s.strategy not in faulty]
    waiting = [s for s in clean if s.rows[0].get("answer", "wait") == "wait"]
    if not waiting:
        return text + "No strategy went through without an error: there is nothing to recommend."
    most = max(s.connections for s in waiting)
    cases = dict.fromkeys(s.case for s in waiting if s.connections == most)
    found = [_use([s for s in waiting if s.case == case], len(cases) > 1) for case in cases]
    return text + " ".join([*found, *_accept(clean)])


def _use(clean: Sequence[Summary], several: bool) -> str:
    """Say which of the strategies of one case to use; `several`: there are other cases."""
    fastest, *others = sorted(clean, key=lambda s: -s.median("rps"))
    cheapest = min(clean, key=lambda s: s.median("cpu_us_per_request", "gateway"))
    equal = [s for s in others if s.range("rps")[1] >= fastest.range("rps")[0]]
    stock = next((s for s in [fastest, *equal] if s.strategy not in NEEDS_REPLY_BACKEND), None)
    use = stock or fastest
    at = use.case if several else f"{use.connections} connections"
    text = (
        f"Use {use.strategy}: at {at} it answers {use.median('rps'):,.0f} requests/s "
        f"(p99 {use.median('latency_ms', 'p99'):,.0f} ms)"
    )
    if others and others[-1] not in (use, *equal):
        times = use.median("rps") / others[-1].median("rps")
        text += f", {times:.1f} times what {others[-1].strategy} does"
    text += f", for {use.median('cpu_us_per_request', 'gateway'):,.0f} µs of gateway CPU each"
    if cheapest is not use:
        text += f" ({cheapest.strategy}: {cheapest.median('cpu_us_per_request', 'gateway'):,.0f})"
    text += ". "
    low, high = use.range("rps")
    near = [s for s in clean if s.range("rps")[0] <= high and s.range("rps")[1] >= low]
    if same := [s.strategy for s in near if s is not use]:
        text += f"Not to be told from it by this run's spread: {', '.join(same)}. "
    if use.strategy in NEEDS_REPLY_BACKEND:
        text += "It needs workers with appserver.setup(app), or with rpc:// as their result backend"
        if rest := [s for s in others if s.strategy not in NEEDS_REPLY_BACKEND]:
            text += f"; where workers have any other backend, use {rest[0].strategy} "
            text += f"({rest[0].median('rps'):,.0f} requests/s)"
        return text + "."
    return text + "It works with any Celery worker that stores its results in Redis."


def _accept(clean: Sequence[Summary]) -> list[str]:
    """Say what `accept` changes for each strategy, if it was measured."""
    gains = _accepting_gains(clean)
    if not gains:
        return []
    times = ", ".join(f"{name} {gain:.1f}" for name, gain in gains.items())
    (connections,) = {s.connections for s in clean if s.rows[0].get("answer") == ACCEPT}
    return [
        'With answer = "accept" senders do not wait for the task, which runs on the same cores all '
        f"the same: requests/s over those with the result, at {connections} connections: {times}."
    ]


def _accepting_gains(clean: Sequence[Summary]) -> dict[str, float]:
    """Return how many times as many requests a second each strategy takes where it accepts, the
    greatest first. The route that accepts runs a task that takes no time."""
    accepting = [s for s in clean if s.rows[0].get("answer") == ACCEPT]
    gains = {
        taken.strategy: taken.median("rps") / waiting.median("rps")
        for taken in accepting
        for waiting in clean
        if (taken.strategy, taken.connections) == (waiting.strategy, waiting.connections)
        and waiting not in accepting
        and not waiting.rows[0].get("task_seconds")
    }
    return dict(sorted(gains.items(), key=lambda gain: -gain[1]))


_EVERY = 0.5  # seconds between two looks at the worker


def accepted(
    bench: Bench, connections: int, duration: int, threads: int, path: str, case: str
) -> Load:
    """Have wrk keep `connections` busy, then wait until the worker has run what was taken.

    In a row, `drained` are the seconds that this took. What was taken and has not run counts as
    missing; more runs than requests count as wrong answers. wrk leaves up to a request for each
    connection behind, of which it does not know whether it was taken.
    """

    def measure(front: Front) -> Row:
        url = front.at(path).url
        timeout = bench.deadline + 5
        before = ran(bench)
        row = take(
            bench,
            replace(front, envelope=ACCEPTED),
            connections,
            lambda: wrk.run(url, connections, threads, duration, timeout, ACCEPTED),
        )
        taken, begin = row["requests"] - row["errors_by_kind"]["status"], monotonic()
        # As long as it took to take them, and as long again.
        end = begin + 2 * duration + timeout
        done, last = ran(bench) - before, -1
        # Until no more run, too: one that runs twice may do so last.
        while (done < taken or done != last) and monotonic() < end:
            sleep(_EVERY)
            done, last = ran(bench) - before, done
        row["drained"] = round(monotonic() - begin, 1)
        missing = max(0, taken - done)
        row["errors_by_kind"]["missing"] += missing
        row["errors"] += missing
        row["wrong_answers"] += max(0, done - taken - connections)
        return {**row, "answer": "accept"}

    return Load(case, 2 * duration + AROUND, measure)
