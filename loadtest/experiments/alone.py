"""One request at a time: what HTTP and the gateway add to an AMQP round trip's latency.

The round trip is measured twice: by a client of pika, which is what the gateway has, too, and by
one that writes frames it has made before, below which nothing can get.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from time import monotonic
from typing import Any

import pika
from kombu.utils.url import parse_url
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from loadtest import client
from loadtest.amqp import SIZE, Requester, call, task_properties
from loadtest.bench import Bench, Front
from loadtest.connection import KINDS
from loadtest.load import Load, take
from loadtest.report import Report
from loadtest.stack import Stack
from loadtest.summary import Row, latency
from loadtest.targets import Bounds, Target, ratios
from loadtest.trials import Trial, alternate

DEFAULTS = {"strategies": ["pika", "redis"], "requests": 3_000}

CASE = "one at a time"
LIBRARY, FRAMES = "amqp, pika", "amqp, frames"
#: The most that p50 may be of a bare round trip's with `LIBRARY`.
BOUNDS: dict[str, Bounds] = {
    "pika": {"at_most": 1.2, "aim": 1.1},
    "redis": {"at_most": 1.6, "aim": 1.25},
}


def run(options: argparse.Namespace, stack: Stack) -> Report:
    """Ask each strategy and the bare connection in turn, with the same worker behind."""
    bench = Bench(stack)
    report = Report("alone", versions=bench.versions())

    def over_http(front: Front) -> Row:
        ask = partial(client.one_by_one, front.url, options.requests, bench.deadline + 5)
        return take(bench, front, 1, ask)

    def over_amqp(front: Front) -> Row:
        with Requester(bench.broker.url) as requester:
            requester.warm_up(64)
            ask = partial(requester.round_trips, 1, requests=options.requests)
            return take(bench, front, 1, ask)

    def over_pika(front: Front) -> Row:
        ask = partial(one_by_one, bench.broker.url, options.requests, bench.deadline)
        return take(bench, front, 1, ask)

    seconds = options.requests / 500
    with bench.worker():
        worker = Front("", dict(bench.servers))
        trials = [
            *(
                Trial(name, partial(bench.gateway, name), [Load(CASE, seconds, over_http)])
                for name in options.strategies
            ),
            *(
                Trial(name, lambda: nullcontext(worker), [Load(CASE, seconds, over)], checked=False)
                for name, over in ((LIBRARY, over_pika), (FRAMES, over_amqp))
            ),
        ]
        alternate(trials, options, report)
    for bare in (LIBRARY, FRAMES):
        for name in options.strategies:
            values = ratios(report.rows, ("latency_ms", "p50"), (name, CASE), (bare, CASE))
            bounds: Bounds = BOUNDS.get(name, {}) if bare == LIBRARY else {}
            report.judge(Target(f"p50, {name} / {bare}", values, **bounds))
    report.remarks = [
        f"{options.requests:,} requests a measurement, each sent when the one before it is "
        f"answered. {LIBRARY}: a bare AMQP round trip with pika on the gateway's event loop, as "
        f"anybody would write it. {FRAMES}: the same with frames that were made before, on a "
        "blocking socket, as the HTTP client has one. Both have an exclusive reply queue, and "
        "publish as the gateway does: mandatory, transient and confirmed.",
    ]
    return report


new_event_loop: Callable[[], asyncio.AbstractEventLoop] | None
try:  # the gateway's own choice
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = None


def one_by_one(url: str, requests: int, timeout: float) -> dict[str, Any]:
    """Publish `requests` echo tasks, each after the reply to the one before it.

    Returns what `wrk.run` does. What has no reply `timeout` seconds after the start, and so many
    more as a slow round trip takes, is missing.
    """
    trips = _RoundTrips(url, requests)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(trips.run(timeout + requests * 0.1))
    return {
        "requests": len(trips.seconds),
        "seconds": trips.took,
        "wrong_answers": trips.wrong,
        "errors": {**dict.fromkeys(KINDS, 0), "missing": int(len(trips.seconds) < requests)},
        "latency_ms": latency(trips.seconds),
    }


class _RoundTrips:
    def __init__(self, url: str, requests: int):
        parts = parse_url(url)
        self._parameters = pika.ConnectionParameters(
            host=parts["hostname"],
            port=parts["port"],
            virtual_host=parts["virtual_host"],
            credentials=pika.PlainCredentials(parts["userid"], parts["password"]),
        )
        self._requests = requests
        self._reply_to = f"gateway.reply.{secrets.token_hex(8)}"
        self._channel: Channel  # once it is open
        self._done = asyncio.Event()
        self._sent = 0.0
        self._body = ""
        self.seconds: list[float] = []
        self.wrong = 0
        self.took = 0.0

    async def run(self, timeout: float) -> None:
        begin = monotonic()
        closed = asyncio.Event()
        connection = AsyncioConnection(
            self._parameters,
            on_open_callback=self._connected,
            on_close_callback=lambda _connection, _exc: closed.set(),
        )
        try:
            async with asyncio.timeout(timeout):
                await self._done.wait()
        except TimeoutError:
            pass  # the one that is under way is missing
        self.took = monotonic() - begin
        connection.close()
        async with asyncio.timeout(timeout):
            await closed.wait()
            await asyncio.sleep(0)  # pika's transport closes its socket in the next turn

    def _connected(self, connection: AsyncioConnection) -> None:
        connection.channel(on_open_callback=self._opened)

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.confirm_delivery(lambda _frame: None)
        channel.queue_declare(self._reply_to, exclusive=True, callback=self._declared)

    def _declared(self, _frame: object) -> None:
        self._channel.basic_consume(
            self._reply_to, self._replied, auto_ack=True, callback=lambda _frame: self._publish()
        )

    def _publish(self) -> None:
        task_id = f"{self._reply_to}-{len(self.seconds)}"
        self._body = f"{task_id}{'x' * (SIZE - len(task_id))}"
        properties = task_properties(task_id, self._reply_to)
        self._sent = monotonic()
        body = call(self._body)
        self._channel.basic_publish("", "celery", body, properties, mandatory=True)

    def _replied(
        self, _channel: Channel, _method: object, _properties: object, reply: bytes
    ) -> None:
        self.seconds.append(monotonic() - self._sent)
        meta = json.loads(reply)
        self.wrong += meta["status"] != "SUCCESS" or meta["result"] != self._body
        if len(self.seconds) < self._requests:
            self._publish()
        else:
            self._done.set()
