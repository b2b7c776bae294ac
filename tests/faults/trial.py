"""Rows, and one of them being run: its servers, its lanes, its load, the window of its fault."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from gateway.config.strategies import STRATEGIES, properties
from gateway.stack.server import poll
from tests.faults.client import EXTRA, Client, Sender
from tests.faults.faults import Fault, Injection
from tests.faults.lane import SENT, Lane
from tests.faults.oracle import RECOVERY, Result
from tests.faults.servers import Servers, port_of, together
from tests.simulation.records import Injected
from tests.support.stack import RabbitMQ, Server

T = TypeVar("T")
N = TypeVar("N", int, float)
AnyLane = TypeVar("AnyLane", bound=Lane)


@dataclass(frozen=True)
class Size:
    """How much every row does."""

    requests: int = 2_000  # of each lane under load, at least
    warm: float = 3.0  # seconds of load before the fault
    steady: float = 3.0  # seconds of good answers after which it has recovered
    burst: int = 150  # requests at once before anything is measured: pools are full then
    share: float = 1.0  # of the rates that two cores bear
    short: bool = False


WHOLE = Size()
SHORT = Size(requests=150, warm=1.0, steady=1.5, burst=50, share=0.4, short=True)

ENOUGH = 120.0  # seconds until a lane must have sent as many requests as it has to

_numbers = itertools.count(1)


ALL = tuple(STRATEGIES)
#: What is under way there is published; elsewhere it may wait for a thread or a greenlet, and of
#: whoever leaves meanwhile no task runs.
AT_ONCE = tuple(name for name in STRATEGIES if not properties(name).publishing)
TWO = ("pika", "redis")
LOST = (502, 503, 504)


@dataclass(frozen=True)
class Row:
    """One fault: `run` injects it.

    Inside its time only `statuses` are excused, besides 2xx; `again`: tasks may run twice;
    `same`: the serving processes stay the same; `second`: a claim may be lost, and its delivery run
    once for each try; `deadline` of its requests (seconds).
    """

    number: int
    title: str
    run: Callable[[Trial], None]
    statuses: tuple[int | str, ...] = ()
    strategies: tuple[str, ...] = TWO
    again: bool = False
    same: bool = True
    second: bool = False
    deadline: float = 8.0


ROWS: dict[int, Row] = {}
Run = TypeVar("Run", bound=Callable[["Trial"], None])


def row(number: int, title: str, *more: Any, **options: Any) -> Callable[[Run], Run]:
    """Have a function be the row of this number; the arguments are those of `Row`."""

    def register(run: Run) -> Run:
        ROWS[number] = Row(number, title, run, *more, **options)
        return run

    return register


class Trial:
    """A row's run over some strategies, side by side."""

    def __init__(self, row: Row, servers: Servers, strategies: Sequence[str], size: Size):
        self.row, self.deadline = row, row.deadline
        self.servers, self.stack = servers, servers.stack
        self.strategies, self.size = list(strategies), size
        self.number = next(_numbers)
        self.client = Client()
        self.lanes: list[Lane] = []
        self._asked, self._kept = "", False
        self._exit = ExitStack()
        self._exit.callback(self.client.close)

    @property
    def broker(self) -> RabbitMQ:
        return self.servers.broker

    @property
    def results(self) -> Server:
        return self.servers.results

    # Servers ------------------------------------------------------------------------------

    def open(self, *options: str, broker: str = "", results: str = "", **more: Any) -> None:
        """Start a lane for each strategy, and in each what `serve` starts.

        In the short form, the worker and the gateway of a row that has held serve the next one that
        asks for the same.
        """
        servers = {name: more.get(name) for name in ("worker", "gateway", "services", "nginx")}
        if more.get("nginx") is None:  # it is not kept, and whoever asks would not find it
            self._asked = repr((self.strategies, self.deadline, options, broker, results, servers))
        for lane in self.servers.take(self._asked):
            self.send_to(self._add(lane), **{k: v for k, v in more.items() if k not in servers})
        if not self.lanes:
            for strategy in self.strategies:
                self.lane(strategy, broker=broker, results=results)
            self.each(lambda lane: self.serve(lane, *options, **more))

    def serve(
        self,
        lane: Lane,
        *options: str,
        worker: Mapping[str, Any] | None = None,
        gateway: Mapping[str, Any] | None = None,
        services: int = 1,
        nginx: Mapping[str, str] | None = None,
        **sender: object,
    ) -> None:
        """Start a worker, so many gateways with `options`, nginx with its directives, a sender.

        `worker` and `gateway` are options of `start_worker` and `start_gateway`.
        """
        gateways = [partial(lane.start_gateway, *options, **(gateway or {}))] * services
        together(partial(lane.start_worker, **(worker or {})), *gateways)
        port = port_of(lane.gateway)
        if nginx is not None:
            front = self.stack.nginx([port_of(each) for each in lane.gateways], **nginx)
            self.at_exit(front.kill)
            port = port_of(front)
        self.send_to(lane, port, **sender)

    def lane(
        self, strategy: str, broker: str = "", results: str = "", kind: type[AnyLane] = Lane,
        **more: Any,
    ) -> AnyLane:  # fmt: skip
        """Make a lane in which nothing runs yet."""
        name = f"{self.number}-{len(self.lanes)}-{strategy}"
        urls = broker or self.broker.url, results or self.results.url
        return self._add(kind(self.stack, name, strategy, *urls, self.deadline, **more))

    def _add(self, lane: AnyLane) -> AnyLane:
        """Have a lane stopped when the row is over."""
        self.lanes.append(lane)
        self.at_exit(lambda: None if self._kept else lane.stop())
        return lane

    def keep(self) -> None:
        """Leave what `open` has started to the next row, where that may have it."""
        if self._asked and self.size.short:
            self._kept = True
            self.servers.keep(self._asked, self.lanes)

    def send_to(self, lane: Lane, port: int = 0, **options: Any) -> None:
        """Give `lane` a sender to `port`, or its gateway; without another rate, `rate`."""
        if lane.strategy == "blocking":  # whose requests wait for each other
            targets = tuple(t for t in options.get("targets", ()) if "?" not in t) or ("/echo",)
            options |= {"most": 1, "rate": 100 * self.size.share, "targets": targets}
        options.setdefault("rate", self.rate)
        # What was sent before, in another row, has other names.
        name, ports = f"{self.number}-{lane.strategy}", {"gateway": port or port_of(lane.gateway)}
        log = lane.directory / SENT
        lane.sender = Sender(name, ports, log, patience=self.deadline, **options)
        self.at_exit(lambda: self._hang_up(lane))

    @property
    def rate(self) -> float:
        """Requests a second of each lane: what two cores bear, or a share of it."""
        lanes = len(self.lanes) or len(self.strategies)
        return (100 if lanes <= 2 else 50 if lanes <= 4 else 30) * self.size.share

    def _hang_up(self, lane: Lane) -> None:
        self.client.run(lane.sender.close())

    def each(self, work: Callable[[Lane], T]) -> list[T]:
        """Do something for every lane at the same time."""
        return together(*(partial(work, lane) for lane in self.lanes))

    def at_exit(self, close: Callable[[], object]) -> None:
        """Do `close` when the row is over, before what was asked for earlier."""
        self._exit.callback(close)

    # Load ---------------------------------------------------------------------------------

    def warm(self) -> None:
        """Fill the gateways' pools, and see what they hold when nothing is under way."""

        def warm(lane: Lane) -> None:
            burst = lane.sender.burst(self.size.burst, "/echo?seconds=0.02")
            self.client.run(burst, self.deadline + 60)
            self._hang_up(lane)
            lane.expect(poll(lane.quiet, 10), "something was still under way after the first burst")
            lane.before = lane.remains()

        self.each(warm)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Send while the block breaks things, until all is well again and enough was sent."""
        self.warm()
        self.client.start([lane.sender for lane in self.lanes])
        try:
            time.sleep(self.size.warm)
            yield
            self._recover()
            # Whoever has sent enough leaves the cores to those who are slower.
            for lane in self.lanes:
                lane.sender.limit = self.size.requests + len(lane.excused)
            poll(lambda: all(_sent(lane) >= self.size.requests for lane in self.lanes), ENOUGH)
        finally:
            self.client.stop(self.deadline + EXTRA + 10)
        for lane in self.lanes:
            sent = _sent(lane)
            lane.expect(sent >= self.size.requests, f"only {sent} requests were sent")

    @contextmanager
    def fault(self) -> Iterator[None]:
        """Mark the block as the fault's time."""
        began = monotonic()
        yield
        window = Injected("fault", "all", began, monotonic())
        for lane in self.lanes:
            lane.window = window

    def inject(self, *faults: Fault) -> list[Injected]:
        """Do this to the servers of all lanes; return what was done when all is put right."""
        servers: dict[str, list[Server]] = {"broker": [self.broker], "redis": [self.results]}
        for lane in self.lanes:
            for name, server in lane.servers.items():
                servers.setdefault(name, []).append(server)
        injection = Injection(servers)
        injection.run(faults)
        self.lanes[0].problems += injection.problems
        return injection.done

    def suffer(self, *faults: Fault) -> list[Injected]:
        """Do this under load; return what was done when all is well again."""
        with self.load(), self.fault():
            return self.inject(*faults)

    def pause(self, seconds: float, short: float) -> None:
        """Let the fault last so many seconds, or `short` in the short form."""
        time.sleep(self.choose(seconds, short))

    def times(self, times: int, short: int) -> range:
        """Count to `times`, or to `short` in the short form."""
        return range(self.choose(times, short))

    def choose(self, whole: N, short: N) -> N:
        """Return one or the other, by the form."""
        return short if self.size.short else whole

    def _recover(self) -> None:
        """Wait until every lane has served everything for a while, or ought to have."""

        def steady(lane: Lane) -> bool:
            # By when it was answered: what takes its time was sent before.
            since = max(lane.window.ended, monotonic() - self.size.steady)
            answered = [one for one in lane.sender.tries[-1000:] if one.answered >= since]
            return len(answered) >= 20 * self.size.share and all(one.good for one in answered)

        time.sleep(self.size.steady)
        poll(lambda: all(map(steady, self.lanes)), RECOVERY + self.deadline + 3)

    # The end ------------------------------------------------------------------------------

    def judge(self) -> list[Result]:
        """Have the oracle judge every lane."""
        self.each(self._hang_up)
        return self.each(lambda lane: lane.judge(self.row))

    def keep_logs(self, directory: Path) -> None:
        """Copy what everybody has logged to `directory`, in the place of what is there."""
        shutil.rmtree(directory, ignore_errors=True)
        for lane in self.lanes:
            shared = self.servers.running
            lane.keep_logs(directory / lane.queue if len(self.lanes) > 1 else directory, **shared)

    def close(self) -> None:
        """Stop what this row has started, all of it even where something fails."""
        self._exit.close()


def _sent(lane: Lane) -> int:
    """Count the requests that the oracle judges."""
    return len(lane.sender.tries) - len(lane.excused)


def run(
    row: Row,
    servers: Servers,
    strategies: tuple[str, ...],
    size: Size = WHOLE,
    logs: Path | None = None,
    always: bool = False,
) -> list[Result]:
    """Run a row over `strategies`, and have it judged.

    What everybody has logged is kept in `logs` where it does not hold, or `always`.
    """
    trial = Trial(row, servers, strategies, size)
    results: list[Result] = []
    try:
        with closing(trial):
            row.run(trial)
            results = trial.judge()
            if holds := all(result.holds for result in results):
                trial.keep()
    finally:
        if logs is not None and (always or not (results and holds)):
            trial.keep_logs(logs)
    return results
