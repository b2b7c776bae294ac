"""Claim histories are linearizable: an order of the operations explains what each has answered.

What each gateway asks Redis about a claim is noted, with the moment of the question and that of the
answer. An operation takes effect once, between the two. If no answer came, it took effect at any
later time, or never. `explained` searches for an order in which a claim, as docs/delivery.md
describes it, gives exactly these answers: so did Wing and Gong (1993), with a memory of what has
been tried as Lowe (2017) adds it.

Not judged: how many tries a claim counts, and when the first one came. What Redis has lost is
the exception that the documentation has, so a history ends there. After a failover the former
primary may still be asked for a claim's state, and tells an older one: `oracle.claims` omits that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.claims import scripts
from gateway.claims.claim import CONFIRMED, DONE, LAPSED, MINE, PUBLISHING, RELEASED, read
from gateway.errors import StoreError
from tests.simulation.scenes import CLAIMED, CLAIMED_AGAIN, CONFIRMING, TAKEN_OVER

if TYPE_CHECKING:
    from tests.simulation.gateways import Child

TAKE, RENEW, CONFIRM, PROLONG = "take", "renew", "confirm", "prolong"
FINISH, FAIL, RELEASE, STATE, TAKE_OVER = "finish", "fail", "release", "state", "take over"
FREE, CONFLICT, HELD = "free", "conflict", "held"
ROUNDING = 0.002  # seconds: Redis counts in milliseconds
#: The operation of each script, and the names of its arguments.
_SCRIPTS = {
    scripts.TAKE: (TAKE, "owner task digest lease life count strict rerun span longest recovers"),
    scripts.RENEW: (RENEW, "owner lease"),
    scripts.CONFIRM: (CONFIRM, "task digest life lease channel"),
    scripts.PROLONG: (PROLONG, "task lease"),
    scripts.TAKE_OVER: (TAKE_OVER, "task lease"),
    scripts.FINISH: (FINISH, "task digest life answer channel"),
    scripts.FAIL: (FAIL, "task end remembered span channel"),
    scripts.RELEASE: (RELEASE, "owner not_taken span channel"),
}
_FOUND = {b"mine": MINE, b"lapsed": LAPSED, b"conflict": CONFLICT}
_FOUND |= {b"P": PUBLISHING, b"C": CONFIRMED, b"D": DONE}


@dataclass(slots=True)
class Operation:
    """An operation on a claim; ``given`` are its arguments, times in seconds.

    ``found`` and ``task``, ``answer``, ``lapsed``: what it was told, with `TAKE` and `STATE`;
    ``left``: seconds that the lease of another one lasts.
    """

    name: str
    began: float
    ended: float = inf  # no answer came
    by: str = ""
    given: dict[str, Any] = field(default_factory=dict)
    found: str = ""
    task: bytes = b""
    answer: bytes = b""
    failed: bool = False
    lapsed: bool = False
    left: float | None = None

    def worded(self, zero: float) -> str:
        """Say it in words; `zero` is the moment from which its times are counted."""
        what = self.given.get("task") or self.given.get("owner") or b""
        end = f"{self.ended - zero:.3f}" if self.ended < inf else "?"
        told = f" = {self.found} {self.task.hex()[-6:]}{' failed' * self.failed}" * bool(self.found)
        return f"{self.name} {what.hex()[-6:]} {self.began - zero:.3f}-{end}{told}"


# Notes ----------------------------------------------------------------------------------------


def note(child: Child) -> None:
    """Note all that a gateway's process does with claims."""
    world, pipeline = child.world, child.relay.context.idempotency.claims.redis  # type: ignore[union-attr]
    run = pipeline.run

    def noted(*words: Any) -> Any:
        reply = run(*words)
        found = _operation(words)
        if found is not None:
            key, operation = found
            operation.began, operation.by = world.loop.time(), child.gateway.name
            if operation.name == CONFIRM:
                world.played(CONFIRMING, child, key)
            history = world.histories.setdefault(key, [])
            history.append(operation)
            reply.add_done_callback(lambda reply: answered(reply, operation, key, history))
        return reply

    def answered(reply: Any, operation: Operation, key: bytes, history: list[Operation]) -> None:
        exc = None if reply.cancelled() else reply.exception()
        if type(exc) is StoreError:  # Redis has changed nothing
            history.remove(operation)
        elif not reply.cancelled() and exc is None:
            operation.ended = world.loop.time()
            _hear(operation, reply.result())
        if world.lines is not None:
            world.trace(operation.by, f"claim {name_of(key)}: {operation.worded(world.began)}")
        if operation.found == LAPSED:
            world.played(TAKEN_OVER, child, key)
        elif operation.found == MINE:
            again = any(one.name == FAIL for one in history)
            world.played(CLAIMED_AGAIN if again else CLAIMED, child, key)

    pipeline.run = noted  # type: ignore[method-assign]


def name_of(key: bytes) -> str:
    """Return a short name of a claim, for traces."""
    return key[-3:].hex()


def _operation(words: tuple[Any, ...]) -> tuple[bytes, Operation] | None:
    if words[0] == "MGET" and len(words) == 3 and b":failed:" in words[2]:
        task = bytes.fromhex(words[2].rpartition(b":")[2].decode().replace("-", ""))
        return words[1], Operation(STATE, 0.0, given={"task": task})
    if words[0] != "EVAL" or words[1] not in _SCRIPTS:
        return None
    name, arguments = _SCRIPTS[words[1]]
    given = dict(zip(arguments.split(), words[3 + words[2] :], strict=True))
    return words[3], Operation(name, 0.0, given=given)


def _hear(operation: Operation, reply: Any) -> None:
    if operation.name == TAKE:
        operation.found, operation.task, operation.answer = _FOUND[reply[0]], reply[1], reply[6]
        if operation.found == PUBLISHING:
            operation.left = reply[5] / 1000
    elif operation.name == TAKE_OVER:
        operation.found = HELD if reply > 0 else FREE
    elif operation.name == STATE:
        value, failed = reply
        operation.failed, operation.found = failed is not None, FREE
        if value is not None and (record := read(value)).state != RELEASED:
            operation.found = record.state
            operation.lapsed = record.state == PUBLISHING and record.until == 0
            operation.task = bytes.fromhex(record.task_id.replace("-", ""))


# A claim --------------------------------------------------------------------------------------

#: A moment that is known no better than this: seconds.
Moment = tuple[float, float]
AT_ONCE = (-inf, -inf)


class State(NamedTuple):
    """A claim: in which state, and until when; ``forgotten``: when Redis deletes it.

    ``failed`` are the tasks whose failure is remembered, and until when.
    """

    name: str = FREE
    task: bytes = b""
    digest: bytes = b""
    owner: bytes = b""
    answer: bytes = b""
    until: Moment = AT_ONCE
    forgotten: Moment = AT_ONCE
    failed: tuple[tuple[bytes, Moment], ...] = ()


def _after(now: Moment, milliseconds: int) -> Moment:
    return now[0] + milliseconds / 1000 - ROUNDING, now[1] + milliseconds / 1000 + ROUNDING


def _past(now: Moment, then: Moment) -> Iterator[bool]:
    """Yield whether `then` may be past, and whether it may not."""
    if now[1] >= then[0]:
        yield True
    if now[0] <= then[1]:
        yield False


def follow(state: State, done: Operation, now: Moment) -> Iterator[State]:
    """Yield the states in which a claim may be after `done`; none: it does not answer so."""
    if state.name == FREE:
        yield from _follow(state, done, now)
        return
    for gone in _past(now, state.forgotten):
        yield from _follow(State(failed=state.failed) if gone else state, done, now)


def _follow(state: State, done: Operation, now: Moment) -> Iterator[State]:
    given, task = done.given, done.given.get("task")
    attached = state.name in (PUBLISHING, CONFIRMED) and state.task == task
    if done.name == TAKE:
        yield from _take(state, done, now)
    elif done.name == STATE:
        told = done.found, done.task, done.lapsed
        true = state.name, state.task, state.name == PUBLISHING and state.until == AT_ONCE
        if done.ended == inf or (told == true and done.failed in _remembered(state, task, now)):
            yield state
    elif done.name in (RENEW, RELEASE):
        if state.name != PUBLISHING or state.owner != given["owner"]:
            yield state
        elif done.name == RENEW:
            yield state._replace(until=_after(now, given["lease"]))
        elif given["not_taken"] and state.task == state.owner:
            yield State(failed=state.failed)
        else:
            yield state._replace(until=AT_ONCE)
    elif done.name == PROLONG:
        prolonged = attached and state.name == CONFIRMED
        yield state._replace(until=_after(now, given["lease"])) if prolonged else state
    elif done.name == TAKE_OVER:
        confirmed = state.name == CONFIRMED
        for lapsed in _past(now, state.until) if confirmed else (False,):
            held = attached and not lapsed
            prolonged = state._replace(until=_after(now, given["lease"]))
            if done.ended == inf or held == (done.found == HELD):
                yield prolonged if held and confirmed else state
    elif done.name == FAIL:
        failed = (*state.failed, (task, _after(now, given["remembered"])))
        yield State(failed=failed) if attached else state
    else:
        yield from _write(state, done, now, attached)


def _take(state: State, done: Operation, now: Moment) -> Iterator[State]:
    given, told = done.given, (done.found, done.task)
    unheard = done.ended == inf
    mine = state._replace(
        name=PUBLISHING, owner=given["owner"], answer=b"",
        until=_after(now, given["lease"]), forgotten=_after(now, given["life"]),
    )  # fmt: skip
    if state.name == FREE:
        if unheard or told == (MINE, given["task"]):
            yield mine._replace(task=given["task"], digest=given["digest"])
    elif given["strict"] and state.digest != given["digest"]:
        if unheard or done.found == CONFLICT:
            yield state
    else:
        kept = given.get("recovers") and state.until != AT_ONCE
        ends = given["rerun"] if state.name == CONFIRMED else state.name == PUBLISHING and not kept
        for lapsed in _past(now, state.until) if ends else (False,):
            true = LAPSED if lapsed else state.name, state.task
            same = state.name != DONE or done.answer == state.answer
            if unheard or (told == true and same and _lasts(state, done)):
                yield mine if lapsed else state


def _lasts(state: State, done: Operation) -> bool:
    """May a lease last as long as `done` was told?"""
    if done.left is None:
        return True
    least, most = done.began + done.left - ROUNDING, done.ended + done.left + ROUNDING
    return least <= state.until[1] and state.until[0] <= most


def _write(state: State, done: Operation, now: Moment, attached: bool) -> Iterator[State]:
    """Confirm or finish a claim; one that is free was lost, or its task has failed before.

    Then only what follows a success counts.
    """
    given = done.given
    if done.name == FINISH:
        new = {"name": DONE, "answer": given["answer"], "forgotten": _after(now, given["life"])}
    else:
        new = {"name": CONFIRMED, "until": _after(now, given["lease"])}
        if state.name == FREE:
            new["forgotten"] = _after(now, given["life"])
    if state.name == FREE:
        lost = state._replace(**new, task=given["task"], digest=given["digest"])
        if done.name == FINISH:
            others = tuple(one for one in state.failed if one[0] != given["task"])
            yield lost._replace(failed=others)
            return
        for failed in _remembered(state, given["task"], now):
            yield state if failed else lost
    else:
        changes = attached and (done.name == FINISH or state.name == PUBLISHING)
        yield state._replace(**new) if changes else state


def _remembered(state: State, task: bytes | None, now: Moment) -> list[bool]:
    until = dict(state.failed).get(task or b"")
    return [False] if until is None else [not past for past in _past(now, until)]


# The search -----------------------------------------------------------------------------------


def unexplained(history: list[Operation], steady: bool = True) -> Operation | None:
    """Return the first answered operation that no order explains; None: there is an order.

    If Redis' clock is not `steady`, anything may lapse and be forgotten at any time.
    """
    ordered = sorted(history, key=lambda one: (one.ended, one.began))
    alike = _alike(ordered)
    answered = sum(one.ended < inf for one in ordered)

    @cache
    def candidates(first: int) -> list[int]:
        """Return what may come before the end of `first`; the earliest answer is the last."""
        last = ordered[first].ended
        found = [i for i in range(first, len(ordered)) if ordered[i].began <= last]
        return found[::-1]

    # All before `first` are done, and those of the bits of `ahead` after it; `clock`: since when.
    stack, furthest = [(0, 0, State(), -inf)], 0
    seen = set(stack)
    while stack:
        first, ahead, state, clock = stack.pop()
        if first >= answered:
            return None
        furthest = max(furthest, first)
        for i in candidates(first):
            if ahead >> (i - first) & 1 or (i in alike and not ahead >> (alike[i] - first) & 1):
                continue
            one, since = ordered[i], max(clock, ordered[i].began)
            now = (since, ordered[first].ended) if steady else (-inf, inf)
            for after in follow(state, one, now):
                if one.ended == inf and after == state:
                    continue  # as if it had not happened
                done, shift = ahead | 1 << (i - first), 0
                while done >> shift & 1:
                    shift += 1
                step = first + shift, done >> shift, after, since
                if step not in seen:
                    seen.add(step)
                    stack.append(step)
    return ordered[furthest]


def _alike(ordered: list[Operation]) -> dict[int, int]:
    """Return, of each unanswered operation, the last one before it that is the same.

    What the later one does, the earlier one may have done at the same time. So the earlier one is
    done first, and the search does not grow with what is written again and again.
    """
    found: dict[int, int] = {}
    last: dict[str, int] = {}
    for i, one in enumerate(ordered):
        if one.ended == inf:
            what = f"{one.name} {sorted(one.given.items())}"
            if what in last:
                found[i] = last[what]
            last[what] = i
    return found


def until_loss(history: list[Operation], losses: list[float]) -> list[Operation]:
    """Return what a history has until Redis loses something; what is told later is not known."""
    began = min(one.began for one in history)
    end = min((at for at in losses if at >= began), default=inf)
    return [
        replace(one, ended=inf) if one.ended > end else one for one in history if one.began < end
    ]


def worded(operation: Operation, history: list[Operation], zero: float) -> str:
    """Say what was answered, and what had begun before that."""
    others = [one for one in history if one.began < operation.ended and one is not operation]
    words = [f"{one.by} {one.worded(zero)}" for one in (operation, *others)]
    return f"{words[0]} after {', '.join(words[1:]) or 'nothing'}"
