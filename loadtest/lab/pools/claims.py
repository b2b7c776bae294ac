"""What was said of worker pools, judged by what was measured; and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadtest.lab.claims import Claim
from loadtest.lab.pools.original import GREEN, Setting, called, settings
from loadtest.lab.pools.starts import BLOCKING, HEARTBEAT, LONG, Found
from loadtest.lab.pools.worker import COMMAND, PATCHED, UNPATCHED, Start
from loadtest.summary import Row, Summary

#: From the pool that asks least of the tasks' code: the last ones patch the standard library.
POOLS = ("prefork", "threads", "gevent", "eventlet")
#: What is as fast as the fastest, and as small as the smallest. The next concurrency takes about
#: half of the time; what a task costs beside its sleep is less than this, as the sleep is short.
AS_FAST, AS_SMALL = 1.15, 1.1
#: The most memory of a pool at any concurrency over the least, where it is called steady.
STEADY = 1.1
#: 206 s instead of 1,947 s, and what is the same.
LESS, AROUND = 0.89, 0.03
#: Per cent of a core.
PEAK = 17.5

#: What is compared where memory decides: pages that processes share are counted once.
_MEMORY = ("shared_once_mb",)
_ONE, _BEST = ("prefork", 1), ("gevent", 32)


def claims(rows: Sequence[Row], found: Sequence[Found]) -> list[Claim]:
    """Judge all that was said; a worker that did not start shows nothing of it."""
    there = settings(rows)
    found = [run for run in found if not run.problem]
    return [
        _less_time(there),
        _steady(there),
        _the_best(there),
        _peak(there),
        *(_heartbeat(pool, found, 0) for pool in GREEN),
        *(_heartbeat(start.pool, found, LONG) for start in BLOCKING if start.heartbeat),
        *(_script(pool, found) for pool in GREEN),
    ]


def reasons(found: Sequence[Found]) -> list[str]:
    """Say why workers with greenlets ran, or did not, as far as these runs show it."""
    beats = [run for run in found if run.start.heartbeat and not run.start.blocks]
    scripts = {by: [run for run in found if run.start.by == by] for by in (UNPATCHED, PATCHED)}
    said = []
    if beats and all(run.kept for run in beats):
        said.append(
            "Heartbeats are kept, as Celery sends them by a timer of the pool, which goes on while "
            "tasks wait."
        )
    for run in found:
        if run.start.heartbeat and run.start.blocks and run.missed:
            without = next((each for each in found if each.start == _silent(run.start)), None)
            helps = without is not None and without.kept
            said.append(
                "A call that blocks in C code holds up that timer and all else in its process: "
                f"{run.missed} connections were closed for missed heartbeats, {run.twice} calls "
                f"begun again{'; not so with a heartbeat of 0' if helps else ''}."
            )
    hung = any(not run.seconds for run in scripts[UNPATCHED])
    if hung and scripts[PATCHED] and all(run.kept for run in scripts[PATCHED]):
        said.append(
            "A script has to make the pool's monkey patches before all other imports, as the "
            "command celery does. Without them the worker's loop waits in the kernel for messages, "
            "and no greenlet gets its turn."
        )
    return said


def broken(found: Sequence[Found]) -> list[str]:
    """Name the runs that had to be in order, as nothing was said against them, and were not.

    Those are the command's without a heartbeat; with one, it has to start at least.
    """
    return [
        f"{run.name}: {run.problem or run.says}"
        for run in found
        if run.start.by == COMMAND and (run.problem or not (run.start.heartbeat or run.kept))
    ]


def _silent(start: Start) -> Start:
    return replace(start, heartbeat=0)


def best(there: dict[Setting, Summary]) -> Setting | None:
    """Return the setting to choose.

    Of those as fast as the fastest, and of these of those as small as the smallest, it is the one
    of the least concurrency, and the one whose pool asks least of the code. None: nothing is clean.
    """
    clean = {setting: summary for setting, summary in there.items() if summary.clean}
    if not clean:
        return None
    near = _near(_near(clean, AS_FAST, "total_seconds"), AS_SMALL, *_MEMORY)
    return min(near, key=lambda setting: (setting[1], POOLS.index(setting[0])))


def _near(there: dict[Setting, Summary], times: float, *path: str) -> dict[Setting, Summary]:
    least = min(summary.median(*path) for summary in there.values())
    return {
        setting: summary
        for setting, summary in there.items()
        if summary.median(*path) <= times * least
    }


def advice(rows: Sequence[Row]) -> str:
    """Say in a sentence which pool and concurrency to choose, and why."""
    there = settings(rows)
    chosen = best(there)
    if chosen is None:
        return "No setting ran without an error, so this run recommends none."
    there = {setting: summary for setting, summary in there.items() if summary.clean}
    slowest = max(there, key=lambda setting: there[setting].median("total_seconds"))
    large = max(there, key=lambda setting: there[setting].median(*_MEMORY))
    pool, size = chosen
    mine = there[chosen]
    return (
        f"For tasks that wait for other services, start the worker with -P {pool} and a "
        f"concurrency of at least as many tasks as wait at once: with -c {size}, "
        f"{mine.median('requests'):.0f} tasks took {_seconds(there, chosen):.1f} s in "
        f"{mine.median(*_MEMORY):.0f} MB of memory, shared pages counted once; {called(slowest)} "
        f"took {_seconds(there, slowest):.1f} s, {called(large)} took "
        f"{there[large].median(*_MEMORY):.0f} MB."
    )


def _less_time(there: dict[Setting, Summary]) -> Claim:
    text = "gevent at 32 takes 89 % less time than prefork at 1"
    if not {_ONE, _BEST} <= there.keys():
        return Claim(text)
    one, many = _seconds(there, _ONE), _seconds(there, _BEST)
    less = 1 - many / one
    return Claim(
        text,
        abs(less - LESS) <= AROUND,
        f"{many:.2f} s instead of {one:.2f} s: {100 * less:.0f} % less",
    )


def _steady(there: dict[Setting, Summary]) -> Claim:
    text = "gevent's memory is the same at every concurrency"
    sizes = {size: _memory(there, (pool, size)) for pool, size in there if pool == _BEST[0]}
    if len(sizes) < 2:
        return Claim(text)
    low, high = min(sizes.values()), max(sizes.values())
    shown = f"{low:.0f} to {high:.0f} MB, at {min(sizes)} to {max(sizes)}"
    return Claim(text, high <= STEADY * low, shown)


def _the_best(there: dict[Setting, Summary]) -> Claim:
    text = "gevent at 32 is the best: the least time, and little memory"
    clean = {setting: summary for setting, summary in there.items() if summary.clean}
    if _BEST not in there or len(there) < 2 or not clean:
        return Claim(text)
    near = _near(_near(clean, AS_FAST, "total_seconds"), AS_SMALL, *_MEMORY)
    rival = min((s for s in near if s != _BEST), key=lambda s: _memory(there, s), default=None)
    shown = _row(there, _BEST)
    if rival:
        shown += f"; as good or better: {_row(there, rival)}"
    return Claim(text, _BEST in near, shown)


def _peak(there: dict[Setting, Summary]) -> Claim:
    text = f"eventlet's CPU use rises to {PEAK:g} % of a core, and no further"
    peaks = {
        setting: summary.median("most", "cpu_percent")
        for setting, summary in there.items()
        if setting[0] == "eventlet"
    }
    if not peaks:
        return Claim(text)
    most = max(peaks, key=lambda setting: peaks[setting])
    shown = f"{called(most)}: {peaks[most]:.1f} %"
    return Claim(text, abs(peaks[most] - PEAK) <= AROUND * 100, shown)


def _heartbeat(pool: str, found: Sequence[Found], blocks: float) -> Claim:
    text = (
        f"With {pool}, broker_heartbeat has to be 0, or heartbeats are missed and tasks run again: "
        f"{'where calls block in C code' if blocks else 'where calls only wait'}"
    )
    runs = {
        run.start.heartbeat: run
        for run in found
        if (run.start.pool, run.start.by, run.start.blocks) == (pool, COMMAND, blocks)
        and run.start.acks_late
    }
    if runs.keys() != {HEARTBEAT, 0}:
        return Claim(text)
    with_, without = runs[HEARTBEAT], runs[0]
    holds = not with_.kept and without.kept
    shown = f"{HEARTBEAT} s: {with_.says}, {with_.missed} missed; 0: {without.says}"
    return Claim(text, holds, shown)


def _script(pool: str, found: Sequence[Found]) -> Claim:
    text = f"A worker with {pool} that a script starts hangs, after a couple of tasks"
    runs = {
        run.start.by: run for run in found if run.start.pool == pool and not run.start.acks_late
    }
    if UNPATCHED not in runs:
        return Claim(text)
    shown = "; ".join(f"{by}: {runs[by].says}" for by in (UNPATCHED, PATCHED) if by in runs)
    return Claim(text, not runs[UNPATCHED].seconds, shown)


def _seconds(there: dict[Setting, Summary], setting: Setting) -> float:
    return there[setting].median("total_seconds")


def _memory(there: dict[Setting, Summary], setting: Setting) -> float:
    return there[setting].median("most", "rss_mb")


def _row(there: dict[Setting, Summary], setting: Setting) -> str:
    return f"{called(setting)}, {_seconds(there, setting):.2f} s, {_memory(there, setting):.0f} MB"
