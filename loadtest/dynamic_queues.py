"""Do dynamic queues leave nothing behind, however many names there are?

``python -m loadtest.dynamic_queues`` makes 200 queues and waits until they are gone. Then it sends
100,000 deliveries with a new name each, of which the route's limit refuses most, and compares the
memory of the gateway and of the worker during that time. It takes two minutes. With ``--rate 60``,
which is so slow that queues go as fast as others come, none is refused, and it takes half an hour.
Exits with 1 if something remains or grows, or if an answer is wrong.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

from gateway.errors import GatewayError
from gateway.stack.server import poll
from loadtest.experiments.soak import growth
from loadtest.machine import ROOT
from loadtest.over_time import OverTime
from loadtest.stack import Stack, measured

EXPIRES = 12  # seconds, the fewest with the default `confirm_timeout`
LIMIT = 1_000
CONNECTIONS = 16
GONE = 120.0  # seconds until nothing may be left
SETTLED = 0.3  # of the names, after which memory has to be level
#: What is still called level: the median of the last third over that of the first.
LEVEL = 1.05
_EVERY = 1.0  # seconds between two samples

CONFIG = f"""
[[routes]]
path = "/sessions/{{session}}"
task = "appserver.tasks.echo"
deadline = 30
queue = "session-{{param:session}}"
queue_pattern = "session-[a-z0-9-]+"
queue_limit = {LIMIT}
queue_expires = {EXPIRES}
static_queue = "sessions"
"""


class Run:
    """A broker, a worker and a gateway, and what is wrong with them."""

    def __init__(self, stack: Stack):
        self.problems: list[str] = []
        self._broker = stack.rabbitmq()
        redis = stack.redis()
        env = {
            "GATEWAY_BROKER_URL": self._broker.url,
            "GATEWAY_RESULT_BACKEND": redis.url,
            "GATEWAY_RESULT_EXPIRES": "10",
        }
        self._worker = stack.worker(
            self._broker.url, redis.url, queues=["sessions"], env=env, cwd=ROOT
        )
        config = stack.directory / "gateway.toml"
        config.write_text(CONFIG)
        self._gateway = measured(
            stack.gateway("--strategy=redis", "--config", str(config), env=env)
        )

    def send(self, names: Iterator[str]) -> Counter[int]:
        """Send a delivery for each name over several connections; return how many got a status."""
        statuses: Counter[int] = Counter()
        lock = threading.Lock()

        def converse() -> None:
            connection = http.client.HTTPConnection(urlsplit(self._gateway.url).netloc, timeout=60)
            while True:
                with lock:
                    name = next(names, None)
                if name is None:
                    break
                connection.request("POST", f"/sessions/{name}", body=name)
                answer = connection.getresponse()
                body = answer.read().decode()
                status = answer.status
                if status == 200 and body != name:
                    status = 0
                with lock:
                    statuses[status] += 1
            connection.close()

        threads = [threading.Thread(target=converse) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return statuses

    def held(self) -> float:
        """Return how many dynamic queues the gateway has in its tables."""
        return self._gateway.metric("gateway_dynamic_queues")

    def queues(self) -> int:
        """Return how many dynamic queues, or bindings of such, the broker has."""
        queues = self._broker.ctl("list_queues", "-s", "name").splitlines()
        bindings = self._broker.ctl("list_bindings", "-s", "destination_name").splitlines()
        return sum(name.startswith("session-") for name in [*queues, *bindings])

    def expect_nothing_left(self, after: str) -> None:
        """Wait until all dynamic queues are gone from the broker and from the gateway."""
        begun = time.monotonic()
        poll(lambda: not self.held(), GONE)
        poll(lambda: not self.queues(), GONE)
        held, queues = self.held(), self.queues()
        if held or queues:
            self.problems.append(f"{after}: {held:g} in the gateway, {queues} in the broker")
        else:
            print(f"{after}: nothing left after {time.monotonic() - begun:.0f} s", flush=True)

    def watch(self) -> OverTime:
        """Return what takes samples of the memory of each process, while it is entered."""
        servers = {"gateway": self._gateway, "worker": self._worker, "broker": self._broker}
        return OverTime({name: measured(each) for name, each in servers.items()}, _EVERY)


def main(argv: list[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.dynamic_queues")
    parser.add_argument("--queues", type=int, default=200, help="made, and gone")
    parser.add_argument("--names", type=int, default=100_000, help="in a row")
    parser.add_argument("--rate", type=float, default=0, help="names a second; as fast as may be")
    options = parser.parse_args(argv)
    if options.queues < 1 or options.names < 1 or options.rate < 0:
        parser.error("--queues and --names are 1 or more, and --rate is not negative")
    try:
        with Stack() as stack:
            problems = _run(stack, options)
    except GatewayError as exc:
        problems = [str(exc)]
    for problem in problems:
        print(f"dynamic queues: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _run(stack: Stack, options: argparse.Namespace) -> list[str]:
    """Do both parts, and return what went wrong."""
    run = Run(stack)
    statuses = run.send(iter([f"first-{n}" for n in range(options.queues)]))
    print(f"{options.queues} queues: {dict(statuses)}", flush=True)
    if statuses != {200: options.queues}:
        run.problems.append(f"{options.queues} queues: answers {dict(statuses)}")
    run.expect_nothing_left(f"{options.queues} queues")
    _in_a_row(run, options.names, options.rate)
    run.expect_nothing_left(f"{options.names:,} names")
    return run.problems


def _names(count: int, rate: float) -> Iterator[str]:
    begun = time.monotonic()
    for n in range(count):
        if rate:
            time.sleep(max(0.0, begun + n / rate - time.monotonic()))
        yield f"row-{n}"


def _in_a_row(run: Run, count: int, rate: float) -> None:
    names = _names(count, rate)
    begun = time.monotonic()
    with run.watch() as watch:
        statuses = run.send(names)
    seconds = time.monotonic() - begun
    print(f"{count:,} names in {seconds:.0f} s: {dict(statuses)}", flush=True)
    others = statuses.keys() - ({200} if rate else {200, 503})
    if not statuses[200] or others or statuses.total() != count:
        run.problems.append(f"{count:,} names: answers {dict(statuses)}")
    series = watch.series
    for process, values in series["rss_mb"].items():
        if not values:
            continue  # it took less than a second
        samples = [
            {"seconds": at, "memory": value}
            for at, value in zip(series["seconds"], values, strict=True)
        ]
        grown = growth(samples, "memory", SETTLED * seconds)
        print(f"{process}: {values[0]:.1f} to {values[-1]:.1f} MB, last / first {grown:.3f}")
        # An Erlang VM's memory comes and goes by more than this; what counts is what is left.
        if process != "broker" and grown > LEVEL:
            run.problems.append(f"the {process}'s memory grew by {grown - 1:.1%}")


if __name__ == "__main__":
    sys.exit(main())
