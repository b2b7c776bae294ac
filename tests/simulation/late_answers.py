"""Late answers: who sends what has to be answered so, what they are sent to, and the rule for them.

The gateway's client for HTTP, which is Tornado's, is replaced by one on the simulated network.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gateway.http_client import REQUEST, NotKnown, NotSent, Response
from gateway.journal.entry import ANSWERED_LATE, LATE_FAILED, LATE_UNCERTAIN
from tests.simulation.records import Try
from tests.simulation.senders import LATE, Client
from tests.simulation.wire import Clock, Wire

if TYPE_CHECKING:
    from tests.simulation.oracle import Judge

RECEIVER = "receiver"
WINDOW = 40.0  # seconds for which a receiver takes an answer
#: How often a receiver does what; all but the last three have taken the answer.
ANSWERS = {"200": 76, "502": 4, "silent": 4, "cut": 4, "500": 6, "429": 4, "400": 2}
_NOT_TAKEN = {"500", "429", "400"}
#: Faults that end a process, or keep it from what it was about to do.
_ENDS = ("killed", "child killed", "killed at", "drained", "reloaded", "frozen")
_KEEP = 15.0  # seconds for which a gateway tries to write what has to be sent
_SLACK = 3.0  # seconds of these in which it may not try
_SENDING = 15.0  # seconds from a result to the last request with it
_REPLAYED = "replayed"


def block(replaces: bool) -> dict[str, Any]:
    """Return what the route's `late` says."""
    return {
        "method": "PUT",
        "url": f"http://{RECEIVER}/late",
        "headers": {"X-Delivery": "{header:X-Delivery}"},
        "hosts": [RECEIVER],
        "window": WINDOW,
        "tries": 3,
        "replaces": replaces,
    }


@dataclass(slots=True)
class Got:
    """What a receiver has got, and what it did then: one of `ANSWERS`."""

    delivery: str
    text: str
    at: float
    done: str


class Receiver:
    """A server that takes late answers."""

    def __init__(self, clock: Clock, random: Random):
        self.clock, self.random = clock, random
        self.got: list[Got] = []

    def accept(self, wire: Wire) -> _Peer:
        return _Peer(self, wire)


class _Peer:
    def __init__(self, receiver: Receiver, wire: Wire):
        self._receiver, self._wire, self._data = receiver, wire, b""

    def received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        if len(body) < int(fields["Content-Length"]):
            return
        receiver, rng = self._receiver, self._receiver.random
        (done,) = rng.choices(list(ANSWERS), list(ANSWERS.values()))
        now = receiver.clock.time()
        receiver.got.append(Got(fields["X-Delivery"], body.decode(), now, done))
        receiver.clock.call_later(rng.random() ** 3, self._answer, done)

    def _answer(self, done: str) -> None:
        if done == "cut":
            self._wire.abort()
        elif done != "silent":
            after = "Retry-After: 2\r\n" if done == "429" else ""
            self._wire.write(f"HTTP/1.1 {done} X\r\n{after}Content-Length: 0\r\n\r\n".encode())

    def lost(self) -> None:
        pass


class HttpClient:
    """Stands for `gateway.http_client.HttpClient`."""

    def __init__(self, max_body: int, public: bool = True):
        pass

    def close(self) -> None:
        pass

    async def fetch(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Response:
        host, sent = urlsplit(url).hostname, False
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} / HTTP/1.1\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
        client = None
        try:
            async with asyncio.timeout(REQUEST):
                loop = asyncio.get_running_loop()
                _, client = await loop.create_connection(Client, host, 80)
                sent = True
                client.transport.write(head.encode() + body)
                return Response(*await client.expect())
        except (OSError, TimeoutError) as exc:
            raise (NotKnown if sent else NotSent)(repr(exc)) from exc
        finally:
            if client is not None:
                client.transport.close()


def late_answers(judge: Judge) -> Iterator[str]:
    """Find results that were sent late twice, or never, or of which the journal says what is wrong.

    A result is given in an answer or sent late, and not both. It may be neither only if the journal
    says so.
    """
    if judge.forgot() or not judge.world.inspected:
        return
    deliveries, got, states = defaultdict[str, list[Try]](list), defaultdict(list), defaultdict(set)
    for one in judge.seen.tries:
        if one.route == LATE:
            deliveries[one.delivery].append(one)
    for each in judge.world.receiver.got:
        got[each.delivery].append(each)
    for entry in judge.world.inspected["entries"]:
        if entry.queue:
            name = entry.arguments()[0][1]["x-try"].partition(".")[0]
            states[name].add(_REPLAYED if entry.replays else entry.state)
    ended = defaultdict[str, list[float]](list)
    for e in judge.main:
        if not e.failed and not e.lost:
            ended[e.delivery].append(e.stored)
    made = {f"{e.delivery} {e.nonce}" for e in judge.main if not e.failed}
    for name, tries in deliveries.items():
        yield from _sent(judge, name, tries, got[name], made)
        yield from _said(judge, name, got[name], states[name], ended[name])
        seen = got[name] or any(one.status == 200 for one in tries)
        told = states[name] & {LATE_FAILED, LATE_UNCERTAIN, _REPLAYED}
        lost = name in judge.gone or tries[0].at < judge.seen.ready or tries[0].failing
        kept = [one for one in tries if one.status == 202 and not _is_unwritten(judge, one)]
        if ended[name] and kept and not (seen or told or lost):
            yield f"{judge.show(kept[-1])}, and nothing was sent"


def _sent(
    judge: Judge, name: str, tries: list[Try], sent: list[Got], made: Container[str]
) -> Iterator[str]:
    """Find what is wrong in what was `sent` for a delivery."""
    taken = [each for each in sent if each.done not in _NOT_TAKEN]
    for each in sent:
        if each.text not in made or each.text.partition(" ")[0] != name:
            yield f"{name} was sent {each.text!r}"
    for one, other in pairwise(taken):
        sure = one.done == "200" and not judge.hit(one.at - 1, other.at, *_ENDS)
        if sure or not judge.world.plan.replaces:
            yield f"{name} was sent at {one.at - judge.began:.3f} s and again"
    # A task of which one copy has failed and another has not runs again.
    for given in (one for one in tries if taken and one.status == 200 and not one.failing):
        if not _no_redis(judge, given.gateway, given.answered - 1, given.answered):
            yield f"{judge.show(given)}, and was sent at {taken[0].at - judge.began:.3f} s"


def _said(
    judge: Judge, name: str, sent: list[Got], states: Container[str], ended: list[float]
) -> Iterator[str]:
    """Find what the journal says that was not so; `ended` is when its results were stored."""
    done = {each.done for each in sent}
    if ANSWERED_LATE in states and "200" not in done:
        yield f"{name} is said to be answered late, after {done}"
    if LATE_FAILED in states and "200" in done:
        yield f"{name} is said not to be answered late, and was"
    if LATE_UNCERTAIN in states and done <= _NOT_TAKEN and not _is_interrupted(judge, ended):
        yield f"{name} is said to be answered late perhaps, and nothing was taken"


def _is_interrupted(judge: Judge, ended: list[float]) -> bool:
    """May a process have ended just before it sent one of the results stored at `ended`?"""
    return any(judge.hit(at - 1, at + _SENDING, *_ENDS) for at in ended)


def _is_unwritten(judge: Judge, one: Try) -> bool:
    """May it never have been written what has to be sent after a try?"""
    until = one.answered + _KEEP
    ends = judge.hit(one.at, until, *_ENDS, target=one.gateway) or any(
        name == one.gateway and one.answered <= at <= until for name, at in judge.seen.ended
    )
    if ends and _no_redis(judge, one.gateway, one.answered - 1, one.answered):
        return True
    return _no_redis(judge, one.gateway, one.answered, until, whole=True)


def _no_redis(judge: Judge, gateway: str, since: float, until: float, whole: bool = False) -> bool:
    """Was Redis away for a gateway at some time, or for the `whole` time?"""
    return any(
        each.overlaps(since, until)
        and each.target in ("redis", f"{gateway}>redis", gateway)
        and (not whole or each.began <= since and until <= each.ended + _SLACK)
        for each in judge.seen.injected
    )
