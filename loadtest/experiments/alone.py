"""One request at a time: what HTTP and the gateway add to an AMQP round trip's latency.

The round trip is measured twice: by a client of pika, which is what the gateway has, too, and by
one that writes frames it has made before, below which nothing can get.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
from functools import partial
from time import monotonic
from typing import Any

from kombu.utils.url import parse_url
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from loadtest import client
from loadtest.amqp import SIZE, Requester, call, task_properties
from loadtest.bench import Bench, Front
from loadtest.client import result
from loadtest.lab.consumers.drivers.event_loop import called, connect
from loadtest.load import Load, take
from loadtest.report import Report
from loadtest.servers.alone import new_event_loop
from loadtest.stack import Stack
from loadtest.summary import Row
from loadtest.targets import Bounds
from loadtest.trials import Trial, alternate, running

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
    with bench.worker() as worker:
        trials = [
            *(
                Trial(name, partial(bench.gateway, name), [Load(CASE, seconds, over_http)])
                for name in options.strategies
            ),
            *(
                running(name, worker, [Load(CASE, seconds, over)])
                for name, over in ((LIBRARY, over_pika), (FRAMES, over_amqp))
            ),
        ]
        alternate(trials, options, report)
    for bare in (LIBRARY, FRAMES):
        for name in options.strategies:
            bounds: Bounds = BOUNDS.get(name, {}) if bare == LIBRARY else {}
            pair = (name, CASE), (bare, CASE)
            report.compare(f"p50, {name} / {bare}", ("latency_ms", "p50"), *pair, **bounds)
    report.remarks = [
        f"{options.requests:,} requests a measurement, each sent when the one before it is "
        f"answered. {LIBRARY}: a bare AMQP round trip with pika on the gateway's event loop, as "
        f"anybody would write it. {FRAMES}: the same with frames that were made before, on a "
        "blocking socket, as the HTTP client has one. Both have an exclusive reply queue, and "
        "publish as the gateway does: mandatory, transient and confirmed.",
    ]
    return report


def one_by_one(url: str, requests: int, timeout: float) -> dict[str, Any]:
    """Publish `requests` echo tasks, each after the reply to the one before it.

    Returns what `wrk.run` does. What has no reply `timeout` seconds after the start, and so many
    more as a slow round trip takes, is missing.
    """
    trips = _RoundTrips(requests)
    begin = monotonic()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        took = runner.run(trips.run(url, timeout + requests * 0.1)) - begin
    done = len(trips.seconds)
    return result(done, took, trips.seconds, trips.wrong, missing=int(done < requests))


class _RoundTrips:
    def __init__(self, requests: int):
        self._requests = requests
        self._reply_to = f"gateway.reply.{secrets.token_hex(8)}"
        self._channel: Channel  # once it is open
        self._done = asyncio.Event()
        self._sent = 0.0
        self._body = ""
        self.seconds: list[float] = []
        self.wrong = 0

    async def run(self, url: str, timeout: float) -> float:
        """Return when the last reply came, or when none came any more."""
        closed = asyncio.Event()
        connection = None
        try:
            async with asyncio.timeout(timeout):
                connection = await connect(parse_url(url), lambda *_: closed.set())
                await self._begin(connection)
                await self._done.wait()
        except TimeoutError:
            pass  # the one that is under way is missing
        end = monotonic()
        if connection is not None:
            connection.close()
            async with asyncio.timeout(timeout):
                await closed.wait()
                await asyncio.sleep(0)  # pika's transport closes its socket in the next turn
        return end

    async def _begin(self, connection: AsyncioConnection) -> None:
        channel = await called(lambda done: connection.channel(on_open_callback=done))
        self._channel = channel
        channel.confirm_delivery(lambda _frame: None)
        name = self._reply_to
        await called(lambda done: channel.queue_declare(name, exclusive=True, callback=done))
        replied = self._replied
        await called(
            lambda done: channel.basic_consume(name, replied, auto_ack=True, callback=done)
        )
        self._publish()

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
