"""The rules: a function for each finds the places where a promise was broken.

A further rule is a function here with an entry in `RULES`; `promises.py` has those that hold of
real servers as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from gateway.journal.entry import OPEN
from gateway.journal.groups import FAILURES
from tests.simulation import histories, promises
from tests.simulation.gateways import WINDOW
from tests.simulation.late_answers import late_answers
from tests.simulation.promises import AFTERMATH, CALM, GRACE, KILLED, MAIN, findings
from tests.simulation.records import FORGETFUL, GONE, SILENT, Execution, Injected, Try
from tests.simulation.senders import DEADLINES, HASTY, IDENTIFIED, LATE, TRIES, TRY_AFTER
from tests.simulation.workers import STOCK

if TYPE_CHECKING:
    from tests.simulation.world import World

ENDED = ("reloaded", "drained")  # faults after which a process ends by itself
START = 4.5  # seconds from the end of a process until the next accepts connections, at most
CONFIRM = 3.0  # seconds that a gateway waits for a confirm
SLOW = 1.0  # seconds that an answer may take beside its task
#: Faults that end connections, and the seconds until what was missed has to be fetched.
CUTS = {"connections closed", "reset", "subscribers cut", "clients cut"}
CUT, CUT_AFTER = 1.0, 6.0
#: Seconds after which a connection that a firewall has forgotten is noticed: of two PINGs, five
#: seconds apart, the second one has no reply within another five.
UNNOTICED = 11.0
#: Seconds after a cut for which a worker may have no connection for its replies.
NO_REPLIES = 3.0
#: Seconds after its answer for which a delivery may wait to be written to the journal.
UNWRITTEN = 60.0
#: Why a delivery is not run again though nothing is broken.
REFUSED_REPLAYS = ("another replay", "another try", "had no message", "interrupted", "by now")
BACK = 3.0  # seconds in which a gateway has found out that Redis is there again, and what it has
PATIENCE = 1.0  # seconds that a gateway waits for Redis
JOURNAL = 0.4  # seconds that an acceptance waits for the journal


class Judge(promises.Judge):
    """Looks at all that a world has shown."""

    identified = (*IDENTIFIED, HASTY, LATE)
    window = WINDOW

    def __init__(self, world: World):
        super().__init__(world.evidence, world.began)
        self.world = world
        #: Deliveries whose task or result is lost: by Redis, or with an early acknowledgement; or
        #: whose message was delivered too often, and is a dead letter.
        self.gone = {e.delivery for e in self.seen.executions if e.lost}
        self.gone |= self.dead(MAIN)
        forgot = [one.ended for one in self.seen.injected if one.kind in FORGETFUL]
        self.gone |= {t.delivery for t in self.seen.tries if t.at <= max(forgot, default=0.0)}
        self.raced = set(_raced(world))

    def served(self, one: Try) -> bool:
        """Was everything there for long when a try began, and until its end?"""
        # A broker on a connection that is forgotten without a word is missed after two heartbeats.
        gone = self.hit(one.at - AFTERMATH, one.answered, "swallowed", target=one.gateway)
        # A lease from before Redis' clock was set back may last as long as the longest there is.
        leased = self.hit(one.at - AFTERMATH, one.answered, "jumps", target="redis")
        broken = gone or leased or self.hit(one.at - CALM, one.answered)
        return one.at > self.seen.ready and not broken

    def lapses(self, fault: Injected) -> bool:
        # Results and claims are kept by Redis' clock.
        jumps = fault.kind == "jumps" and fault.target == "redis"
        return jumps and float(fault.detail) >= self.world.expires

    def is_late(self, one: Try) -> bool:
        answered = type(one.status) is int or one.status == SILENT
        return answered and one.took > DEADLINES[one.route] + GRACE

    def held_up(self, one: Try) -> bool:
        # A connection waits in the system's queue until a new process has its own connections.
        return self._frozen(one) or self.hit(
            one.at - START, one.answered, *KILLED, "drained", target=one.gateway
        )

    def explained(self, one: Try) -> bool:
        # The body waits while the process that has read the header is frozen.
        return super().explained(one) or (one.status == 408 and self._frozen(one))

    def unwritten(self, one: Try) -> bool:
        # The gateway has it from a reply. Before Redis is there again, it is killed, or the message
        # is delivered again, as its worker cannot store the result, either.
        runs = [e.at for e in self.main if e.delivery == one.delivery]
        return self.seen.strategy == "pika" and any(
            fault.overlaps(one.answered - BACK, one.answered + BACK)
            and (
                self.hit(one.answered, fault.ended + BACK, *KILLED, target=one.gateway)
                or any(one.answered < at < fault.ended + BACK for at in runs)
            )
            for fault in self.seen.injected
            if "redis" in fault.target
        )

    def _frozen(self, one: Try) -> bool:
        return self.hit(one.at, one.answered, "frozen", target=one.gateway)


def _raced(world: World) -> Iterator[str]:
    """Yield the deliveries whose task a stock worker ran twice at once.

    Each run looks for a success before one is stored, so the second one replaces the first.
    """
    stock = {worker.name for worker in world.workers.values() if worker.order == STOCK}
    runs: dict[str, list[Execution]] = defaultdict(list)
    for e in world.evidence.executions:
        if not e.failed:
            runs[e.task_id].append(e)
    for each in runs.values():
        each.sort(key=lambda e: e.at)
        at_once = any(later.at <= earlier.stored for earlier, later in pairwise(each))
        if at_once and any(e.worker in stock for e in each):
            yield each[0].delivery


def internal(judge: Judge) -> Iterator[str]:
    """Find errors of the gateway's own, and what the model of Redis has answered with an error."""
    yield from promises.internal(judge)
    yield from judge.world.redis.errors


def unavailable(judge: Judge) -> Iterator[str]:
    """Find what failed or was slow though everything was there."""
    for one in judge.seen.tries:
        if one.status == GONE or not judge.served(one) or one.delivery in judge.gone:
            continue
        if not one.good:
            failed = one.status == 502 and one.type == "task-failed" and one.failing
            overdue = one.status == 504 and one.seconds > DEADLINES[one.route] - SLOW
            if not (failed or overdue or promises.expired(one)):
                yield judge.show(one)
        elif one.took > (one.seconds if one.status == 200 else 0) + SLOW and one.number == 1:
            if one.status == 202 and one.route in ("/later", LATE):
                continue
            yield f"{judge.show(one)}: slow"


def forgotten(judge: Judge) -> Iterator[str]:
    """Find tries that were answered without their result though it was stored for long.

    Only where nothing but connections was lost, which is noticed at once, or where Redis was
    away, and has been there again for long.
    """
    stored: dict[str, float] = {}
    # A task that has failed, and then runs again and succeeds, is not that of the next try.
    failed = {e.task_id for e in judge.main if e.failed}
    for e in judge.main:
        if e.task_id not in failed and not e.lost:
            stored[e.delivery] = min(stored.get(e.delivery, inf), e.stored)
    for one in judge.seen.tries:
        since = stored.get(one.delivery, inf)
        others = [
            each
            for each in judge.seen.injected
            if each.overlaps(
                one.at - (UNNOTICED if each.kind == "swallowed" else CUT_AFTER), one.answered
            )
            and _hides(each, one, judge.seen.strategy, since)
        ]
        back = one.answered - BACK
        if since < back and all(_is_back(each, one.gateway, back) for each in others):
            others = []
        late = one.type == "deadline-passed" or (one.status == 202 and one.route == "/later")
        # The process that listened for it may have ended.
        expired = since + judge.world.expires < one.answered and _may_have_ended(judge, one)
        known = one.route in IDENTIFIED and one.delivery not in judge.gone and not expired
        if late and known and since < one.answered - CUT and not others:
            yield judge.show(one)


def _may_have_ended(judge: Judge, one: Try) -> bool:
    """May a delivery's result have come unseen between its first try and this one?"""
    tries = [each for each in judge.seen.tries if each.delivery == one.delivery]
    since, own = min(each.at for each in tries), {each.gateway for each in tries}
    return _may_be_hidden(judge, own, since, one.answered)


def _is_back(fault: Injected, gateway: str, since: float) -> bool:
    away = fault.kind in ("killed", "failed over", "frozen", "black hole", "stalled")
    return away and _reaches(fault, gateway, "redis") and fault.ended < since


def _hides(fault: Injected, one: Try, strategy: str, since: float) -> bool:
    """Tell whether a fault may hide from a try that a result is stored `since` then."""
    target, _, server = fault.target.partition(">")
    if fault.kind in CUTS or (target == "broker" and fault.kind == "killed"):
        return strategy == "pika" and since < fault.ended + NO_REPLIES
    if target.startswith("gateway"):
        return target == one.gateway and (strategy == "pika" or server != "broker")
    # Replies are lost with the broker, and with a worker's connection to it; one that was frozen
    # may open a new one only now.
    away = target == "broker" or server == "broker" or fault.kind == "frozen"
    return target == "redis" or (strategy == "pika" and away)


def run_anew(judge: Judge) -> Iterator[str]:
    """Find tasks that a later try ran again though their gateway could know that they succeeded.

    It listens for the result of what it has published, so it does not matter how long that is kept.
    """
    tries = {one.id: one for one in judge.seen.tries}
    runs: dict[str, list[Execution]] = defaultdict(list)
    for e in judge.main:
        runs[e.task_id].append(e)
    for each in runs.values():
        first = min(each, key=lambda e: e.stored)
        one = tries.get(first.attempt)
        if one is None or one.route not in judge.identified or first.delivery in judge.gone:
            continue
        for e in each:
            later = tries.get(e.attempt, one)
            known = first.stored + BACK < later.at
            # Where processes have only ended by themselves, nobody need know an end.
            well = later.at > one.at and all(
                fault.kind in ENDED or not fault.overlaps(one.at - AFTERMATH, later.at)
                for fault in judge.seen.injected
            )
            hidden = _may_be_hidden(judge, {one.gateway}, one.at, later.at)
            if (known or well) and not (hidden or any(e.failed for e in each)):
                yield f"{judge.show(later)}, as {first.attempt} at {first.at - judge.began:.3f} s"


def _may_be_hidden(judge: Judge, own: set[str], since: float, until: float) -> bool:
    """May nobody have listened for the result of a task that gateways have published?

    A process that ends leaves this to another one, which may be killed.
    """
    left = any(judge.hit(since, until, *ENDED, target=gateway) for gateway in own)
    return judge.hit(since, until, target="redis") or any(
        fault.overlaps(since, until)
        for fault in judge.seen.injected
        if (fault.target.partition(">")[0] in own and fault.kind not in ENDED)
        or (left and fault.kind in KILLED and "gateway" in fault.target)
    )


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


def held_up_by_redis(judge: Judge) -> Iterator[str]:
    """Find tries that waited for a Redis that is away though they need not.

    What needs Redis is refused soon; what does not is accepted as ever.
    """
    for one in judge.seen.tries:
        needed = one.route in judge.identified
        patience = PATIENCE + SLOW if needed else JOURNAL + GRACE
        if one.number != 1 or one.at < judge.seen.ready or one.took <= patience:
            continue
        others = [
            each
            for each in judge.seen.injected
            if each.overlaps(one.at - AFTERMATH, one.answered)
            and not _reaches(each, one.gateway, "redis")
        ]
        if others:
            continue
        away = any(
            each.kind in ("frozen", "black hole", "stalled", "killed")
            and each.began < one.at - SLOW
            and one.answered < each.ended
            for each in judge.seen.injected
        )
        if one.route == "/plain-accept" or (away and needed):
            yield judge.show(one)


def _reaches(fault: Injected, gateway: str, server: str) -> bool:
    """Tell whether a fault is of that server, or of the way to it from that gateway."""
    return fault.target in (server, f"{gateway}>{server}")


def given_up(judge: Judge) -> Iterator[str]:
    """Find tries that ended with their connection to the broker though their result is stored."""
    for one in judge.seen.tries:
        if one.type == "results-lost" and one.route in judge.identified:
            yield judge.show(one)


def hasty(judge: Judge) -> Iterator[str]:
    """Find deliveries of hasty senders that got no answer in time though nothing was broken.

    One of their tries gets the result where the task ends before the last deadline; else the last
    one gets the fallback, and no earlier one.
    """
    deliveries: dict[str, list[Try]] = defaultdict(list)
    for one in judge.seen.tries:
        if one.hasty:
            deliveries[one.delivery].append(one)
    for tries in deliveries.values():
        first, last = tries[0], tries[-1]
        broken = first.at < judge.seen.ready or judge.hit(first.at - CALM, last.answered)
        if broken or first.failing:
            continue
        most = (TRIES - 1) * TRY_AFTER + DEADLINES[HASTY]
        due = 200 if first.seconds < most - SLOW else 202 if first.seconds > most + SLOW else None
        if last.status != due and (due is not None or not last.good):
            yield f"{judge.show(last)}, of a task that takes {first.seconds} s"
        if last.status == 202 and last.number < TRIES:
            yield f"{judge.show(last)} before the last try"


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
    failures -= judge.world.inspected["uncounted"]  # which have failed in the last second
    # A run's state is that of the moment at which its replay was written: it may have failed since.
    earlier = sum(len(entry.runs) for entry in entries)
    counted = sum(group.count for group in judge.world.inspected["groups"])
    if not failures <= counted <= failures + earlier:
        yield f"{counted} failures are counted, of {failures} and {earlier} runs before"
    there = {entry.arguments()[0][1]["x-try"]: entry for entry in entries if entry.queue}
    ran = succeeded | failed
    taken = {one.delivery for one in judge.seen.tries if one.good}
    for one in judge.seen.tries:
        entry = there.get(one.id)
        if entry is None:
            if one.good and not _unwritten(judge, one):
                yield f"{judge.show(one)} is missing"
        elif (
            one.route in judge.identified  # other messages may expire, or be lost with the broker
            and entry.state in OPEN
            and entry.task_id not in ran
            and one.delivery not in judge.gone
            and not (one.hasty and one.delivery not in taken)  # its sender has given up
            and (one.good or not _unwritten(judge, one))
        ):
            yield f"{judge.show(one)} is {entry.state} as {entry.task_id}, which has not run"


def _unwritten(judge: Judge, one: Try) -> bool:
    """Tell whether a try that was answered well may be missing in the journal."""
    since, until = one.at - 1.0, one.answered + UNWRITTEN
    if judge.hit(since, until, "out of memory"):
        return True
    away = any(judge.hit(since, one.answered, target=each) for each in ("redis", one.gateway))
    if one.status == 202 and not away:
        return False  # it has waited for the journal
    until = until if away else one.answered + SLOW
    killed = judge.hit(one.at, until, *KILLED, target=one.gateway)
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
        # A server that was primary until now may still be asked, and looks at what it has.
        known = [
            one
            for one in whole
            if one.name != histories.STATE
            or not judge.hit(one.began - CALM, one.ended, "failed over")
        ]
        history = histories.until_loss(known, losses)
        wrong = histories.unexplained(history, steady)
        if wrong is not None:
            told = histories.worded(wrong, history, judge.world.began)
            yield f"claim {histories.name_of(key)}: {told}"


RULES: dict[str, Callable[[Judge], Iterable[str]]] = {
    **promises.RULES,
    "errors of its own": internal,
    "unavailable though nothing is broken": unavailable,
    "answered without a result that was there": forgotten,
    "run again though its end is known": run_anew,
    "refused late": slow_refusals,
    "held up by Redis": held_up_by_redis,
    "given up with a connection": given_up,
    "hasty senders": hasty,
    "late answers": late_answers,
    "left behind": left,
    "journal": journal,
    "replays": replays,
    "claims are not linearizable": claims,
}


def judge(world: World) -> list[str]:
    """Return a line for each promise that was broken."""
    return promises.told(findings(Judge(world), RULES))
