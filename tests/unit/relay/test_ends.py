"""Nothing of a request is counted or kept once it has ended, however it ended.

The garbage collector is off: what a reference cycle keeps is found.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import math
import struct
import time
from time import monotonic
from typing import Any, NamedTuple

import pytest

from gateway import background
from gateway.answer import Answer
from gateway.celery_message import Message, TaskIds
from gateway.claims import scripts
from gateway.config.settings import Config
from gateway.delivery import Delivery, Request
from gateway.errors import BrokerUnavailable, RequestError, ResultsLost, Unanswered, Unroutable
from gateway.failpoints import Failpoint
from gateway.journal import writing
from gateway.journal.entry import ACCEPTED, REFUSED, SUCCEEDED
from gateway.metrics import Metrics
from gateway.outcome import FAILURE, SUCCESS, Outcome
from gateway.pending_task import PendingTask
from gateway.relay import further_tasks
from gateway.relay.context import Context
from gateway.relay.in_flight import InFlight
from gateway.relay.relay import Relay
from gateway.stores.pipeline import Pipeline
from gateway.stores.result_store import READ
from tests.support.in_memory import InMemory

#: What has a request's body, or leads to it.
KEPT = (Delivery, InFlight, Message, PendingTask, Request)

CLAIM = {
    scripts.TAKE, scripts.CONFIRM, scripts.FINISH, scripts.FAIL, scripts.RELEASE, scripts.PROLONG,
}  # fmt: skip

ONCE = {"idempotency": "header:key"}
ALSO = {"also": [{"task": "a"}, {"task": "b"}]}
ROUTES = [
    {"path": "/"},
    {"path": "/accept", "answer": "accept"},
    {"path": "/fallback", "answer": "wait-then-accept", "fallback": "ok"},
    {"path": "/once", **ONCE},
    {"path": "/also", "answer": "accept", **ALSO},
    {"path": "/also-once", **ONCE, **ALSO},
    {"path": "/revoked", "revoke": True, **ALSO},
    {"path": "/limited", "source": "few"},
]
SOURCES = {"few": {"scheme": "meta", "secrets": "secret", "verify_token": "t", "max_in_flight": 1}}
RESULT = b'{"status": "SUCCESS", "result": 1}'
#: What a step's `name=value` gives an attribute of Redis; without a value it is true.
VALUES: dict[str, Any] = {
    "": True, "READ": READ, "SUCCESS": RESULT, "FAILURE": b'{"status": "FAILURE", "result": {}}',
}  # fmt: skip
OUTCOMES = {
    "done": Outcome(SUCCESS, "done"),
    "failed": Outcome(FAILURE, error="no"),
    "odd": Outcome(SUCCESS, {"status": 99, "headers": {}, "body": ""}),
    "unknown": Outcome("ODD", object()),
}
ERRORS = {"unroutable": Unroutable, "unavailable": BrokerUnavailable, "lost": ResultsLost}

BODY = b'{"x": "%s"}' % (b"x" * 10_000)


class Tasks(InMemory):
    """Keeps the messages that are published, until a test takes one to end it."""

    def __init__(self) -> None:
        super().__init__(None)
        self.error: Exception | None = None

    def send(self, message: Message, deadline: float) -> PendingTask:
        if self.error is not None:
            raise self.error
        pending = PendingTask(message, deadline)
        self.sent.put_nowait(pending)
        return pending

    publish = send

    def revoke(self, task_id: str) -> None: ...

    def confirm(self) -> PendingTask:
        pending = self.sent.get_nowait()
        pending.confirm()
        return pending


class Redis:
    """Answers what the test says; `silent`: it answers when the test says so.

    So it does only the command ``unanswered``.
    """

    def __init__(self) -> None:
        self.silent = False
        self.unanswered = ""
        self.state = b"mine"
        self.result: bytes | None = None
        self.fails = False
        self._claim = b""
        self.scripts: list[Any] = []
        self.taken: list[bytes] = []
        self._asked: list[tuple[asyncio.Future[Any], Any]] = []

    def well_since(self, key: Any) -> float:
        return -math.inf

    def run(self, *command: Any) -> asyncio.Future[Any]:
        reply = asyncio.get_running_loop().create_future()
        if command == ("PING",):
            reply.set_result(b"PONG")
            return reply
        self.scripts += command[1:2]
        self._asked.append((reply, self._reply(command)))
        if not self.silent and self.unanswered not in command[:2]:
            self.answer()
        return reply

    def answer(self) -> None:
        asked, self._asked, self.silent = self._asked, [], False
        for reply, what in asked:
            if reply.done():
                continue
            if self.fails:  # with an error that nothing here keeps: its frames lead to the request
                reply.set_exception(Unanswered("no answer in time"))
            else:
                reply.set_result(what)

    def _reply(self, command: tuple[Any, ...]) -> Any:
        if command == ("TIME",):
            return [b"%d" % time.time(), b"0"]
        if command[1] is scripts.FAIL:
            self.state, self.result = b"mine", None
        if command[1] is scripts.TAKE:
            task, digest = command[5], command[6]
            until = bytes([255] * 6)
            self._claim = struct.pack(">cB6s16s8s6s", b"P", 1, bytes(6), task, digest, until)
            return [self.state, task, digest, 0, 1, 5_000, b""]
        if command[1] is READ:
            return [self.result] * command[2]
        return {"MGET": [self._claim, None], "SMEMBERS": self.taken}.get(command[0])


class Harness:
    """A relay whose messages and whose Redis a test controls."""

    def __init__(self, metrics: Metrics, redis: Redis, journal: int):
        self.redis, self.tasks = redis, Tasks()
        config = Config(
            routes=ROUTES, sources=SOURCES, result_backend="redis://127.0.0.1:1", journal=journal,
            secret_key="s" * 32, public_url="http://gateway",
        )  # fmt: skip
        self.context = Context(config, self.tasks, metrics, TaskIds(), Failpoint())
        self.relay = Relay(self.context)
        self.context.recorders.append(self)
        self.posted = 0
        self.states: list[str] = []
        self.answers: list[int] = []
        self.location = ""
        self.faulty = False  # its next answer cannot be written
        self.sent: InFlight | None = None
        self.pending: PendingTask | None = None

    async def do(self, steps: str) -> None:
        """Do one step after the other.

        A path is sent to; `.` lets everything happen; `confirm` and `take` are about the next
        message, of which the others tell how it ends; `name=value` is an attribute of Redis.
        """
        for step in steps.split():
            if step.startswith("/"):
                self.sent = self.post(step)
            elif step in OUTCOMES:
                self.pending.settle(OUTCOMES[step])
            elif step in ERRORS:
                self.pending.fail(_raised(ERRORS[step]()))
            elif step in STEPS:
                if (waits := STEPS[step](self)) is not None:
                    await waits
            else:
                name, _, value = step.partition("=")
                assert hasattr(self.redis, name), step
                setattr(self.redis, name, VALUES.get(value, value.encode()))
        self.sent = self.pending = None

    def confirm(self) -> None:
        self.pending = self.tasks.confirm()

    def take(self) -> None:
        self.pending = self.tasks.sent.get_nowait()

    def refuse(self) -> None:
        """Let the broker refuse the next message at once; an error has a traceback of its own."""
        self.tasks.error = Unroutable("There is no queue.")

    def fault(self) -> None:
        self.tasks.error = RuntimeError("a fault of the gateway")

    def answers_faultily(self) -> None:
        self.faulty = True

    def cancel(self) -> None:
        self.sent.cancel()

    def ended(self, request: InFlight) -> None:
        """Note how a request is recorded; `request` itself may not be kept."""
        joined = ", joined" * bool(request.joined and request.task_id)
        self.states.append(request.state + joined)

    def held(self) -> None:
        """See that the request is still kept: something has to be written to its claim."""
        assert self.counted()[1]

    def freed(self) -> None:
        assert self.counted()[:2] == (0, 0)

    def unpublished(self) -> None:
        """See that the route's own task is not published."""
        assert self.tasks.sent.empty()

    async def later(self) -> None:
        await asyncio.sleep(background.LATEST if self.context.journal else 0)

    def post(self, path: str = "/", late: float = 0.0, method: str = "POST") -> InFlight | None:
        """Send a request whose header came `late` seconds ago."""
        path, _, query = path.partition("?")
        self.posted += 1
        digest = hmac.digest(b"secret", BODY, "sha256").hex()
        headers = {"key": "1", "x-hub-signature-256": f"sha256={digest}", "prefer": ""}
        arrived = monotonic() - late
        sent = Request(
            method, path, query, headers, bytes(BODY), "127.0.0.1", arrived, 0.0, size=len(BODY)
        )
        return self.relay.relay(sent, self._answered)

    def _answered(self, answer: Answer) -> None:
        if self.faulty:
            self.faulty = False
            raise RuntimeError("a fault of the gateway")
        self.answers.append(answer.status)
        self.location = answer.headers.get("Location", "")

    def expire(self) -> None:
        """Let the deadlines of all requests pass."""
        ticks = self.context.deadlines._ticks
        while entries := [entry for tick in ticks.values() for entry in tick]:
            self.context.deadlines.remove(entries[0])
            entries[0].expire()

    def written(self) -> tuple[list[str], bool]:
        """Return the claim's scripts that were run, and whether its result is listened for."""
        unattended = self.context.idempotency.unattended
        return [each for each in self.redis.scripts if each in CLAIM], bool(unattended._waiting)

    def counted(self) -> tuple[int, ...]:
        """Return what is counted of requests."""
        context = self.context
        deadlines = sum(map(len, context.deadlines._ticks.values()))
        sources = sum(each.limits.in_flight for each in self.relay._routes._plain.values())
        steps = len(context.steps._running)
        return context.limits.in_flight, context.limits.bytes, sources, deadlines, steps


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


STEPS: dict[str, Any] = {
    ".": lambda _: turns(),
    "redis": lambda h: h.redis.answer(),
    **{
        each.__name__: each
        for each in (
            Harness.confirm, Harness.take, Harness.refuse, Harness.fault, Harness.answers_faultily,
            Harness.cancel, Harness.held, Harness.freed, Harness.unpublished, Harness.later,
            Harness.expire,
        )
    },
}  # fmt: skip


# How requests end, where steps do not say it -----------------------------------------------


async def answered_once(h: Harness) -> None:
    leased = h.context.idempotency.claims._leased
    h.post("/once")
    await turns()
    assert len(leased) == 1  # until its confirm
    pending = h.tasks.confirm()
    assert not leased
    # A later try may have to read the result, also after a restart of the broker.
    assert pending.message.persistent and pending.message.delivery["store"]
    pending.settle(Outcome(SUCCESS, "done"))


async def accepted_while_the_journal_is_away(h: Harness) -> None:
    h.redis.silent = True
    h.post("/accept")
    await turns()
    h.tasks.confirm()
    before = len(kept())
    await asyncio.sleep(2 * background.LATEST)
    assert not h.context.journal or len(kept()) < before  # the journal has its own copy


async def gone_while_the_journal_is_away(h: Harness) -> tuple[int, ...]:
    h.redis.silent = True
    sent = h.post("/accept")
    await turns()
    h.tasks.confirm()
    if sent.closed:  # without a journal
        return (202,)
    sent.cancel()
    return ()


async def further_task_refused_while_redis_fails(h: Harness) -> None:
    h.post("/also-once")
    await turns()
    h.redis.silent = True
    h.tasks.confirm()
    h.tasks.sent.get_nowait().fail(Unroutable())
    await turns()
    # Its next try has to know which tasks the broker has taken.
    assert not h.answers and further_tasks._ADD in h.redis.scripts
    h.redis.fails = True
    h.redis.answer()
    await turns()


async def further_tasks_taken_by_another_try(h: Harness) -> None:
    h.post("/also-once")
    await turns()
    first = h.tasks.sent.get_nowait()
    h.redis.taken = [first.message.task_id.encode()]
    h.post("/also-once")
    await turns()
    assert h.tasks.sent.qsize() == 2  # the second task of both
    first.confirm()
    h.tasks.confirm()
    h.tasks.confirm()
    await turns()
    for _ in range(2):
        h.tasks.confirm().settle(Outcome(SUCCESS, "done"))


async def further_task_never_confirmed(h: Harness) -> None:
    # A tenth of a second is left, as the loop's clock cannot be set forward.
    h.post("/also-once", late=9.9)
    await turns()
    h.expire()
    await asyncio.sleep(0.2)
    h.tasks.confirm()
    h.tasks.confirm()


async def refused_before_it_is_counted(h: Harness) -> None:
    h.post("/none")
    h.post("/limited")
    h.post("/limited")
    h.post(late=60)
    h.relay.limits.bytes += h.relay.limits.most_bytes
    h.post()
    h.relay.limits.bytes -= h.relay.limits.most_bytes
    await turns()
    h.tasks.confirm().settle(Outcome(SUCCESS, "done"))


async def handshake(h: Harness) -> None:
    query = "hub.mode=subscribe&hub.challenge=1&hub.verify_token=t"
    h.post(f"/limited?{query}", method="GET")
    h.post("/limited", method="PUT")


async def looked_up(h: Harness) -> None:
    h.post("/accept")
    await turns()
    h.tasks.confirm()
    await turns()
    path = h.location.removeprefix("http://gateway")
    h.post(path, method="GET")
    await turns()
    h.redis.result = RESULT
    h.post(path, method="GET")
    await turns()
    h.redis.fails = True
    h.post(path, method="GET")
    await turns()
    h.redis.silent = True
    h.post(path, method="GET")
    await turns()
    h.expire()
    h.post(path, method="GET").cancel()
    await turns()


class End(NamedTuple):
    """The steps of `Harness.do`, or a function, and what comes of it."""

    does: Any
    statuses: tuple[int, ...] = ()  # which a function may return
    #: What is written to the claim, in order, and whether the result is listened for.
    written: tuple[list[str], bool] | None = None
    #: The states that are recorded; None: any, but one for each request.
    states: tuple[str, ...] | None = None


TAKE, CONFIRM, RELEASE, FAIL = scripts.TAKE, scripts.CONFIRM, scripts.RELEASE, scripts.FAIL
FINISH = scripts.FINISH
CONFIRMED, RELEASED = ([TAKE, CONFIRM], True), ([TAKE, RELEASE], True)
FREE = ([TAKE, RELEASE], False)
JOINED, REPEATED = f"{ACCEPTED}, joined", f"{SUCCEEDED}, joined"

ENDS = {
    "answered": End("/ confirm done", (200,)),
    "answered once": End(answered_once, (200,), ([TAKE, CONFIRM, FINISH], False)),
    "failed once": End("/once . confirm failed", (502,), ([TAKE, CONFIRM, FAIL], False)),
    "no answer once": End("/once . confirm odd", (502,), ([TAKE, CONFIRM, CONFIRM], False)),
    "too late once": End("/once . confirm expire .", (504,), CONFIRMED),
    "too late for its confirm once": End("/once . expire", (503,), RELEASED),
    "refused once": End("refuse /once .", (503,), FREE),
    "broker gone once": End("/once . take unavailable", (503,), RELEASED),
    "gone once": End("/once . confirm cancel", (), CONFIRMED),
    # It is asked for the result, which may be there.
    "taken over too late": End("state=lapsed unanswered=READ /once . expire .", (503,), FREE),
    "failed before it was joined": End(
        "state=C result=FAILURE /once . confirm done", (200,),
        ([TAKE, FAIL, TAKE, CONFIRM, FINISH], False),
    ),
    "answered before its confirm": End("/ take done", (200,)),
    "failed": End(
        "/accept /fallback / confirm confirm failed confirm failed later", (202, 502, 502)
    ),
    "accepted": End("/accept confirm .", (202,)),
    "no answer": End("/ confirm odd", (502,)),
    "accepted while the journal is away": End(accepted_while_the_journal_is_away, (202,)),
    "accepted while the journal is away at the deadline": End(
        "silent /accept . confirm expire later .", (202,)
    ),
    "gone while the journal is away": End(gone_while_the_journal_is_away),
    "too late for its confirm": End("/ /once . expire", (503, 503)),
    "too late for its result": End(
        "/ /fallback /once . confirm confirm confirm expire .", (504, 200, 504)
    ),
    "gone": End("/ cancel / cancel take confirm / confirm cancel", states=(ACCEPTED,) * 3),
    "gone and confirmed": End("/once . cancel held confirm", (), CONFIRMED, (ACCEPTED,)),
    "gone and never confirmed": End("/once . cancel expire", (), RELEASED, (REFUSED,)),
    "gone and not taken": End("/once . cancel take unavailable", states=(REFUSED,)),
    "gone before its claim": End(
        "silent /once cancel held redis . confirm", (), CONFIRMED, (ACCEPTED,)
    ),
    "gone before another try's claim": End(
        "silent state=P /once cancel held redis .", states=(f"{REFUSED}, joined",)
    ),
    "gone before another try's task": End(
        "silent state=C /once cancel held redis .", states=(JOINED,)
    ),
    "gone before another try's answer": End(
        "silent state=D result=SUCCESS /once cancel held redis .", states=(REPEATED,)
    ),
    "gone and no claim": End("silent /once cancel fails redis .", states=(REFUSED,)),
    "gone while redis is silent": End("silent /once cancel . expire .", (), FREE, (REFUSED,)),
    "gone before its further tasks": End(
        "/also . cancel held confirm confirm . confirm"
        " /also-once . cancel held confirm confirm . confirm", states=(ACCEPTED,) * 2,
    ),
    "gone and a further task refused": End(
        "/also . cancel confirm take unroutable . /also-once . cancel confirm take unroutable .",
        states=(REFUSED,) * 2,
    ),
    "gone and not wanted": End(
        "/revoked . cancel held confirm confirm . unpublished", states=(REFUSED,)
    ),
    "without a claim": End("fails /once .", (503,), FREE),
    "redis silent": End("silent /once . expire freed .", (503,), FREE),
    "of another body": End("state=conflict /once .", (409,)),
    "refused by the broker": End("refuse / . refuse /once .", (503, 503)),
    "broker gone": End(
        "/ . take unavailable /once . take unavailable /accept . take unavailable", (503,) * 3
    ),
    "result lost": End("/ confirm lost", (504,)),
    "result lost and found": End("/once . result=SUCCESS confirm lost .", (200,)),
    "joined": End("state=P result=SUCCESS /once .", (200,)),
    "joined in vain": End("state=P /once . expire .", (503,)),
    "joined and gone": End("state=P /once . cancel ."),
    "repeated": End("state=D result=SUCCESS /once .", (200,)),
    "taken over": End("state=lapsed /once . confirm . expire .", (504,), CONFIRMED),
    "further task refused": End(
        "/also . confirm take unroutable . /also-once . confirm take unroutable .", (503, 503)
    ),
    "further task refused while redis fails": End(further_task_refused_while_redis_fails, (503,)),
    "further tasks taken by another try": End(further_tasks_taken_by_another_try, (200, 200)),
    "further tasks confirmed too late": End(
        "/also . expire confirm confirm . unpublished"
        " /also-once . expire confirm confirm . unpublished", (503, 503), FREE,
    ),
    "further task never confirmed": End(further_task_never_confirmed, (503,)),
    "broken": End("fault / . fault /once . fault /also .", (500,) * 3),
    "broken at its answer": End("/ confirm unknown .", (502,)),
    "broken while it is refused": End(
        "answers_faultily refuse / . answers_faultily refuse /once .", (500, 500)
    ),
    "refused before it is counted": End(refused_before_it_is_counted, (404, 429, 408, 503, 200)),
    "handshake": End(handshake, (200, 405)),
    "looked up": End(looked_up, (202, 202, 200, 503, 503)),
}  # fmt: skip


def _raised(error: RequestError) -> RequestError:
    """Return `error` with a traceback, as a strategy may have raised it beside the message."""
    try:
        raise error
    except RequestError as raised:
        return raised


def kept() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, KEPT)]


@pytest.mark.parametrize("journal", [0, 100], ids=["", "journal"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
async def test_nothing_of_a_request_is_left(uncollected, monkeypatch, end, journal):
    redis, metrics = Redis(), Metrics(routes=[route["path"] for route in ROUTES])
    monkeypatch.setattr(Pipeline, "run", redis.run)
    monkeypatch.setattr(background, "LATEST", 0.02)
    # A log record that pytest keeps has an error, and since Python 3.13 all frames that it came by.
    monkeypatch.setattr("logging.Logger.handle", lambda *_: None)
    h = Harness(metrics, redis, journal)
    told = await (h.do(end.does) if isinstance(end.does, str) else end.does(h))
    await turns()
    assert sorted(h.answers) == sorted(end.statuses if told is None else told)
    assert h.counted() == (0,) * len(h.counted())
    assert end.written in (None, h.written())
    assert end.states in (None, tuple(h.states)) and len(h.states) == h.posted
    redis.answer()  # what is written has a limit of its own
    await asyncio.sleep(writing.GATHER * 2 if journal else 0)
    redis.answer()
    await turns()
    while not h.tasks.sent.empty():
        h.tasks.sent.get_nowait()
    assert not kept()
    metrics.close()
