"""Celery tasks over a bare AMQP connection, without HTTP: the floor below every gateway.

A message is a template with the number of its task in it, and a reply is found by walking over
the frames: what is measured is the broker and the worker, and hardly this client. `tasks` load the
worker alone: results are replied, stored, or ignored.

https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf, 2.3.5 and 4.2
https://docs.celeryq.dev/en/stable/internals/protocol.html
"""

from __future__ import annotations

import json
import secrets
import select
from collections.abc import Sequence
from functools import partial
from struct import unpack_from
from time import monotonic, process_time
from typing import Any

import pika
from celery import Celery
from kombu import Connection, pools
from pika.frame import Body, Header, Method

from gateway.errors import GatewayError
from gateway.stack.server import poll
from loadtest.bench import Bench, Front
from loadtest.client import result
from loadtest.load import AROUND, Load, take
from loadtest.summary import Row, latency

DIRECT = "amq.rabbitmq.reply-to"
SIZE = 250  # bytes of the body that a task is given
WARM_UP = 1_000  # tasks before those that are measured
_RECEIVE = 262_144  # bytes
_LEAD = 0.05  # seconds before the first task is due
_METHOD, _BODY = 1, 3  # kinds of frames
_DELIVER, _ACK = (60, 60), (60, 80)  # class basic, methods deliver and ack

_NUMBER = "##########"  # stands where a task's number comes
_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_HTTP_HEADERS = {
    "host": "127.0.0.1:8000",
    "content-type": "application/json",
    "content-length": str(SIZE),
}


#: Name -> what is said of the result in the task's message.
WAYS = {"reply": {}, "store": {"reply": False}, "ignore_result": {"ignore_result": True}}

_LATE = 5.0  # seconds
_AT_ONCE = 500  # messages in a write
_KEY = "celery-task-meta-"  # what Celery puts before a task's id


class BrokerError(GatewayError):
    """The broker closed the channel, or said something that nobody asked for."""


class Requester:
    """Publishes echo tasks and receives their replies, on one channel of one connection.

    Replies come to an exclusive queue or, where `direct`, without any queue. Messages are
    mandatory, transient and confirmed, as the gateway's. `timeout` is how many seconds the broker
    may be silent.
    """

    def __init__(self, url: str, *, timeout: float = 30, direct: bool = False):
        self._link = Connection(url, heartbeat=0)
        self._link.connect()
        channel = self._link.channel()
        self._channel = channel.channel_id
        self._reply_to = DIRECT if direct else f"gateway.reply.{secrets.token_hex(8)}"
        if not direct:
            channel.queue_declare(self._reply_to, exclusive=True, auto_delete=True)
        channel.basic_consume(self._reply_to, no_ack=True)
        channel.confirm_select()
        self._socket = self._link.connection.transport.sock
        self._socket.settimeout(timeout)
        self._patience = timeout
        self._buffer = bytearray()
        self._next = 0
        #: What all task ids begin with.
        self.prefix = f"{secrets.token_hex(8)}-"

    def __enter__(self) -> Requester:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._link.collect()

    def body(self, number: int) -> str:
        """Return the body that the task with this number is given, and has to answer with."""
        return self._body(f"{number:010}")

    def _body(self, number: str) -> str:
        start = f'{{"run":"{self.prefix}","padding":"'
        finish = f'","n":{number}}}'
        return start + "x" * (SIZE - len(start) - len(finish)) + finish

    def template(self, *, reply: bool = True, ignore_result: bool = False) -> list[bytes]:
        """Return the pieces of a message between which `publish` puts the task's number."""
        task_id = self.prefix + _NUMBER
        payload = call(self._body(_NUMBER))
        properties = task_properties(task_id, self._reply_to if reply else None, ignore_result)
        publish = pika.spec.Basic.Publish(exchange="", routing_key="celery", mandatory=True)
        frames = (
            Method(self._channel, publish),
            Header(self._channel, len(payload), properties),
            Body(self._channel, payload),
        )
        return b"".join(frame.marshal() for frame in frames).split(_NUMBER.encode())

    def publish(self, template: list[bytes], count: int) -> range:
        """Publish `count` tasks in one write; returns their numbers, which are new."""
        numbers = range(self._next, self._next + count)
        self._next += count
        self._socket.sendall(b"".join((b"%010d" % n).join(template) for n in numbers))
        return numbers

    def receive(self) -> list[bytes]:
        """Wait for replies and return their bodies, each of which is one frame.

        Raises TimeoutError, OSError, and `BrokerError` where it is no reply that comes.
        """
        some = self._socket.recv(_RECEIVE)
        if not some:
            raise BrokerError("the broker closed the connection")
        buffer, bodies, at = self._buffer, [], 0
        buffer += some
        while len(buffer) - at >= 8:
            kind, _, size = unpack_from(">BHI", buffer, at)
            end = at + 8 + size
            if end > len(buffer):
                break
            if kind == _BODY:
                bodies.append(bytes(buffer[at + 7 : end - 1]))
            elif kind == _METHOD and unpack_from(">HH", buffer, at + 7) not in (_DELIVER, _ACK):
                raise BrokerError(
                    f"neither a delivery nor a confirm: {bytes(buffer[at + 7 : end])!r}"
                )
            at = end
        del buffer[:at]
        return bodies

    def answers(self, number: int, reply: bytes | str) -> bool:
        """Is `reply` what the task with this number had to answer?"""
        meta = json.loads(reply)
        right: bool = meta["status"] == "SUCCESS" and meta["result"] == self.body(number)
        return right

    def number(self, reply: bytes) -> int | None:
        """Return the number of the task that `reply` names; None where it is none of ours."""
        task_id = str(json.loads(reply).get("task_id"))
        digits = task_id.removeprefix(self.prefix)
        return int(digits) if digits != task_id and digits.isdecimal() else None

    def warm_up(self, window: int) -> None:
        """Keep `window` tasks in flight for a while before something is measured."""
        self.round_trips(window, requests=WARM_UP)

    def round_trips(
        self, window: int, *, requests: int | None = None, seconds: float = 0
    ) -> dict[str, Any]:
        """Keep `window` tasks in flight, for so many `requests` or `seconds`.

        Returns what `wrk.run` does. What has no answer when the broker falls silent is missing.
        """
        trips = _Trips(self)
        begin = monotonic()
        most = requests if requests is not None else 1 << 40
        left = most - trips.begin(min(window, most), begin)
        while trips.waiting:
            try:
                ended = trips.end(self.receive())
            except TimeoutError:
                break
            if seconds and monotonic() - begin >= seconds:
                left = 0
            if more := min(ended, left):
                left -= trips.begin(more, monotonic())
        return trips.found(monotonic() - begin)

    def at_rate(self, rate: float, seconds: float) -> dict[str, Any]:
        """Publish `rate` tasks a second, whatever the replies do.

        Returns what `openloop.Client.send` does: latencies count from when a task was due.
        """
        trips, late = _Trips(self), list[float]()
        total, sent = max(1, round(rate * seconds)), 0
        cpu, begin = process_time(), monotonic() + _LEAD
        heard = begin
        while sent < total or trips.waiting:
            now = monotonic()
            while sent < total and begin + sent / rate <= now:
                late.append(now - (begin + sent / rate))
                sent += trips.begin(1, begin + sent / rate)
            pause = begin + sent / rate - now if sent < total else self._patience
            if select.select([self._socket], (), (), max(0.0, pause))[0]:
                trips.end(self.receive())
                heard = monotonic()
            elif monotonic() - heard >= self._patience:
                break
        took = monotonic() - begin
        return trips.found(max(took, seconds)) | {
            "schedule": {
                "rate": round(rate, 1),
                "sent": round(rate * sent / total / max(1.0, late[-1] / seconds + 1), 1),
                "late_ms": latency(late),
                "connections": 1,
                "client_cpu_us": round((process_time() - cpu) * 1e6 / total, 1),
            }
        }


class _Trips:
    """Tasks that a requester has published: since when they wait, and how they have ended."""

    def __init__(self, requester: Requester):
        self._requester, self._template = requester, requester.template()
        self.waiting: dict[int, float] = {}
        self._latencies: list[float] = []
        self._wrong = 0

    def begin(self, count: int, since: float) -> int:
        """Publish `count` tasks that wait `since` then; return `count`."""
        self.waiting.update(dict.fromkeys(self._requester.publish(self._template, count), since))
        return count

    def end(self, replies: Sequence[bytes]) -> int:
        """End those that are replied; return how many replies there are."""
        now = monotonic()
        for reply in replies:
            number = self._requester.number(reply)
            since = None if number is None else self.waiting.pop(number, None)
            if number is None or since is None or not self._requester.answers(number, reply):
                self._wrong += 1
            if since is not None:
                self._latencies.append(now - since)
        return len(replies)

    def found(self, seconds: float) -> dict[str, Any]:
        """Return what `wrk.run` does."""
        requests, missing = len(self._latencies), len(self.waiting)
        return result(requests, seconds, self._latencies, self._wrong, missing=missing)


def call(body: str) -> bytes:
    """Encode the call of a task with `body`."""
    return json.dumps([[{}, _HTTP_HEADERS, body], {}, _EMBED]).encode()


def task_properties(
    task_id: str, reply_to: str | None, ignore_result: bool = False
) -> pika.BasicProperties:
    """Return the properties of an echo task's message, with what the gateway says in them."""
    return pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers=_headers(task_id, ignore_result),
        delivery_mode=1,
        correlation_id=task_id,
        reply_to=reply_to,
    )


def _headers(task_id: str, ignore_result: bool) -> dict[str, Any]:
    delivery = {
        "id": task_id, "source": "", "route": "/echo", "event": "", "params": {},
        "query_string": "", "remote": "127.0.0.1", "received_at": "2025-01-01T00:00:00+00:00",
        "traceparent": "", "store": False,
    }  # fmt: skip
    return {
        "lang": "py", "task": "appserver.tasks.echo", "id": task_id, "root_id": task_id,
        "parent_id": None, "group": None, "shadow": None, "eta": None, "expires": None,
        "retries": 0, "timelimit": [None, None], "argsrepr": "", "kwargsrepr": "",
        "origin": "loadtest", "ignore_result": ignore_result, "delivery": delivery,
    }  # fmt: skip


def in_flight(bench: Bench, window: int, duration: float, case: str, direct: bool = False) -> Load:
    """Keep `window` tasks in flight over one connection for `duration` seconds."""

    def measure(front: Front) -> Row:
        with Requester(bench.broker.url, direct=direct) as requester:
            requester.warm_up(window)
            trips = partial(requester.round_trips, window, seconds=duration)
            return take(bench, front, window, trips)

    return Load(case, duration + AROUND, measure)


def tasks(bench: Bench, way: str, number: int, pool: str) -> Load:
    """Have the worker, which has that `pool`, run `number` tasks that wait for it in its queue."""

    def measure(front: Front) -> Row:
        with Requester(bench.broker.url) as requester:
            requester.round_trips(64, requests=min(number, 2 * WARM_UP))
            before = ran(bench)
            row = take(bench, front, 1, lambda: _run(bench, requester, way, number))
            # With the one that is behind the last of those that do not answer.
            expected = number + (way != "reply")
            not_run = abs(expected - (ran(bench) - before))
        row["errors_by_kind"]["missing"] += not_run
        row["errors"] += not_run
        return row

    return Load(tasks_case(number, pool), 8 + number / 1_500, measure)


def tasks_case(number: int, pool: str) -> str:
    """Return the name of this load."""
    return f"{number:,} tasks, {pool}"


def _run(bench: Bench, requester: Requester, way: str, number: int) -> dict[str, Any]:
    """Publish and wait; returns what `wrk.run` does, but for latencies."""
    begin = monotonic()
    template = requester.template(**WAYS[way])
    missing: set[int] = set()
    last: set[int] = set()
    for at in range(0, number, _AT_ONCE):
        missing.update(requester.publish(template, min(_AT_ONCE, number - at)))
    if way == "reply":
        wrong = _replies(requester, missing)
    else:
        # A queue is first in, first out.
        last = set(requester.publish(requester.template(), 1))
        wrong = _replies(requester, last)
    seconds = monotonic() - begin
    if way == "store":
        wrong += _stored(bench, requester, missing)
    elif way == "ignore_result":
        wrong += _nothing_stored(bench, requester)
        missing = set()
    return result(number - len(missing), seconds, wrong=wrong, missing=len(missing | last))


def _replies(requester: Requester, missing: set[int]) -> int:
    """Take replies until none is `missing` or the broker falls silent; count the wrong ones."""
    wrong = 0
    while missing:
        try:
            replies = requester.receive()
        except TimeoutError:
            break
        for reply in replies:
            number = requester.number(reply)
            wrong += number not in missing or not requester.answers(number, reply)
            missing.discard(number)
    return wrong


def _stored(bench: Bench, requester: Requester, missing: set[int]) -> int:
    """Take from `missing` what is in Redis; count what is wrong there."""
    numbers, wrong = sorted(missing), 0
    keys = [f"{_KEY}{requester.prefix}{number:010}" for number in numbers]
    with bench.ask_redis() as connection:
        # Of several processes, one may still run a task when another has run the last one.
        poll(lambda: connection.exists(*keys) == len(keys), _LATE)
        for number, result in zip(numbers, connection.mget(keys), strict=True):
            if result is not None:
                missing.discard(number)
                wrong += not requester.answers(number, result)
        connection.flushall()
    return wrong


def _nothing_stored(bench: Bench, requester: Requester) -> int:
    # Of these tasks: those of a gateway that has ended may be stored late.
    with bench.ask_redis() as connection:
        return sum(1 for _ in connection.scan_iter(f"{_KEY}{requester.prefix}*", 1_000))


def ran(bench: Bench) -> int:
    """Ask the worker how many tasks it has run."""
    app = Celery(broker=bench.broker.url)
    pools.reset()  # a connection that was left there may be closed
    try:
        inspected = app.control.inspect(timeout=10, limit=1).stats() or {}
    finally:
        pools.reset()
    return sum(sum(stats["total"].values()) for stats in inspected.values())
