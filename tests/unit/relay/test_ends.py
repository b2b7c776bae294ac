"""Nothing of a request is counted or kept once it has ended, however it ended.

The garbage collector is off: what a reference cycle keeps is found.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import struct
import time
from time import monotonic
from typing import Any

import pytest

from gateway.answer import Answer
from gateway.celery_message import Message, TaskIds
from gateway.claims import scripts
from gateway.config.settings import Config
from gateway.delivery import Delivery, Request
from gateway.errors import BrokerUnavailable, RequestError, ResultsLost, Unanswered, Unroutable
from gateway.journal import writing
from gateway.metrics import Metrics
from gateway.outcome import FAILURE, SUCCESS, Outcome
from gateway.pending_task import PendingTask
from gateway.relay import further_tasks
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
    {"path": "/limited", "source": "few"},
]
SOURCES = {"few": {"scheme": "meta", "secrets": "secret", "verify_token": "t", "max_in_flight": 1}}
RESULT = b'{"status": "SUCCESS", "result": 1}'

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
        self.relay = Relay(config, self.tasks, metrics, TaskIds())
        self.context = self.relay.context
        self.answers: list[int] = []
        self.location = ""
        self.faulty = False  # its next answer cannot be written

    def post(self, path: str = "/", late: float = 0.0, method: str = "POST") -> InFlight | None:
        """Send a request whose header came `late` seconds ago."""
        path, _, query = path.partition("?")
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
        late = self.context.idempotency.late
        return [each for each in self.redis.scripts if each in CLAIM], bool(late._waiting)

    def counted(self) -> tuple[int, ...]:
        """Return what is counted of requests."""
        context = self.context
        deadlines = sum(map(len, context.deadlines._ticks.values()))
        sources = sum(each.limits.in_flight for each in self.relay._routes._plain.values())
        steps = len(context.steps._tasks)
        return context.limits.in_flight, context.limits.bytes, sources, deadlines, steps


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


# How requests end: each function returns the statuses that the sender gets ---------------


async def answered(h: Harness) -> list[int]:
    h.post()
    h.tasks.confirm().settle(Outcome(SUCCESS, "done"))
    return [200]


async def answered_once(h: Harness) -> list[int]:
    leased = h.context.idempotency.claims._leased
    h.post("/once")
    await turns()
    assert len(leased) == 1  # until its confirm
    pending = h.tasks.confirm()
    assert not leased
    # A later try may have to read the result, also after a restart of the broker.
    assert pending.message.persistent and pending.message.delivery["store"]
    pending.settle(Outcome(SUCCESS, "done"))
    return [200]


async def failed_once(h: Harness) -> list[int]:
    h.post("/once")
    await turns()
    h.tasks.confirm().settle(Outcome(FAILURE, error="no"))
    return [502]


async def answered_once_with_what_is_no_answer(h: Harness) -> list[int]:
    h.post("/once")
    await turns()
    h.tasks.confirm().settle(Outcome(SUCCESS, {"status": 99, "headers": {}, "body": ""}))
    return [502]


async def too_late_once(h: Harness) -> list[int]:
    h.post("/once")
    await turns()
    h.tasks.confirm()
    h.expire()
    await turns()
    return [504]


async def too_late_for_its_confirm_once(h: Harness) -> list[int]:
    h.post("/once")
    await turns()
    h.expire()
    return [503]


async def refused_once(h: Harness) -> list[int]:
    h.tasks.error = Unroutable("There is no queue.")
    h.post("/once")
    await turns()
    return [503]


async def broker_gone_once(h: Harness) -> list[int]:
    h.post("/once")
    await turns()
    h.tasks.sent.get_nowait().fail(BrokerUnavailable())
    return [503]


async def gone_once(h: Harness) -> list[int]:
    sent = h.post("/once")
    await turns()
    h.tasks.confirm()
    sent.cancel()
    return []


async def taken_over_too_late(h: Harness) -> list[int]:
    h.redis.state = b"lapsed"
    h.redis.unanswered = READ
    h.post("/once")  # it is asked for the result, which may be there
    await turns()
    h.expire()
    await turns()
    return [503]


async def failed_before_it_was_joined(h: Harness) -> list[int]:
    h.redis.state, h.redis.result = b"C", b'{"status": "FAILURE", "result": {}}'
    h.post("/once")
    await turns()
    h.tasks.confirm().settle(Outcome(SUCCESS, "done"))
    return [200]


async def answered_before_its_confirm(h: Harness) -> list[int]:
    h.post()
    h.tasks.sent.get_nowait().settle(Outcome(SUCCESS, "done"))
    return [200]


async def failed(h: Harness) -> list[int]:
    h.post("/accept")
    h.post("/fallback")
    h.post()
    h.tasks.confirm()
    for _ in range(2):
        h.tasks.confirm().settle(Outcome(FAILURE, error="no"))
    await asyncio.sleep(writing.LATEST if h.context.journal else 0)
    return [202, 502, 502]


async def answered_with_what_is_no_answer(h: Harness) -> list[int]:
    h.post()
    h.tasks.confirm().settle(Outcome(SUCCESS, {"status": 99, "headers": {}, "body": ""}))
    return [502]


async def accepted(h: Harness) -> list[int]:
    h.post("/accept")
    h.tasks.confirm()
    await turns()
    return [202]


async def accepted_while_the_journal_is_away(h: Harness) -> list[int]:
    h.redis.silent = True
    h.post("/accept")
    await turns()
    h.tasks.confirm()
    before = len(kept())
    await asyncio.sleep(2 * writing.LATEST)
    assert not h.context.journal or len(kept()) < before  # the journal has its own copy
    return [202]


async def gone_while_the_journal_is_away(h: Harness) -> list[int]:
    h.redis.silent = True
    sent = h.post("/accept")
    await turns()
    h.tasks.confirm()
    if sent is not None and not sent.closed:
        sent.cancel()
        return []
    return [202]


async def too_late_for_its_confirm(h: Harness) -> list[int]:
    h.post()
    h.post("/once")
    await turns()
    h.expire()
    return [503, 503]


async def too_late_for_its_result(h: Harness) -> list[int]:
    for path in ("/", "/fallback", "/once"):
        h.post(path)
    await turns()
    for _ in range(3):
        h.tasks.confirm()
    h.expire()
    await turns()
    return [504, 200, 504]


async def gone(h: Harness) -> list[int]:
    for _ in range(2):
        h.post().cancel()
    h.tasks.sent.get_nowait()
    h.tasks.confirm()
    sent = h.post()
    h.tasks.confirm()
    sent.cancel()
    return []


async def gone_and_confirmed(h: Harness) -> list[int]:
    sent = h.post("/once")
    await turns()
    sent.cancel()
    assert h.counted()[1]  # its confirm has to be written to its claim
    h.tasks.confirm()
    return []


async def gone_and_never_confirmed(h: Harness) -> list[int]:
    sent = h.post("/once")
    await turns()
    sent.cancel()
    h.expire()
    return []


async def gone_and_not_taken(h: Harness) -> list[int]:
    sent = h.post("/once")
    await turns()
    sent.cancel()
    h.tasks.sent.get_nowait().fail(BrokerUnavailable())
    return []


async def gone_before_its_claim(h: Harness) -> list[int]:
    h.redis.silent = True
    h.post("/once").cancel()
    assert h.counted()[1]
    h.redis.answer()
    await turns()
    h.tasks.confirm()
    return []


async def gone_before_another_try_s_claim(h: Harness) -> list[int]:
    h.redis.silent, h.redis.state = True, b"P"
    h.post("/once").cancel()
    assert h.counted()[1]
    h.redis.answer()
    await turns()
    return []


async def gone_and_no_claim(h: Harness) -> list[int]:
    h.redis.silent = True
    h.post("/once").cancel()
    h.redis.fails = True
    h.redis.answer()
    await turns()
    return []


async def gone_while_redis_is_silent(h: Harness) -> list[int]:
    h.redis.silent = True
    h.post("/once").cancel()
    await turns()
    h.expire()
    await turns()
    return []


async def gone_before_its_further_tasks(h: Harness) -> list[int]:
    for path in ("/also", "/also-once"):
        sent = h.post(path)
        await turns()
        sent.cancel()
        assert h.counted()[1]
        h.tasks.confirm()
        h.tasks.confirm()
        await turns()
        h.tasks.confirm()
    return []


async def without_a_claim(h: Harness) -> list[int]:
    h.redis.fails = True
    h.post("/once")
    await turns()
    return [503]


async def redis_silent(h: Harness) -> list[int]:
    h.redis.silent = True
    h.post("/once")
    await turns()
    h.expire()
    assert h.counted()[:2] == (0, 0)
    await turns()
    return [503]


async def of_another_body(h: Harness) -> list[int]:
    h.redis.state = b"conflict"
    h.post("/once")
    await turns()
    return [409]


async def refused_by_the_broker(h: Harness) -> list[int]:
    for path in ("/", "/once"):
        h.tasks.error = Unroutable("There is no queue.")
        h.post(path)
        await turns()
    return [503, 503]


async def broker_gone(h: Harness) -> list[int]:
    for path in ("/", "/once", "/accept"):
        h.post(path)
        await turns()
        h.tasks.sent.get_nowait().fail(_raised(BrokerUnavailable()))
    return [503, 503, 503]


async def result_lost(h: Harness) -> list[int]:
    h.post()
    h.tasks.confirm().fail(_raised(ResultsLost()))
    return [504]


async def result_lost_and_found(h: Harness) -> list[int]:
    h.post("/once")
    await turns()
    h.redis.result = RESULT
    h.tasks.confirm().fail(_raised(ResultsLost()))
    await turns()
    return [200]


async def joined(h: Harness) -> list[int]:
    h.redis.state, h.redis.result = b"P", RESULT
    h.post("/once")
    await turns()
    return [200]


async def joined_in_vain(h: Harness) -> list[int]:
    h.redis.state = b"P"
    h.post("/once")
    await turns()
    h.expire()
    await turns()
    return [503]


async def joined_and_gone(h: Harness) -> list[int]:
    h.redis.state = b"P"
    sent = h.post("/once")
    await turns()
    sent.cancel()
    await turns()
    return []


async def repeated(h: Harness) -> list[int]:
    h.redis.state, h.redis.result = b"D", RESULT
    h.post("/once")
    await turns()
    return [200]


async def taken_over(h: Harness) -> list[int]:
    h.redis.state = b"lapsed"
    h.post("/once")
    await turns()
    h.tasks.confirm()
    await turns()
    h.expire()
    await turns()
    return [504]


async def further_task_refused(h: Harness) -> list[int]:
    for path in ("/also", "/also-once"):
        h.post(path)
        await turns()
        h.tasks.confirm()
        h.tasks.sent.get_nowait().fail(_raised(Unroutable()))
        await turns()
    return [503, 503]


async def further_task_refused_while_redis_fails(h: Harness) -> list[int]:
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
    return [503]


async def further_tasks_taken_by_another_try(h: Harness) -> list[int]:
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
    return [200, 200]


async def further_tasks_confirmed_too_late(h: Harness) -> list[int]:
    for path in ("/also", "/also-once"):
        h.post(path)
        await turns()
        h.expire()
        h.tasks.confirm()
        h.tasks.confirm()
        await turns()
        assert h.tasks.sent.empty()  # the route's own task is not published
    assert scripts.RELEASE in h.redis.scripts
    return [503, 503]


async def further_task_never_confirmed(h: Harness) -> list[int]:
    # A tenth of a second is left, as the loop's clock cannot be set forward.
    h.post("/also-once", late=9.9)
    await turns()
    h.expire()
    await asyncio.sleep(0.2)
    h.tasks.confirm()
    h.tasks.confirm()
    return [503]


async def broken(h: Harness) -> list[int]:
    for path in ("/", "/once", "/also"):
        h.tasks.error = RuntimeError("a fault of the gateway")
        h.post(path)
        await turns()
    return [500, 500, 500]


async def broken_at_its_answer(h: Harness) -> list[int]:
    h.post()
    h.tasks.confirm().settle(Outcome("ODD", object()))
    await turns()
    return [502]


async def broken_while_it_is_refused(h: Harness) -> list[int]:
    for path in ("/", "/once"):
        h.faulty = True
        h.tasks.error = Unroutable("There is no queue.")
        h.post(path)
        await turns()
    return [500, 500]


async def refused_before_it_is_counted(h: Harness) -> list[int]:
    h.post("/none")
    h.post("/limited")
    h.post("/limited")
    h.post(late=60)
    h.relay.limits.bytes += h.relay.limits.most_bytes
    h.post()
    h.relay.limits.bytes -= h.relay.limits.most_bytes
    await turns()
    h.tasks.confirm().settle(Outcome(SUCCESS, "done"))
    return [404, 429, 408, 503, 200]


async def handshake(h: Harness) -> list[int]:
    query = "hub.mode=subscribe&hub.challenge=1&hub.verify_token=t"
    h.post(f"/limited?{query}", method="GET")
    h.post("/limited", method="PUT")
    return [200, 405]


async def looked_up(h: Harness) -> list[int]:
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
    return [202, 202, 200, 503, 503]


#: What is written to the claim, in order, and whether the result is listened for.
TAKE, CONFIRM, RELEASE = scripts.TAKE, scripts.CONFIRM, scripts.RELEASE
WRITTEN = {
    answered_once: ([TAKE, CONFIRM, scripts.FINISH], False),
    failed_once: ([TAKE, CONFIRM, scripts.FAIL], False),
    answered_once_with_what_is_no_answer: ([TAKE, CONFIRM, CONFIRM], False),
    too_late_once: ([TAKE, CONFIRM], True),
    too_late_for_its_confirm_once: ([TAKE, RELEASE], True),
    refused_once: ([TAKE, RELEASE], False),
    broker_gone_once: ([TAKE, RELEASE], True),
    gone_once: ([TAKE, CONFIRM], True),
    gone_and_confirmed: ([TAKE, CONFIRM], True),
    gone_and_never_confirmed: ([TAKE, RELEASE], True),
    gone_before_its_claim: ([TAKE, CONFIRM], True),
    gone_while_redis_is_silent: ([TAKE, RELEASE], False),
    redis_silent: ([TAKE, RELEASE], False),
    without_a_claim: ([TAKE, RELEASE], False),
    taken_over: ([TAKE, CONFIRM], True),
    taken_over_too_late: ([TAKE, RELEASE], False),
    failed_before_it_was_joined: ([TAKE, scripts.FAIL, TAKE, CONFIRM, scripts.FINISH], False),
}

ENDS = (
    answered, answered_once, failed_once, answered_once_with_what_is_no_answer, too_late_once,
    too_late_for_its_confirm_once, refused_once, broker_gone_once, gone_once, taken_over_too_late,
    failed_before_it_was_joined, answered_before_its_confirm, failed, accepted,
    answered_with_what_is_no_answer, accepted_while_the_journal_is_away,
    gone_while_the_journal_is_away, too_late_for_its_confirm, too_late_for_its_result, gone,
    gone_and_confirmed, gone_and_never_confirmed, gone_and_not_taken, gone_before_its_claim,
    gone_before_another_try_s_claim, gone_and_no_claim, gone_while_redis_is_silent,
    gone_before_its_further_tasks, without_a_claim, redis_silent, of_another_body,
    refused_by_the_broker, broker_gone, result_lost, result_lost_and_found, joined, joined_in_vain,
    joined_and_gone, repeated, taken_over, further_task_refused,
    further_task_refused_while_redis_fails, further_tasks_taken_by_another_try,
    further_tasks_confirmed_too_late, further_task_never_confirmed, broken, broken_at_its_answer,
    broken_while_it_is_refused, refused_before_it_is_counted, handshake, looked_up,
)  # fmt: skip


def _raised(error: RequestError) -> RequestError:
    """Return `error` with a traceback, as a strategy may have raised it beside the message."""
    try:
        raise error
    except RequestError as raised:
        return raised


def kept() -> list[object]:
    return [each for each in gc.get_objects() if isinstance(each, KEPT)]


@pytest.mark.parametrize("journal", [0, 100], ids=["", "journal"])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_nothing_of_a_request_is_left(uncollected, monkeypatch, end, journal):
    redis, metrics = Redis(), Metrics(routes=[route["path"] for route in ROUTES])
    monkeypatch.setattr(Pipeline, "run", redis.run)
    monkeypatch.setattr(writing, "LATEST", 0.02)
    # A log record that pytest keeps has an error, and since Python 3.13 all frames that it came by.
    monkeypatch.setattr("logging.Logger.handle", lambda *_: None)

    async def run() -> None:
        h = Harness(metrics, redis, journal)
        expected = await end(h)
        await turns()
        assert sorted(h.answers) == sorted(expected)
        assert h.counted() == (0,) * len(h.counted())
        assert h.written() == WRITTEN.get(end, h.written())
        redis.answer()  # what is written has a limit of its own
        await asyncio.sleep(writing.GATHER * 2 if journal else 0)
        redis.answer()
        await turns()
        while not h.tasks.sent.empty():
            h.tasks.sent.get_nowait()
        assert not kept()

    asyncio.run(run())
    metrics.close()
