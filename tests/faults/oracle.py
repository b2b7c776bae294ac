"""What must hold whatever breaks: judged from what was sent, what was executed, what is left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from gateway.config.strategies import STRATEGIES, properties
from tests.faults.faults import FROZEN, KILLED
from tests.simulation import promises, records
from tests.simulation.promises import CALM, GRACE, MAIN, REFUSALS, findings, told
from tests.simulation.records import GONE, Evidence, Injected, Try

if TYPE_CHECKING:
    from tests.faults.trial import Row

RECOVERY = CALM  # seconds after the fault's end until everything is served again
#: What may stay behind: descriptors of idle pooled connections, and memory (bytes).
DESCRIPTORS, MEMORY = 12, 32 * 2**20
STANDSTILL = 0.3  # seconds for which a machine may hold up what is late all the same
#: Of these strategies a `broker-unavailable` may also be a connection lost before the confirm,
#: and does not say so.
VAGUE = {name for name in STRATEGIES if properties(name).publishing}


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


def executions(path: Path) -> list[Execution]:
    """Read what the tasks have noted, without a line that is just being written."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [Execution(**json.loads(line)) for line in lines]


class Judge(promises.Judge):
    """Looks at what real servers have done.

    `deadlines` are the routes' (seconds), `failed` the task ids whose stored result is a failure,
    `read` the texts found where a 202 had said that the result would be, by delivery.
    """

    in_order = True
    refusals = REFUSALS | {"draining"}

    def __init__(
        self,
        strategy: str,
        tries: list[Try],
        done: Iterable[Execution],
        injected: list[Injected],
        deadlines: Mapping[str, float],
        failed: Iterable[str] = (),
        read: Mapping[str, str] | None = None,
    ):
        ran = [
            records.Execution(e.id, e.task, e.by, e.nonce, False, e.redelivered, e.at, "", MAIN)
            for e in done
        ]
        seen = Evidence(
            strategy, 0, tries=tries, executions=ran, injected=injected,
            read=list((read or {}).items()),
        )  # fmt: skip
        super().__init__(seen, began=min(one.began for one in injected))
        self.identified = {one.route for one in tries}
        self.deadlines = deadlines
        told = {one.task for one in tries if one.type == "task-failed"}
        self.failed = {*failed, *told}

    def is_late(self, one: Try) -> bool:
        return one.status != GONE and one.took > self.deadlines[one.route] + GRACE

    def held_up(self, one: Try) -> bool:
        stopped = self.hit(one.at, one.answered, FROZEN, KILLED, target=one.gateway)
        return stopped or one.delay > STANDSTILL

    def unpublished(self, one: Try) -> bool:
        vague = one.type == "broker-unavailable" and self.seen.strategy in VAGUE
        return super().unpublished(one) and not vague

    def has_failed(self, runs: list[records.Execution]) -> bool:
        return runs[0].task_id in self.failed

    def recovery(self) -> float:
        """Return the seconds from the last fault's end to the last try that began and failed."""
        bad = [one.at for one in self.seen.tries if not one.good and one.status != GONE]
        return round(max(0.0, max(bad, default=0.0) - self.seen.last_fault), 2)


class RowJudge(Judge):
    """Looks at what `row` has shown, which says itself what its fault excuses.

    The deliveries `excused` are those that the row judges itself.
    """

    unique = False

    def __init__(
        self,
        row: Row,
        strategy: str,
        tries: Iterable[Try],
        done: Iterable[Execution],
        fault: Injected,
        excused: Iterable[str] = (),
    ):
        excused = set(excused)
        tries = [one for one in tries if one.delivery not in excused]
        done = [one for one in done if one.id not in excused]
        deadlines = dict.fromkeys((one.route for one in tries), row.deadline)
        super().__init__(strategy, tries, done, [fault], deadlines)
        self.row, self.statuses = row, row.statuses

    def explained(self, one: Try) -> bool:
        return one.good or super().explained(one)


def outside(judge: Judge) -> Iterator[str]:
    """Find what failed before the first fault."""
    for one in judge.seen.tries:
        if not one.good and one.status != GONE and one.answered < judge.began:
            yield judge.show(one)


def executed_again(judge: RowJudge) -> Iterator[str]:
    """Find deliveries that ran more than once, or than they were tried where claims are lost.

    A second try has the first one's task id where another gateway had not yet written that the
    message is confirmed.
    """
    tries = Counter(one.delivery for one in judge.seen.tries if judge.row.second)
    for delivery, number in Counter(e.delivery for e in judge.main).items():
        if number > max(1, tries[delivery]):
            yield f"{delivery} {number} times"


Rules = Mapping[str, Callable[..., Iterable[str]]]

RULES: Rules = {**promises.RULES, "failed before the first fault": outside}


def rules_of(row: Row) -> Rules:
    """Return what a row has to keep, beside what it expects itself."""
    kept = ["lost", "another's answer, or nobody's", "late", "a status that no fault explains"]
    kept += ["failed before the first fault", *([] if row.second else ["second task ids"])]
    again = {} if row.again else {"executed again": executed_again}
    return {name: RULES[name] for name in kept} | again


#: The rules whose findings are figures, too.
_COUNTED = {
    "lost": "lost",
    "different answers": "different_answers",
    "second task ids": "second_ids",
    "late": "late",
    "errors of its own": "errors_500",
}


@dataclass(kw_only=True)
class Result:
    """What a row, or a seed, has shown of one strategy; `COLUMNS` are its figures."""

    HEAD: ClassVar[tuple[str, ...]]
    COLUMNS: ClassVar[tuple[str, ...]]
    faults: ClassVar[Sequence[str]] = ()
    label: ClassVar[str] = ""

    strategy: str
    sent: int = 0
    acknowledged: int = 0
    executed: int = 0
    lost: int = 0
    duplicated: int = 0
    late: int = 0
    recovery: float = 0.0  # seconds after the last fault's end
    statuses: dict[str, int] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.problems

    def judge(self, judge: Judge, rules: Rules = RULES) -> None:
        """Fill in the figures, and a line for each promise that was broken."""
        tries, found = judge.seen.tries, findings(judge, rules)
        self.acknowledged = len({one.delivery for one in tries if one.good})
        self.executed = len({e.delivery for e in judge.main})
        self.recovery = judge.recovery()
        self.statuses = dict(sorted(Counter(str(one.status) for one in tries).items()))
        for rule, figure in _COUNTED.items():
            if hasattr(self, figure):
                setattr(self, figure, len(found.get(rule, ())))
        if not self.acknowledged:
            self.problems.append("nothing was acknowledged")
        if self.recovery > RECOVERY:
            self.problems.append(f"recovered only after {self.recovery} s")
        self.problems += told(found)


@dataclass(kw_only=True)
class RowResult(Result):
    """What a row has shown of one strategy; `sent` are requests."""

    HEAD = ("row", "fault")
    COLUMNS = ("sent", "acknowledged", "executed", "lost", "duplicated", "late", "recovery")

    row: int
    title: str
    label: str = ""  # type: ignore[misc]

    @property
    def key(self) -> tuple[int, str]:
        return self.row, self.strategy

    @property
    def place(self) -> str:
        return f"{self.row:2}"

    @property
    def cells(self) -> tuple[str, ...]:
        return f"{self.row}", f"{self.title}, {self.label}" if self.label else self.title

    def judge(self, judge: Judge, rules: Rules = RULES) -> None:
        super().judge(judge, rules)
        tries, done = judge.seen.tries, judge.main
        self.sent = len(tries)
        self.duplicated = len(done) - self.executed
        # Also where a row allows them.
        if second := len(list(promises.second_ids(judge))):
            self.notes["second_ids"] = second
        good = [one.took for one in tries if one.good]
        self.notes["median_seconds"] = round(median(good), 4) if good else 0.0


@dataclass(kw_only=True)
class SeedResult(Result):
    """What a seed has shown with a strategy; `sent` are deliveries.

    ``schedule`` is what was drawn, ``injected`` when each of it really began and ended.
    """

    HEAD = ("seed",)
    COLUMNS = (
        "sent", "tries", "acknowledged", "executed", "lost", "duplicated", "second_ids",
        "different_answers", "late", "errors_500", "recovery",
    )  # fmt: skip

    seed: int
    seconds: float  # of faults
    tries: int = 0
    second_ids: int = 0
    different_answers: int = 0
    errors_500: int = 0
    schedule: list[str] = field(default_factory=list)
    injected: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, str]:
        return self.seed, self.strategy

    @property
    def place(self) -> str:
        return f"seed {self.seed:3}"

    @property
    def cells(self) -> tuple[str, ...]:
        return (f"{self.seed}",)

    @property
    def faults(self) -> list[str]:
        return self.injected or self.schedule

    def judge(self, judge: Judge, rules: Rules = RULES) -> None:
        super().judge(judge, rules)
        tries, done = judge.seen.tries, judge.main
        self.sent, self.tries = len({one.delivery for one in tries}), len(tries)
        self.duplicated = len(done) - len({e.task_id for e in done})
        self.injected = [
            f"{one.began - judge.began:6.1f} to {one.ended - judge.began:6.1f} s  "
            f"{one.target} {one.kind} {one.detail}".rstrip()
            for one in judge.seen.injected
        ]
        self.notes["machine_delay"] = max((one.delay for one in tries), default=0.0)
        self.notes["late_but_excused"] = sum(map(judge.is_late, tries)) - self.late


@dataclass
class Remains:
    """What gateways hold when nothing is under way, of all their processes."""

    pids: list[int]
    descriptors: int
    memory: int  # bytes
    in_flight: float = 0
    connections: float = 0


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
