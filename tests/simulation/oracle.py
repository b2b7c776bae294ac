"""The rules: a function for each finds the places where a promise was broken.

A further rule is a function here with an entry in `RULES`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING

from gateway.journal.groups import FAILURES
from tests.simulation import histories
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
from tests.simulation.senders import DEADLINES, IDENTIFIED

if TYPE_CHECKING:
    from tests.simulation.world import World

#: The tasks' names.
MAIN, FURTHER = "simulated.nonce", "simulated.further"
GRACE = 0.5  # seconds after the deadline
CALM = 15.0  # seconds after the last fault until everything has to serve
START = 4.5  # seconds from the end of a process until the next accepts connections, at most
CONFIRM = 3.0  # seconds that a gateway waits for a confirm
SLOW = 1.0  # seconds that an answer may take beside its task
#: Seconds for which a fault has consequences: a broker and its clients part after two heartbeats.
AFTERMATH = 25.0
#: Problems of which the sender is told that the message was not published, or not taken.
REFUSALS = {
    "broker-blocked", "broker-unavailable", "full", "rejected", "results-unavailable",
    "state-unavailable", "unroutable",
}  # fmt: skip
#: Why a delivery is not run again though nothing is broken.
REFUSED_REPLAYS = ("another replay", "had no message", "interrupted")
LOST = "connection to the broker was lost"
#: After these, no task need run twice.
HARMLESS = {
    "reloaded", "clients cut", "subscribers cut", "jumps", "read-only", "out of memory",
    "failed over",
}  # fmt: skip
#: A queue without a leader takes messages that it cannot confirm, so that two tries of a delivery
#: may both be published; but no message is delivered twice.
UNCONFIRMED = "leader lost"
#: Faults that end connections, and the seconds until what was missed has to be fetched.
CUTS = {"connections closed", "reset", "subscribers cut", "clients cut"}
CUT, CUT_AFTER = 1.0, 6.0
#: Seconds after its answer for which a delivery may wait to be written to the journal.
UNWRITTEN = 60.0
BACK = 3.0  # seconds in which a gateway has found out that Redis is there again, and what it has
STATUSES = {200, 202, 502, 503, 504, GONE, 500, RESET, REFUSED, SILENT}


class Judge:
    """Looks at all that a world has shown."""

    def __init__(self, world: World):
        self.world = world
        self.seen: Evidence = world.evidence
        #: The tasks by which persons have run deliveries again.
        self.again = {one.task_id for one in self.seen.published}
        self.main = [
            e for e in self.seen.executions if e.name == MAIN and e.task_id not in self.again
        ]
        #: Deliveries whose task or result is lost: by Redis, or with an early acknowledgement; or
        #: whose message was delivered too often, and is a dead letter.
        self.gone = {e.delivery for e in self.seen.executions if e.lost}
        self.gone |= self.dead(MAIN)
        forgot = [one.ended for one in self.seen.injected if one.kind in FORGETFUL]
        self.gone |= {t.delivery for t in self.seen.tries if t.at <= max(forgot, default=0.0)}

    def dead(self, name: str) -> set[str]:
        """Return the deliveries of dead letters for this task."""
        return {delivery for delivery, task in self.seen.dead if task == name}

    def show(self, one: Try) -> str:
        what = f"{one.status} {one.type}".rstrip()
        when = f"at {one.at - self.world.began:.3f} s"
        return f"{one.id} {when} {one.route} {one.gateway} {what} after {one.took:.3f} s"

    def hit(self, since: float, until: float, *kinds: str, target: str = "") -> bool:
        """Was there such a fault meanwhile? No kinds: any."""
        return any(
            one.began <= until
            and since <= one.ended
            and (not kinds or one.kind in kinds)
            and target in one.target
            for one in self.seen.injected
        )

    def forgot(self) -> bool:
        """Has Redis lost what it had confirmed?"""
        return any(one.kind in FORGETFUL for one in self.seen.injected)

    def served(self, one: Try) -> bool:
        """Was everything there for long when a try began, and until its end?"""
        return one.at > self.seen.ready and not self.hit(one.at - CALM, one.answered)


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
        if one.delivery not in taken | judge.gone and one.route in IDENTIFIED and not one.failing
    }
    yield from (judge.show(one) for one in last.values() if one.status != GONE)


def wrong(judge: Judge) -> Iterator[str]:
    """Find answers that are another delivery's, or no task's."""
    made = {f"{e.delivery} {e.nonce}" for e in judge.main if not e.failed}
    for one in judge.seen.tries:
        own = one.body.partition(" ")[0] == one.delivery
        if one.status == 200 and (one.body not in made or not own):
            yield f"{judge.show(one)} {one.body!r}"
    for delivery, text in judge.seen.read:
        if text not in made or text.partition(" ")[0] != delivery:
            yield f"{delivery}'s result {text!r}"


def different(judge: Judge) -> Iterator[str]:
    """Find deliveries of which two answers carry different results."""
    if judge.forgot():
        return
    answers: dict[str, dict[str, None]] = defaultdict(dict)
    for one in judge.seen.tries:
        if one.status == 200 and one.route in IDENTIFIED:
            answers[one.delivery][one.body] = None
    for texts in answers.values():
        if len(texts) > 1:
            yield " and ".join(texts)


def second_ids(judge: Judge) -> Iterator[str]:
    """Find deliveries that ran under another task id though the earlier one had not failed."""
    if judge.forgot():
        return
    routes = {one.delivery: one.route for one in judge.seen.tries}
    tasks: dict[str, dict[str, list[Execution]]] = defaultdict(lambda: defaultdict(list))
    for e in judge.seen.executions:
        if routes.get(e.delivery) in IDENTIFIED and e.task_id not in judge.again:
            tasks[f"{e.delivery} {e.name}"][e.task_id].append(e)
    for name, runs in tasks.items():
        unfailed = [task for task, all_ in runs.items() if not any(e.failed for e in all_)]
        if len(unfailed) > 1:
            yield f"{name} as {', '.join(runs)}"


def refused_and_run(judge: Judge) -> Iterator[str]:
    """Find tasks of tries that were told that nothing had been published or taken."""
    ran = {e.attempt for e in judge.main}
    for one in judge.seen.tries:
        vague = one.type == "broker-unavailable" and LOST in one.detail
        if one.status == 503 and one.type in REFUSALS and not vague and one.id in ran:
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
            if one.kind not in harmless and one.began <= last and first - AFTERMATH <= one.ended
        ]
        if not causes:
            yield f"{executions[0].attempt} {len(executions)} times"


def late(judge: Judge) -> Iterator[str]:
    """Find answers after the deadline, where the gateway itself ran and was reached."""
    for one in judge.seen.tries:
        frozen = judge.hit(one.at, one.answered, "frozen", target=one.gateway)
        # A connection waits in the system's queue until a new process has its own connections.
        ended = ("killed", "child killed", "killed at", "drained")
        excused = frozen or judge.hit(one.at - START, one.answered, *ended, target=one.gateway)
        answered = type(one.status) is int or one.status == SILENT
        if answered and one.took > DEADLINES[one.route] + GRACE and not excused:
            yield judge.show(one)


def internal(judge: Judge) -> Iterator[str]:
    """Find requests that the gateway had an error of its own with, and what it has logged."""
    yield from (judge.show(one) for one in judge.seen.tries if one.status == 500)
    yield from judge.seen.logged
    yield from judge.world.redis.errors


def dropped(judge: Judge) -> Iterator[str]:
    """Find connections that ended without an answer though nobody had killed the gateway."""
    for one in judge.seen.tries:
        killed = judge.hit(
            one.at - 0.1, one.answered, "killed", "child killed", "killed at", "drained",
            target=one.gateway,
        )  # fmt: skip
        restarting = one.reused and judge.hit(
            one.at - 20, one.answered, "reloaded", target=one.gateway
        )
        if one.status in (RESET, REFUSED) and not killed and not restarting:
            yield judge.show(one)


def unnamed(judge: Judge) -> Iterator[str]:
    """Find statuses that no outage explains."""
    for one in judge.seen.tries:
        # The body waits while the process that has read the header is frozen.
        frozen = one.status == 408 and judge.hit(one.at, one.answered, "frozen", target=one.gateway)
        if one.status not in STATUSES and not frozen:
            yield judge.show(one)


def unavailable(judge: Judge) -> Iterator[str]:
    """Find what failed or was slow though everything was there."""
    for one in judge.seen.tries:
        if one.status == GONE or not judge.served(one) or one.delivery in judge.gone:
            continue
        if not one.good:
            failed = one.status == 502 and one.type == "task-failed" and one.failing
            overdue = one.status == 504 and one.seconds > DEADLINES[one.route] - SLOW
            if not (failed or overdue):
                yield judge.show(one)
        elif one.took > (one.seconds if one.status == 200 else 0) + SLOW and one.number == 1:
            if one.status == 202 and one.route == "/later":
                continue
            yield f"{judge.show(one)}: slow"


def forgotten(judge: Judge) -> Iterator[str]:
    """Find tries that were answered without their result though it was stored for long.

    Only where nothing but connections was lost, which is noticed at once, or where Redis was
    killed or failed over, and is there again for long.
    """
    stored: dict[str, float] = {}
    for e in judge.main:
        if not e.failed and not e.lost:
            stored[e.delivery] = min(stored.get(e.delivery, inf), e.stored)
    for one in judge.seen.tries:
        since = stored.get(one.delivery, inf)
        others = [
            each
            for each in judge.seen.injected
            if each.began <= one.answered
            and one.at - CUT_AFTER <= each.ended
            and _hides(each, one, judge.seen.strategy)
        ]
        back = one.answered - BACK
        if since < back and all(_is_back(each, back) for each in others):
            others = []
        late = one.type == "deadline-passed" or (one.status == 202 and one.route == "/later")
        known = one.route in IDENTIFIED and one.delivery not in judge.gone
        if late and known and since < one.answered - CUT and not others:
            yield judge.show(one)


def _is_back(fault: Injected, since: float) -> bool:
    away = fault.target == "redis" and fault.kind in ("killed", "failed over")
    return away and fault.ended < since


def _hides(fault: Injected, one: Try, strategy: str) -> bool:
    """Tell whether a fault may hide from a try that a result is stored."""
    target, _, server = fault.target.partition(">")
    if fault.kind in CUTS or (target == "broker" and fault.kind == "killed"):
        return False
    if target.startswith("gateway"):
        return target == one.gateway and (strategy == "pika" or server != "broker")
    # Replies are lost with the broker, and with a worker's connection to it.
    return target == "redis" or (strategy == "pika" and (target == "broker" or server == "broker"))


def slow_refusals(judge: Judge) -> Iterator[str]:
    """Find refusals that came late though the gateway could know that the broker takes nothing."""
    for one in judge.seen.tries:
        since = one.at - AFTERMATH
        if one.type != "not-confirmed" or one.number != 1 or one.route == "/also":
            continue
        others = [
            each
            for each in judge.seen.injected
            if each.began <= one.answered and since <= each.ended and each.target != "broker"
        ]
        # The broker tells of an alarm when something is published.
        blocked = any(
            each.kind == "alarm"
            and one.answered < each.ended
            and any(
                each.began < other.at < one.at - SLOW
                and other.gateway == one.gateway
                and other.type in ("not-confirmed", "broker-blocked")
                for other in judge.seen.tries
            )
            for each in judge.seen.injected
        )
        alone = not judge.hit(
            since, one.answered, "killed", "frozen", "jumps", "leader lost", target="broker"
        )
        if not others and (one.took > CONFIRM + SLOW or (blocked and alone)):
            yield judge.show(one)


def left(judge: Judge) -> Iterator[str]:
    """Find what was not given back, or not ended."""
    yield from judge.seen.left


def journal(judge: Judge) -> Iterator[str]:
    """Find entries that contradict what was seen, and counts and bytes that are wrong."""
    if not judge.world.inspected:
        return
    entries, size = judge.world.inspected["entries"], judge.world.inspected["size"]
    deliveries = sum(bool(entry.queue) for entry in entries)
    if size.deliveries != deliveries:
        yield f"it says {size.deliveries} deliveries, and has {deliveries}"
    total = judge.world.inspected["bytes"]
    if size.bytes != total:
        yield f"it says {size.bytes} bytes, and has {total}"
    if judge.forgot():
        return
    succeeded = {e.task_id for e in judge.seen.executions if not e.failed}
    failed = {e.task_id for e in judge.seen.executions if e.failed}
    for entry in entries:
        name = f"{entry.delivery['id']} ({entry.state}, {entry.task_id})"
        if entry.state == "succeeded" and entry.task_id not in succeeded:
            yield f"{name} has not succeeded"
        if entry.state == "failed" and entry.task_id not in failed:
            yield f"{name} has not failed"
    failures = sum(entry.state in FAILURES for entry in entries)
    earlier = sum(run["state"] in FAILURES for entry in entries for run in entry.runs)
    counted = sum(group.count for group in judge.world.inspected["groups"])
    if not failures <= counted <= failures + earlier:
        yield f"{counted} failures are counted, of {failures} and {earlier} before a replay"
    there = {entry.arguments()[0][1]["x-try"] for entry in entries if entry.queue}
    for one in judge.seen.tries:
        if one.good and one.id not in there and not _unwritten(judge, one):
            yield f"{judge.show(one)} is missing"


def _unwritten(judge: Judge, one: Try) -> bool:
    """Tell whether a try that was answered well may be missing in the journal."""
    since, until = one.at - 1.0, one.answered + UNWRITTEN
    if judge.hit(since, until, "out of memory"):
        return True
    away = any(judge.hit(since, one.answered, target=each) for each in ("redis", one.gateway))
    if one.status == 202 and not away:
        return False  # it has waited for the journal
    until = until if away else one.answered + SLOW
    killed = judge.hit(one.at, until, "killed", "child killed", "killed at", target=one.gateway)
    return killed or any(
        name == one.gateway and one.at <= at <= until for name, at in judge.seen.ended
    )


def replays(judge: Judge) -> Iterator[str]:
    """Find deliveries that persons ran twice, or not though they were told so."""
    ran = {e.task_id for e in judge.seen.executions}
    runs: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for one in judge.seen.published:
        delivery = one.attempt.partition(".")[0]
        if one.taken and one.task_id not in ran and delivery not in judge.gone:
            yield f"{one.attempt}, published as {one.task_id}, has not run"
        if one.beside:
            yield f"{one.attempt} is published as {one.task_id} by two at once"
        if one.task_id in ran:
            runs[one.entry, one.before][one.task_id] = None
            sent = [o.taken for o in judge.seen.published if o.task_id == one.task_id]
            if sent == [False]:
                yield f"{one.attempt} has run as {one.task_id}, which was not taken"
    if not judge.forgot():
        for (entry, before), tasks in runs.items():
            if len(tasks) > 1:
                yield f"{entry} was run twice after {before}: as {' and '.join(tasks)}"
    taken = {one.task_id for one in judge.seen.published if one.taken}
    for told in judge.seen.replays:
        if told.task_id and not told.problem and told.task_id not in taken:
            yield f"{told.entry} is said to run as {told.task_id}, which was not taken"
        collided = any(text in told.problem for text in REFUSED_REPLAYS)
        broken = judge.hit(told.began - CALM, told.ended) or told.began < judge.seen.ready
        if told.problem and not (collided or broken):
            yield f"{told.entry} was not run again though nothing is broken: {told.problem}"


def claims(judge: Judge) -> Iterator[str]:
    """Find claims whose answers no order of the operations explains."""
    losses = [one.began for one in judge.seen.injected if one.kind in FORGETFUL]
    steady = not any(one.target == "redis" and one.kind == "jumps" for one in judge.seen.injected)
    for key, whole in judge.world.histories.items():
        history = histories.until_loss(whole, losses)
        wrong = histories.unexplained(history, steady)
        if wrong is not None:
            told = histories.worded(wrong, history, judge.world.began)
            yield f"claim {histories.name_of(key)}: {told}"


RULES: dict[str, Callable[[Judge], Iterable[str]]] = {
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
    "unavailable though nothing is broken": unavailable,
    "answered without a result that was there": forgotten,
    "refused late": slow_refusals,
    "left behind": left,
    "journal": journal,
    "replays": replays,
    "claims are not linearizable": claims,
}


def judge(world: World) -> list[str]:
    """Return a line for each promise that was broken."""
    eye = Judge(world)
    found = []
    for name, rule in RULES.items():
        places = list(rule(eye))
        if places:
            found.append(f"{name}: {len(places)} ({'; '.join(places[:3])})")
    return found


def _firsts(tries: Iterable[Try]) -> Iterable[Try]:
    """Return the first of each delivery's."""
    return {one.delivery: one for one in reversed(list(tries))}.values()
