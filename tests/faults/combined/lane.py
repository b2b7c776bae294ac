"""One seed with one strategy: its servers, its senders, its faults, what it has shown."""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep

from redis import Redis

from gateway.celery_message import RESULT_KEY
from gateway.outcome import SUCCESS
from gateway.stack.server import poll
from tests.faults.client import Client
from tests.faults.combined import oracle
from tests.faults.combined.injection import Injection
from tests.faults.combined.oracle import Result
from tests.faults.combined.rules import Evidence
from tests.faults.combined.schedule import Fault, schedule
from tests.faults.combined.senders import DEADLINES, KEY, Senders, Try
from tests.faults.combined.watchdog import Watchdog
from tests.faults.lane import SETTLED, Lane
from tests.faults.oracle import RECOVERY
from tests.faults.servers import Servers, port_of, together
from tests.faults.tasks import EXECUTED
from tests.support.stack import RabbitMQ, Server, Stack

log = logging.getLogger("faults")

PROCESSES, POOL = 2, 6  # of each gateway, of each worker
KEPT = 3600  # seconds that results are kept: beyond the run
GIVE_UP = RECOVERY + 15.0  # seconds after the last fault for which senders try again
DRAINED = 60.0  # seconds until what was accepted must have been executed
#: As the documentation asks of the Redis that has the claims.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
SENT = "sent.jsonl"


@dataclass(frozen=True)
class Size:
    """How long a lane lasts (seconds), and how much is sent."""

    seconds: float = 120.0  # of faults
    warm: float = 3.0  # before them
    after: float = RECOVERY + 5.0  # of load after them
    rate: float = 6.0  # deliveries a second: a minute's are worked off within 15 s


SHORT = Size(seconds=15.0, warm=1.0, after=4.0)


class RandomLane(Lane):
    """Two gateways and two workers on one queue, with a broker and a Redis of their own."""

    TEMPLATE = f"""\
result_expires = {KEPT}
secret_key = "of the random faults only"
public_url = "http://127.0.0.1:8000"
""" + "".join(
        f"""
[[routes]]
path = "{path}"
answer = "{path[1:]}"
deadline = {deadline}
idempotency = "header:{KEY}"
task = "faults.nonce"
{{queue}}"""
        for path, deadline in DEADLINES.items()
    )

    def __init__(self, servers: Servers, seed: int, strategy: str):
        broker, results = together(lambda: servers.broker, lambda: servers.results)
        name = f"{seed}-{strategy}"
        deadline = max(DEADLINES.values())
        super().__init__(servers.stack, name, strategy, broker.url, results.url, deadline)
        self.seed = seed
        #: All servers, by the names that faults know them by.
        self.servers: dict[str, Server] = {"broker": broker, "redis": results}

    def start(self) -> None:
        """Start workers and gateways."""
        kept = {"GATEWAY_RESULT_EXPIRES": str(KEPT)}
        worker = partial(self.start_worker, concurrency=POOL, env=kept)
        gateway = partial(self.start_gateway, f"--processes={PROCESSES}")
        started = together(worker, worker, gateway, gateway)
        names = ("worker-1", "worker-2", "gateway-1", "gateway-2")
        self.servers |= zip(names, started, strict=True)

    def suffer(self, faults: list[Fault], size: Size) -> Evidence:
        """Send while `faults` come and go, and until all is delivered; return what was seen."""
        injection = Injection(self.servers)
        with closing(Client()) as client:
            gateways = {n: s for n, s in self.servers.items() if n.startswith("gateway")}
            ports = {name: port_of(gateway) for name, gateway in gateways.items()}
            log_file, watchdog = self.directory / SENT, Watchdog(gateways)
            senders = Senders(self.seed, ports, log_file, size.rate, watchdog)
            client.start([senders])
            sleep(size.warm)
            injection.run(faults)
            senders.until = monotonic() + GIVE_UP
            self.say("all is put right")
            sleep(size.after)
            client.stop(2 * GIVE_UP)
            acknowledged = {one.delivery for one in senders.tries if one.good}
            self._drain(acknowledged, DRAINED, pause=2)  # longer than any task
            read = client.run(_read(senders))
        self.problems += injection.problems
        done = self.executions()
        failed = self._failed({one.task for one in [*done, *senders.tries] if one.task})
        return Evidence(self.strategy, senders.tries, done, injection.done, failed, read)

    def say(self, what: str) -> None:
        log.info("seed %d %s: %s", self.seed, self.strategy, what)

    def _failed(self, tasks: set[str]) -> set[str]:
        """Return those of the task ids whose stored result is a failure."""
        with Redis.from_url(self.results) as redis:
            stored = {task: redis.get(RESULT_KEY + task) for task in tasks}
        known = {task: json.loads(result) for task, result in stored.items() if result is not None}
        return {task for task, result in known.items() if result["status"] != SUCCESS}

    def left(self) -> list[str]:
        """Say what broker and gateways still hold, and what nobody should have logged."""
        problems = list(self.problems)
        queued = self.servers["broker"].ctl("list_queues", "name", "messages")
        if f"{self.queue}\t0" not in queued.splitlines():
            problems.append(f"messages are left: {queued.split()}")
        if not poll(self.quiet, SETTLED):
            problems.append("requests are still under way, or connections open")
        wanted = PROCESSES * len(self.gateways)
        if not poll(lambda: self._serving() == wanted, SETTLED):
            problems.append(f"{self._serving()} processes serve, and not {wanted}")
        for name, server in self.servers.items():
            if name.startswith("gateway") and "Traceback" in server.output():
                problems.append(f"{name} logged a traceback")
        return problems

    def _serving(self) -> int:
        """Count the processes that find nothing wrong."""
        return sum(not any({**one, "pid": 0}.values()) for one in self.checks())

    def keep_logs(self, directory: Path, result: Result) -> None:
        """Copy what everybody has logged to `directory`, in the place of what is there."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name, server in self.servers.items():
            shutil.copy(server.log, directory / f"{name}.log")
        for name in (SENT, EXECUTED, self.config.name):
            if (self.directory / name).exists():
                shutil.copy(self.directory / name, directory)
        (directory / "faults.txt").write_text("\n".join(result.injected or result.schedule) + "\n")


def run(
    seed: int,
    strategy: str,
    size: Size,
    logs: Path | None = None,
    always: bool = False,
    broker: RabbitMQ | None = None,
) -> tuple[Result, dict[str, str]]:
    """Run a seed with a strategy and judge it; return the servers' versions as well.

    What everybody has logged is kept below `logs` where a promise was broken, or `always`. A
    `broker` that is given is used instead of one of its own.
    """
    faults = schedule(seed, size.seconds)
    result = Result(seed, strategy, size.seconds, schedule=[fault.line for fault in faults])
    began, holds = monotonic(), False
    with Stack() as stack:
        servers = Servers(stack, *DURABLE, broker=broker)
        lane = RandomLane(servers, seed, strategy)
        try:
            lane.start()
            # A queue that the broker forgets with its definitions takes its messages along.
            servers.broker.sync()
            lane.say("everything serves; the faults begin")
            oracle.judge(result, lane.suffer(faults, size))
            result.problems += lane.left()
            holds = result.holds
        finally:
            if logs is not None and (always or not holds):
                lane.keep_logs(logs / f"seed-{seed}-{strategy}", result)
            lane.stop()
    result.notes["seconds"] = round(monotonic() - began, 1)
    return result, servers.versions


async def _read(senders: Senders) -> dict[str, str]:
    """Return what is found where a 202 had said that the result would be, by delivery."""
    told: dict[str, Try] = {one.delivery: one for one in senders.tries if one.location}
    answers = {name: await senders.read(one.location) for name, one in told.items()}
    return {name: a.body.decode() for name, a in answers.items() if a.status == 200}
