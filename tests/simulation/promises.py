"""The promises that hold whether servers are simulated or real: a rule for each.

A rule is a function that finds the places where a promise was broken. The judge that it is given
knows what excuses them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from math import inf

from gateway.config.settings import Config
from tests.simulation.records import (
    FORGETFUL,
    GONE,
    REFUSED,
    RESET,
    SILENT,
    Evidence,
    Execution,
    Injected,
    Try,
)

#: The tasks' names.
MAIN, FURTHER = "simulated.nonce", "simulated.further"
GRACE = 0.5  # seconds after the deadline
CALM = 15.0  # seconds after the last fault until everything has to serve
#: Seconds for which a fault has consequences: a broker and its clients part after two heartbeats.
AFTERMATH = 25.0
#: Faults that end a gateway's process at once.
KILLED = ("killed", "child killed", "killed at")
#: Seconds in which a request and the end of its connection may cross.
CROSSING = 0.5
#: Seconds for which a gateway keeps an idle connection.
IDLE = Config.model_fields["idle_timeout"].default
#: Problems of which the sender is told that the message was not published, or not taken.
REFUSALS = {
    "broker-blocked", "broker-unavailable", "full", "rejected", "results-unavailable",
    "state-unavailable", "unroutable",
}  # fmt: skip
LOST = "connection to the broker was lost"
#: After these, no task need run twice.
HARMLESS = {
    "reloaded", "clients cut", "subscribers cut", "jumps", "read-only", "out of memory",
    "failed over",
}  # fmt: skip
#: A queue without a leader takes messages that it cannot confirm, so that two tries of a delivery
#: may both be published; but no message is delivered twice.
UNCONFIRMED = "leader lost"
STATUSES = {200, 202, 502, 503, 504, GONE, 500, RESET, REFUSED, SILENT}


class Judge:
    """Looks at all that was seen; `began` is the moment from which times are told."""

    #: The routes that know a delivery by its identity.
    identified: Container[str] = ()
    in_order = False  # do the numbers of a delivery's tries say which was earlier?
    unique = True  # does each execution return a word that no other one returns?
    window = inf  # seconds for which a delivery is recognized
    refusals = REFUSALS
    statuses: Container[int | str] = STATUSES

    def __init__(self, seen: Evidence, began: float):
        self.seen, self.began = seen, began
        #: The tasks by which persons have run deliveries again.
        self.again = {one.task_id for one in seen.published}
        self.main = [e for e in seen.executions if e.name == MAIN and e.task_id not in self.again]
        #: Deliveries whose task or result is lost, and may be.
        self.gone: set[str] = set()
        #: Deliveries whose stored result may be another than the first one.
        self.raced: set[str] = set()

    def dead(self, name: str) -> set[str]:
        """Return the deliveries of dead letters for this task."""
        return {delivery for delivery, task in self.seen.dead if task == name}

    def show(self, one: Try) -> str:
        what = f"{one.status} {one.type}".rstrip()
        when = f"at {one.at - self.began:.3f} s"
        return f"{one.id} {when} {one.route} {one.gateway} {what} after {one.took:.3f} s"

    def hit(self, since: float, until: float, *kinds: str, target: str = "") -> bool:
        """Was there such a fault meanwhile? No kinds: any."""
        return any(
            one.overlaps(since, until) and (not kinds or one.kind in kinds) and target in one.target
            for one in self.seen.injected
        )

    def forgot(self) -> bool:
        """Has Redis lost what it had confirmed?"""
        return any(one.kind in FORGETFUL for one in self.seen.injected)

    def lapses(self, fault: Injected) -> bool:
        """Tell whether it makes claims lapse whose tasks still run."""
        return False

    def is_late(self, one: Try) -> bool:
        raise NotImplementedError

    def held_up(self, one: Try) -> bool:
        """Tell whether something excuses that a try was answered late."""
        raise NotImplementedError

    def explained(self, one: Try) -> bool:
        """Tell whether a fault may have such a status."""
        return one.status in self.statuses

    def unpublished(self, one: Try) -> bool:
        """Tell whether a try was told that nothing had been published or taken."""
        vague = one.type == "broker-unavailable" and LOST in one.detail
        return one.status == 503 and one.type in self.refusals and not vague

    def unwritten(self, one: Try) -> bool:
        """Tell whether nobody may have written the end that a try was answered with."""
        return False

    def has_failed(self, runs: list[Execution]) -> bool:
        """Tell whether a task is known to have failed; `runs` are its executions."""
        return any(e.failed for e in runs)


def lost(judge: Judge) -> Iterator[str]:
    """Find what was acknowledged and not executed, with its further tasks."""
    ran = {e.delivery for e in judge.main}
    further = {e.delivery for e in judge.seen.executions if e.name == FURTHER}
    excused = {e.delivery for e in judge.seen.executions if e.lost}
    ran |= excused | judge.dead(MAIN)
    further |= excused | judge.dead(FURTHER)
    for one in _firsts(one for one in judge.seen.tries if one.good):
        if one.delivery not in ran:
            yield judge.show(one)
        elif one.route == "/also" and one.delivery not in further:
            yield f"{judge.show(one)}: its further task has not run"


def unacknowledged(judge: Judge) -> Iterator[str]:
    """Find deliveries that nobody has taken, however often they were tried."""
    taken = {one.delivery for one in judge.seen.tries if one.good}
    last = {
        one.delivery: one
        for one in judge.seen.tries
        if one.delivery not in taken | judge.gone
        and one.route in judge.identified
        and not (one.failing or one.hasty)
    }
    yield from map(judge.show, last.values())


def wrong(judge: Judge) -> Iterator[str]:
    """Find answers that are another delivery's, or no task's."""
    made = {f"{e.delivery} {e.nonce}" for e in judge.main if not e.failed}
    answers = [
        (judge.show(one), one.delivery, one.body) for one in judge.seen.tries if one.status == 200
    ]
    read = [(f"{delivery}'s result", delivery, text) for delivery, text in judge.seen.read]
    for shown, delivery, text in [*answers, *read]:
        if text.partition(" ")[0] != delivery or (judge.unique and text not in made):
            yield f"{shown} {text!r}"


def different(judge: Judge) -> Iterator[str]:
    """Find deliveries of which two answers carry different results."""
    if judge.forgot():
        return
    answers: dict[str, dict[str, None]] = defaultdict(dict)
    for one in judge.seen.tries:
        if one.status == 200 and one.route in judge.identified and not judge.unwritten(one):
            answers[one.delivery][one.body] = None
    for delivery, text in judge.seen.read:
        if delivery in answers:
            answers[delivery][text] = None
    for delivery, texts in answers.items():
        if len(texts) > 1 and delivery not in judge.raced:
            yield " and ".join(texts)


def second_ids(judge: Judge) -> Iterator[str]:
    """Find deliveries that ran under another task id though an earlier one had not failed."""
    if judge.forgot():
        return
    firsts = {one.delivery: one for one in _firsts(judge.seen.tries)}
    tasks: dict[str, dict[str, list[Execution]]] = defaultdict(lambda: defaultdict(list))
    for e in sorted(judge.seen.executions, key=_number):
        first = firsts.get(e.delivery)
        if first is None or first.route not in judge.identified or e.task_id in judge.again:
            continue
        if e.at <= first.at + judge.window:
            tasks[f"{e.delivery} {e.name}"][e.task_id].append(e)
    for name, runs in tasks.items():
        unfailed = [task for task, all_ in runs.items() if not judge.has_failed(all_)]
        if len(unfailed) > 1 or (judge.in_order and set(unfailed) - {list(runs)[-1]}):
            yield f"{name} as {', '.join(runs)}, without a failure of {', '.join(unfailed)}"


def refused_and_run(judge: Judge) -> Iterator[str]:
    """Find tasks of tries that were told that nothing had been published or taken."""
    ran = {e.attempt for e in judge.main}
    for one in judge.seen.tries:
        if judge.unpublished(one) and one.id in ran:
            yield judge.show(one)


def repeated(judge: Judge) -> Iterator[str]:
    """Find tasks that ran twice though nothing had cut a worker or its broker off."""
    runs: dict[str, list[Execution]] = defaultdict(list)
    for e in judge.seen.executions:
        runs[e.task_id].append(e)
    times = Counter(one.task_id for one in judge.seen.published)
    for task_id, executions in runs.items():
        if len(executions) < 2 or times[task_id] > 1:
            continue
        first, last = executions[0].at, executions[-1].at
        tries = len({e.attempt for e in executions})
        harmless = HARMLESS if tries == len(executions) else HARMLESS | {UNCONFIRMED}
        causes = [
            one
            for one in judge.seen.injected
            if (one.kind not in harmless or judge.lapses(one))
            and one.overlaps(first - AFTERMATH, last)
        ]
        if not causes:
            yield f"{executions[0].attempt} {len(executions)} times"


def late(judge: Judge) -> Iterator[str]:
    """Find answers after the deadline, where the gateway itself ran and was reached."""
    for one in judge.seen.tries:
        if judge.is_late(one) and not judge.held_up(one):
            yield judge.show(one)


def internal(judge: Judge) -> Iterator[str]:
    """Find requests that the gateway had an error of its own with, and what it has logged."""
    yield from (judge.show(one) for one in judge.seen.tries if one.status == 500)
    yield from judge.seen.logged


def dropped(judge: Judge) -> Iterator[str]:
    """Find connections that ended without an answer though nobody had killed the gateway."""
    for one in judge.seen.tries:
        killed = judge.hit(one.at - 0.1, one.answered, *KILLED, target=one.gateway)
        away = one.status == REFUSED and judge.hit(
            one.at - 0.1, one.answered, "drained", target=one.gateway
        )
        # It was sent on an idle connection that was just being closed.
        frozen = judge.hit(one.at, one.answered, "frozen", target=one.gateway)
        crossed = one.reused and (one.took < CROSSING or frozen)
        restarting = crossed and judge.hit(
            one.at - 20, one.answered, "reloaded", "drained", target=one.gateway
        )
        if one.status in (RESET, REFUSED) and not (killed or away or restarting or expired(one)):
            yield judge.show(one)


def expired(one: Try) -> bool:
    """Was a try sent just when its connection ended, because it had been idle for long?"""
    return one.status == RESET and one.took < CROSSING and one.idle > IDLE - CROSSING


def unnamed(judge: Judge) -> Iterator[str]:
    """Find statuses that no outage explains."""
    yield from (judge.show(one) for one in judge.seen.tries if not judge.explained(one))


#: What is judged of real servers as well.
RULES: Mapping[str, Callable[[Judge], Iterable[str]]] = {
    "lost": lost,
    "never acknowledged": unacknowledged,
    "another's answer, or nobody's": wrong,
    "different answers": different,
    "second task ids": second_ids,
    "refused, and run": refused_and_run,
    "run again without a cause": repeated,
    "late": late,
    "errors of its own": internal,
    "dropped by a gateway that was not killed": dropped,
    "a status that no fault explains": unnamed,
}


def findings(
    judge: Judge, rules: Mapping[str, Callable[..., Iterable[str]]]
) -> dict[str, list[str]]:
    """Return the places that each rule has found, by the rules that have found some."""
    found = {name: list(rule(judge)) for name, rule in rules.items()}
    return {name: places for name, places in found.items() if places}


def told(found: Mapping[str, list[str]]) -> list[str]:
    """Return a line for each promise that was broken, with the first few places."""
    return [f"{name}: {len(places)} ({'; '.join(places[:3])})" for name, places in found.items()]


def _firsts(tries: Iterable[Try]) -> Iterable[Try]:
    """Return the first of each delivery's."""
    return {one.delivery: one for one in reversed(list(tries))}.values()


def _number(execution: Execution) -> int:
    """Return which try of its delivery has published an execution's task."""
    return int(execution.attempt.rpartition(".")[2] or 0)
