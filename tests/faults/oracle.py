"""What must hold whatever breaks: judged from what was sent, what was executed, what is left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.faults.client import Sent

GRACE = 0.5  # seconds beyond its deadline that an answer may take
RECOVERY = 15.0  # seconds after the fault's end until everything is served again
#: What may stay behind: descriptors of idle pooled connections, and memory (bytes).
DESCRIPTORS, MEMORY = 12, 32 * 2**20


@dataclass(frozen=True)
class Execution:
    """A task's line: the request that it served, its task id, and what that task notes of itself.

    `attempt` counts the executions for a request, `by` is the try that published it, `nonce` what
    it alone has returned, `at` when it ended (monotonic seconds).
    """

    id: str
    task: str
    redelivered: bool
    attempt: int = 1
    replay: int = 0
    by: str = ""
    nonce: str = ""
    at: float = 0.0


@dataclass(frozen=True)
class Window:
    """When the fault began and ended, and what it excuses; monotonic seconds."""

    began: float
    ended: float
    statuses: frozenset[int | str] = frozenset()
    again: bool = False  # may tasks run more than once?
    second: bool = False  # once for each try, and under another task id?


@dataclass
class Remains:
    """What gateways hold when nothing is under way, of all their processes."""

    pids: list[int]
    descriptors: int
    memory: int  # bytes
    in_flight: float = 0
    connections: float = 0


@dataclass
class Result:
    """What a row has shown of one strategy."""

    row: int
    title: str
    strategy: str
    label: str = ""
    sent: int = 0
    acknowledged: int = 0
    executed: int = 0
    lost: int = 0
    duplicated: int = 0
    late: int = 0
    recovery: float = 0.0  # seconds after the fault's end
    statuses: dict[str, int] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.problems


def executions(path: Path) -> list[Execution]:
    """Read what the tasks have noted, without a line that is just being written."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [Execution(**json.loads(line)) for line in lines]


def judge(
    result: Result,
    sent: Iterable[Sent],
    done: Iterable[Execution],
    window: Window,
    deadline: float,
    excused: Iterable[str] = (),
) -> None:
    """Fill in `result`: its figures, and a line for each promise that was broken.

    The ids `excused` are requests that a row judges itself. `deadline` is in seconds.
    """
    excused = set(excused)
    sent = [one for one in sent if one.id not in excused]
    done = [one for one in done if one.id not in excused]
    acknowledged = {one.id for one in sent if one.good}
    attempts = Counter(one.id for one in done)
    tasks: dict[str, set[str]] = {}
    for one in done:
        tasks.setdefault(one.id, set()).add(one.task)
    bad = [one for one in sent if not one.good]
    late = [one for one in sent if one.answered - one.at > deadline + GRACE]
    after = [one.at - window.ended for one in bad if one.at > window.ended]

    result.sent, result.acknowledged = len(sent), len(acknowledged)
    result.executed = len(attempts)
    result.lost = len(acknowledged - set(attempts))
    result.duplicated = sum(attempts.values()) - len(attempts)
    result.late = len(late)
    second = sum(len(ids) > 1 for ids in tasks.values())
    # Without its claim a delivery runs once for each try. It has the same id where another gateway
    # had not yet written that the message is confirmed.
    tries = Counter(one.id for one in sent if window.second)
    again = sum(max(0, number - max(1, tries[name])) for name, number in attempts.items())
    if second:
        result.notes["second_ids"] = second
    result.recovery = round(max(after, default=0.0), 2)
    result.statuses = dict(sorted(Counter(str(one.status) for one in sent).items()))
    good = [one.answered - one.at for one in sent if one.good]
    result.notes["median_seconds"] = round(median(good), 4) if good else 0.0
    result.problems += [
        text
        for broken, text in (
            (not acknowledged, "nothing was acknowledged"),
            (result.lost, f"lost: {sorted(acknowledged - set(attempts))[:5]}"),
            (late, f"late: {_some(late)}"),
            (result.recovery > RECOVERY, f"recovered only after {result.recovery} s"),
            (again and not window.again, f"{again} executed again"),
            (second and not window.second, f"{second} deliveries ran under a second id"),
        )
        if broken
    ]
    wrong = [one for one in sent if one.wrong]
    outside = [
        one for one in bad if one.answered < window.began or one.at > window.ended + RECOVERY
    ]
    unnamed = [one for one in bad if one.status not in window.statuses and one not in outside]
    for requests, what in (
        (wrong, "another's answer"),
        (outside, "not 2xx outside of the fault"),
        (unnamed, "a status that the row does not name"),
    ):
        if requests:
            result.problems.append(f"{what}: {_some(requests)}")


def judge_remains(result: Result, before: Remains, after: Remains, same: bool) -> None:
    """Compare what a gateway holds with what it held before; `same`: by the same processes."""
    result.notes["descriptors_more"] = after.descriptors - before.descriptors
    result.notes["memory_mb_more"] = round((after.memory - before.memory) / 2**20, 1)
    for broken, text in (
        (after.in_flight, f"{after.in_flight:g} requests are still under way"),
        (after.connections, f"{after.connections:g} HTTP connections are still open"),
        (same and after.pids != before.pids, "a process was restarted"),
        (
            len(after.pids) != len(before.pids),
            f"{len(after.pids)} processes, {len(before.pids)} before",
        ),
        (
            after.descriptors > before.descriptors + DESCRIPTORS,
            f"{after.descriptors} descriptors, {before.descriptors} before",
        ),
        (
            after.memory > before.memory + MEMORY,
            f"{after.memory / 2**20:.0f} MB, {before.memory / 2**20:.0f} before",
        ),
    ):
        if broken:
            result.problems.append(text)


def _some(requests: list[Sent]) -> str:
    """Show how many there are, and the first few with status and seconds."""
    shown = [f"{one.id} {one.path} {one.status} {one.answered - one.at:.2f}s" for one in requests]
    return f"{len(requests)} ({', '.join(shown[:4])})"
