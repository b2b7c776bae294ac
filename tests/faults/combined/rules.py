"""Which promises a lane has broken: a function for each finds the places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.faults.client import REFUSED, RESET, SILENT
from tests.faults.combined import schedule
from tests.faults.combined.injection import Injected
from tests.faults.combined.senders import DEADLINES, GONE, Try
from tests.faults.oracle import GRACE, Execution

STANDSTILL = 0.3  # seconds for which a machine may hold up what is late all the same
#: Seconds for which a fault has consequences: a broker and its clients part after two heartbeats.
AFTERMATH = 25.0
#: What answers a try while servers are away.
STATUSES = {200, 202, 502, 503, 504, GONE}
#: Problems of which the sender is told that the message was not published, or not taken.
REFUSALS = {
    "broker-blocked",
    "broker-unavailable",
    "draining",
    "full",
    "rejected",
    "results-unavailable",
    "state-unavailable",
    "unroutable",
}
#: Of these strategies a `broker-unavailable` may also be a connection lost before the confirm,
#: and does not say so.
VAGUE = {"blocking", "gevent", "threadpool"}
LOST = "connection to the broker was lost"
#: After these, no task need run twice.
HARMLESS = {schedule.RELOADED, schedule.CLIENTS, schedule.SUBSCRIBERS}


@dataclass
class Evidence:
    """What a lane has shown.

    `failed` are the task ids whose stored result is a failure, `read` are the texts found where
    a 202 had said that the result would be, by delivery.
    """

    strategy: str
    tries: list[Try]
    done: list[Execution]
    injected: list[Injected]
    failed: set[str] = field(default_factory=set)
    read: dict[str, str] = field(default_factory=dict)

    @property
    def began(self) -> float:
        return min(one.began for one in self.injected)

    @property
    def ended(self) -> float:
        return max(one.ended for one in self.injected)

    def hit(self, one: Try, *kinds: str) -> bool:
        """Did the gateway of a try suffer one of these faults meanwhile?"""
        return any(
            each.fault.target == one.gateway
            and each.fault.kind in kinds
            and each.overlaps(one.at, one.answered)
            for each in self.injected
        )

    def show(self, one: Try) -> str:
        """Show a try in a few words, with the seconds since the first fault."""
        what = f"{one.status} {one.type}".rstrip()
        when = f"at {one.at - self.began:.1f} s"
        return f"{one.id} {when} {one.route} {one.gateway} {what} after {one.seconds:.2f} s"


def lost(seen: Evidence) -> Iterator[str]:
    """Find what was acknowledged and not executed."""
    executed = {one.id for one in seen.done}
    for one in _firsts(one for one in seen.tries if one.good):
        if one.delivery not in executed:
            end = f", and {one.task} has failed" if one.task in seen.failed else ""
            yield seen.show(one) + end


def unacknowledged(seen: Evidence) -> Iterator[str]:
    """Find deliveries that nobody has taken, however often they were tried."""
    acknowledged = {one.delivery for one in seen.tries if one.good}
    last = {one.delivery: one for one in seen.tries if one.delivery not in acknowledged}
    yield from map(seen.show, last.values())


def wrong(seen: Evidence) -> Iterator[str]:
    """Find answers that are another delivery's, or no task's."""
    made = {f"{one.id} {one.nonce}" for one in seen.done}
    for one in seen.tries:
        if one.status == 200 and (one.body not in made or not _is_of(one.body, one.delivery)):
            yield f"{seen.show(one)} {one.body!r}"
    for delivery, text in seen.read.items():
        if text not in made or not _is_of(text, delivery):
            yield f"{delivery}'s result {text!r}"


def different(seen: Evidence) -> Iterator[str]:
    """Find deliveries of which two answers carry different results."""
    answers = defaultdict(set)
    for one in seen.tries:
        if one.status == 200:
            answers[one.delivery].add(one.body)
    for delivery, text in seen.read.items():
        answers[delivery].add(text)
    for texts in answers.values():
        if len(texts) > 1:
            yield " and ".join(sorted(texts))


def second_ids(seen: Evidence) -> Iterator[str]:
    """Find deliveries that ran under another task id though the earlier one had not failed."""
    failed = seen.failed | {one.task for one in seen.tries if one.type == "task-failed"}
    tasks: dict[str, dict[str, int]] = defaultdict(dict)
    for one in seen.done:
        number = int(one.by.rpartition(".")[2])
        tasks[one.id][one.task] = min(number, tasks[one.id].get(one.task, number))
    for delivery, first in tasks.items():
        *earlier, _last = sorted(first, key=first.__getitem__)
        if unfailed := [task for task in earlier if task not in failed]:
            yield f"{delivery} as {', '.join(sorted(first, key=first.__getitem__))}" + (
                f", without a failure of {', '.join(unfailed)}"
            )


def refused_and_run(seen: Evidence) -> Iterator[str]:
    """Find tasks of tries that were told that nothing had been published or taken."""
    ran = {one.by for one in seen.done}
    for one in seen.tries:
        lost_before_confirm = one.type == "broker-unavailable" and (
            seen.strategy in VAGUE or LOST in one.detail
        )
        refused = one.status == 503 and one.type in REFUSALS and not lost_before_confirm
        if refused and one.id in ran:
            yield seen.show(one)


def repeated(seen: Evidence) -> Iterator[str]:
    """Find tasks that ran twice though nothing had cut a worker or its broker off."""
    first = {one.delivery: one.at for one in reversed(seen.tries)}
    runs = defaultdict(list)
    for one in seen.done:
        runs[one.task].append(one)
    for executions in runs.values():
        since, until = first[executions[0].id], max(one.at for one in executions)
        causes = [
            one
            for one in seen.injected
            if one.fault.kind not in HARMLESS and one.overlaps(since - AFTERMATH, until)
        ]
        if len(executions) > 1 and not causes:
            yield f"{executions[0].id} {len(executions)} times"


def late(seen: Evidence) -> Iterator[str]:
    """Find answers after the deadline, where neither machine nor gateway stood still."""
    for one in seen.tries:
        stood_still = one.delay > STANDSTILL or seen.hit(one, schedule.FROZEN, schedule.KILLED)
        if is_late(one) and not stood_still:
            yield seen.show(one)


def internal(seen: Evidence) -> Iterator[str]:
    """Find requests that the gateway had an error of its own with."""
    yield from (seen.show(one) for one in seen.tries if one.status == 500)


def dropped(seen: Evidence) -> Iterator[str]:
    """Find connections that ended without an answer though nobody had killed the gateway."""
    for one in seen.tries:
        killed = seen.hit(one, schedule.KILLED, schedule.CHILD)
        if one.status in (RESET, REFUSED) and not killed:
            yield seen.show(one)


def unnamed(seen: Evidence) -> Iterator[str]:
    """Find statuses that no outage explains."""
    explained = STATUSES | {500, RESET, REFUSED, SILENT}  # these have rules of their own
    yield from (seen.show(one) for one in seen.tries if one.status not in explained)


def outside(seen: Evidence) -> Iterator[str]:
    """Find what failed before the first fault."""
    for one in seen.tries:
        if not one.good and one.status != GONE and one.answered < seen.began:
            yield seen.show(one)


RULES: dict[str, Callable[[Evidence], Iterable[str]]] = {
    "lost": lost,
    "never acknowledged": unacknowledged,
    "another's answer, or nobody's": wrong,
    "different answers": different,
    "second task ids": second_ids,
    "refused, and run": refused_and_run,
    "run again without a cause": repeated,
    "late": late,
    "500": internal,
    "dropped by a gateway that was not killed": dropped,
    "a status that no fault explains": unnamed,
    "failed before the first fault": outside,
}


def is_late(one: Try) -> bool:
    return one.status != GONE and one.seconds > DEADLINES[one.route] + GRACE


def _is_of(text: str, delivery: str) -> bool:
    return text.partition(" ")[0] == delivery


def _firsts(tries: Iterable[Try]) -> Iterable[Try]:
    """Return the first of each delivery's."""
    return {one.delivery: one for one in reversed(list(tries))}.values()
