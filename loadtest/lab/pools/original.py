"""The figures of the original investigation of worker pools, beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from loadtest.summary import Row, Summary, summarize

#: A pool and its concurrency.
Setting = tuple[str, int]

#: The pools whose tasks run in greenlets.
GREEN = ("gevent", "eventlet")
#: Seconds that its calls slept, about.
SLEEP = 200.0
#: How many calls its chords had.
CHORDS = [7, 3]
#: A difference below this share is none.
SAME = 0.03


@dataclass(frozen=True)
class Original:
    """Seconds in all; megabytes of all Celery processes, from the least to the most that is told
    of the pool; connections to the result store and to the broker, as far as they are told."""

    seconds: float
    memory: tuple[float, ...]
    results: int
    broker: str = "-"


def _memory(original: Original) -> float:
    return sum(original.memory) / len(original.memory)


def _originals(
    pool: str, sizes: Sequence[int], figures: Sequence[Original]
) -> dict[Setting, Original]:
    return {(pool, size): original for size, original in zip(sizes, figures, strict=True)}


_GEVENT, _EVENTLET = (75.0, 77.5), (78.0, 81.0)

ORIGINAL: Mapping[Setting, Original] = {
    **_originals(
        "prefork",
        (1, 2, 4, 8, 16, 32),
        [
            Original(1947, (100,), 1, "3"),
            Original(986, (140,), 2, "4"),
            Original(586, (200,), 4, "4"),
            Original(392, (265,), 8, "4"),
            Original(207, (325,), 10, "4"),
            Original(206, (550,), 10, "4"),
        ],
    ),
    **_originals(
        "gevent",
        (2, 4, 8, 16, 32),
        [
            Original(991, _GEVENT, 4),
            Original(597, _GEVENT, 4),
            Original(385, _GEVENT, 6),
            Original(208, _GEVENT, 8),
            Original(206, _GEVENT, 8),
        ],
    ),
    **_originals(
        "eventlet",
        (2, 4, 8, 16, 32),
        [
            Original(951, _EVENTLET, 5),
            Original(580, _EVENTLET, 7),
            Original(391, _EVENTLET, 5),
            Original(206, _EVENTLET, 7),
            Original(206, _EVENTLET, 4),
        ],
    ),
}

_TOTAL = ("total_seconds",)

#: A figure: what it is called, the original's, where a row has ours, and why the order may differ.
_COMPARED: Sequence[tuple[str, Callable[[Original], float], tuple[str, ...], str]] = (
    (
        "total time",
        lambda original: original.seconds,
        _TOTAL,
        "the sleeps are others, and what a task costs beside its sleep counts more where the sleep "
        "is short",
    ),
    (
        "memory",
        _memory,
        ("most", "rss_mb"),
        "Celery, its pools' libraries and Python have other sizes today",
    ),
    (
        "connections to the result store",
        lambda original: original.results,
        ("connections_open", "redis"),
        "today each process, thread or greenlet that stores results has connections of its own, "
        "and what runs at the same moment decides how many are open",
    ),
)


def settings(rows: Sequence[Row]) -> dict[Setting, Summary]:
    """Return the repeats of each setting that ran."""
    return {(s.strategy, int(s.case)): s for s in summarize(rows)}


def called(setting: Setting) -> str:
    pool, size = setting
    return f"{pool} at {size}"


def beside(rows: Sequence[Row], seconds: float) -> list[list[str]]:
    """Return head and lines of a table; ours slept for about so many `seconds`."""
    scale = SLEEP / seconds
    lines = [
        [
            "setting",
            "original, s",
            f"ours x {scale:,.4g}, s",
            "original, MB",
            "ours, MB",
            "original, result connections",
            "ours",
            "original, broker connections",
            "ours",
        ]
    ]
    for setting, ours in settings(rows).items():
        original = ORIGINAL.get(setting)
        memory = "-".join(f"{mb:g}" for mb in original.memory) if original else "-"
        lines.append(
            [
                called(setting),
                f"{original.seconds:,.0f}" if original else "-",
                f"{ours.median('total_seconds') * scale:,.0f}",
                memory,
                f"{ours.median('most', 'rss_mb'):,.0f}",
                str(original.results) if original else "-",
                f"{ours.median('connections_open', 'redis'):g}",
                original.broker if original else "-",
                f"{ours.median('connections_open', 'broker'):g}",
            ]
        )
    return lines


def differences(rows: Sequence[Row]) -> str:
    """Say of each figure in what order it differs from the original, and why."""
    ours = {setting: s for setting, s in settings(rows).items() if setting in ORIGINAL}
    if len({pool for pool, _ in ours}) < 2:
        return "The original's order cannot be compared, as fewer than two of its pools ran."
    said = []
    for name, original, path, why in _COMPARED:
        changed = swapped(
            {setting: original(ORIGINAL[setting]) for setting in ours},
            {setting: s.median(*path) for setting, s in ours.items()},
        )
        if not changed:
            said.append(f"By {name}, the pools are in the original's order.")
            said += _parted(ours) if path == _TOTAL else []
            continue
        pairs = ", ".join(f"{called(a)} before {called(b)}" for a, b in changed[:_NAMED])
        more = f" and {len(changed) - _NAMED} more pairs" if len(changed) > _NAMED else ""
        said.append(f"By {name}, the order differs: here {pairs}{more}, as {why}.")
    return " ".join(said)


def _parted(ours: Mapping[Setting, Summary]) -> list[str]:
    """Name the two pools that were equally fast at a concurrency and differ the most here."""
    times = {
        (slow, fast): ours[slow].median(*_TOTAL) / ours[fast].median(*_TOTAL)
        for slow, fast in permutations(ours, 2)
        if slow[1] == fast[1]
        and not _less(ORIGINAL[slow].seconds, ORIGINAL[fast].seconds)
        and not _less(ORIGINAL[fast].seconds, ORIGINAL[slow].seconds)
    }
    widest = max(times, key=lambda pair: times[pair], default=None)
    if widest is None or times[widest] < _APART:
        return []
    slow, fast = map(called, widest)
    return [
        f"But {slow} takes {times[widest]:.2f} times as long as {fast}, where both took the same "
        "time then."
    ] + _one_by_one(ours[widest[0]])


def _one_by_one(slow: Summary) -> list[str]:
    """Say why, where the calls of greenlets have begun one after the other."""
    within = slow.median("begun_within_seconds")
    if slow.strategy not in GREEN or within < _SPREAD:
        return []
    return [
        f"Its calls began within {within:.2f} s, as after each message Celery's loop of greenlets "
        "waits 0.1 s for heartbeats on the connection of its events. With a broker_heartbeat of 0, "
        "or with --without-gossip and --without-heartbeat, it does not: start such workers so."
    ]


_NAMED = 3  # pairs
_SPREAD = 0.5  # seconds
_APART = 1.15  # times as long
_NEAR = 1.5  # times the original's


def larger(rows: Sequence[Row]) -> str:
    """Name the setting whose memory is the most times the original's; empty where it is near."""
    times = {
        setting: (s.median("most", "rss_mb") / _memory(ORIGINAL[setting]), s)
        for setting, s in settings(rows).items()
        if setting in ORIGINAL
    }
    setting = max(times, key=lambda setting: times[setting][0], default=None)
    if setting is None or times[setting][0] <= _NEAR:
        return ""
    ratio, ours = times[setting]
    return (
        f"The memory of {called(setting)} is {ratio:.1f} times the original's. Each process' "
        "resident memory counts what it shares with others; counted once, all together have "
        f"{ours.median('shared_once_mb'):.0f} MB."
    )


def swapped(
    original: Mapping[Setting, float], ours: Mapping[Setting, float]
) -> list[tuple[Setting, Setting]]:
    """Return the pairs whose first has less than the second in `ours`, and more in `original`.

    Pools are compared at the same concurrency. The widest in `ours` are first.
    """
    found = []
    for pair in combinations(original, 2):
        low, high = sorted(pair, key=lambda setting: ours[setting])
        here, there = _less(ours[low], ours[high]), _less(original[high], original[low])
        if low[1] == high[1] and here and there:
            found.append((low, high))
    return sorted(found, key=lambda pair: ours[pair[0]] - ours[pair[1]])


def _less(one: float, other: float) -> bool:
    return one < other * (1 - SAME)
