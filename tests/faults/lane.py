"""One strategy's share of a row: a gateway, a worker, a queue, a sender."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from copy import copy
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from gateway.stack.server import poll
from loadtest.stack import descriptors
from tests.faults import oracle
from tests.faults.client import Sender
from tests.faults.oracle import (
    Execution,
    Remains,
    Result,
    RowJudge,
    RowResult,
    judge_remains,
    rules_of,
)
from tests.faults.tasks import EXECUTED
from tests.simulation.records import Injected, Try
from tests.support.requests import total
from tests.support.stack import Server, Stack

if TYPE_CHECKING:
    from tests.faults.trial import Row

SENT = "sent.jsonl"  # what each try was answered
ROOT = Path(__file__).parents[2]
SECRET = "whsec_" + "ZmF1bHRz" * 4
DRAINED = 30.0  # seconds until what was accepted must have been executed
SETTLED = 15.0  # seconds until a gateway holds no more than before

CONFIG = """\
timeout = {deadline}
secret_key = "of the fault matrix only"
public_url = "http://127.0.0.1:8000"

[[routes]]
path = "/echo"
task = "faults.run"
{queue}

[[routes]]
path = "/accept"
answer = "accept"
task = "faults.run"
{queue}

[[routes]]
path = "/once"
idempotency = "header:X-Delivery"
task = "faults.run"
{queue}

# Served by the row itself, in a worker's place.
[[routes]]
path = "/forged"
queue = "{name}-forged"

[[routes]]
path = "/nowhere"
queue = "{name}-nowhere"
declare = false

[[routes]]
path = "/signed"
source = "signed"
task = "faults.run"
{queue}

[sources.signed]
scheme = "standard"
secrets = ["{secret}"]
"""
QUORUM = """\
queue_type = "quorum"
queue_arguments = { x-dead-letter-exchange = "gateway.dead", x-delivery-limit = 20 }
"""


class Lane:
    """A strategy with a queue and a worker of its own, so that none waits for another's faults.

    `label` tells it from others of the strategy.
    """

    TEMPLATE = CONFIG

    def __init__(
        self,
        stack: Stack,
        name: str,
        strategy: str,
        broker: str,
        results: str,
        deadline: float,
        quorum: bool = False,
        label: str = "",
    ):
        self.label = label
        self.stack, self.queue, self.strategy = stack, f"faults-{name}", strategy
        self.broker, self.results = broker, results
        self.deadline, self.quorum = deadline, quorum
        self.directory = stack.directory / self.queue
        self.directory.mkdir()
        self.config = self.directory / "gateway.toml"
        queue = f'queue = "{self.queue}"\n' + (QUORUM if quorum else "")
        self.config.write_text(
            self.TEMPLATE.format(deadline=deadline, queue=queue, name=self.queue, secret=SECRET)
        )
        self.gateways: list[Server] = []
        self.workers: list[Server] = []
        self._begin()

    def _begin(self) -> None:
        self.sender: Sender | None = None
        self.excused: set[str] = set()
        self.problems: list[str] = []
        self.notes: dict[str, float] = {}
        self.before: Remains | None = None
        self.window = Injected("fault", "all", 0, 0)

    def anew(self) -> Lane:
        """Return a lane that the same servers serve, and that has seen nothing yet."""
        lane = copy(self)
        lane._begin()
        past = Path(tempfile.mkdtemp(dir=self.directory))
        for path in self.directory.iterdir():
            if path.is_file() and path != self.config:
                path.rename(past / path.name)
        return lane

    @property
    def gateway(self) -> Server:
        return self.gateways[0]

    @property
    def worker(self) -> Server:
        return self.workers[0]

    @property
    def servers(self) -> dict[str, Server]:
        """Return what runs in it, by the names that faults know them by."""
        kinds = {"worker": self.workers, "gateway": self.gateways}
        return {f"{kind}-{n}": s for kind, all_ in kinds.items() for n, s in enumerate(all_, 1)}

    def start_worker(
        self,
        broker: str = "",
        concurrency: int = 4,
        pool: str = "prefork",
        env: Mapping[str, str] | None = None,
    ) -> Server:
        """Start a worker of this lane's queue."""
        env = {"FAULTS_DIRECTORY": str(self.directory), **(env or {})}
        if self.quorum:
            env["GATEWAY_QUEUES"] = self.queue
        worker = self.stack.worker(
            broker or self.broker,
            self.results,
            app="tests.faults.tasks",
            pool=pool,
            concurrency=concurrency,
            queues=(self.queue,),
            env=env,
            cwd=ROOT,
        )
        self.workers.append(worker)
        return worker

    def start_gateway(self, *options: str, **more: object) -> Server:
        """Start a gateway that serves this lane's routes; `more` is `Stack.gateway`'s."""
        gateway = self.stack.gateway(
            f"--strategy={self.strategy}",
            f"--broker={self.broker}",
            f"--result-backend={self.results}",
            f"--config={self.config}",
            *options,
            **more,
        )
        self.gateways.append(gateway)
        return gateway

    def expect(self, holds: object, otherwise: str) -> None:
        """Note a problem of this row and strategy unless `holds`."""
        if not holds:
            self.problems.append(otherwise)

    def tries(
        self, *statuses: int | str, route: str = "", since: float = -inf, until: float = inf
    ) -> list[Try]:
        """Return what was sent in this time, to this route, and had one of these statuses."""
        return [
            one
            for one in self.sender.tries
            if since <= one.at <= until
            and (not statuses or one.status in statuses)
            and route in ("", one.route)
        ]

    def result_url(self, one: Try) -> str:
        """Return where the gateway itself has what senders find below ``public_url``."""
        return f"{self.gateway.url}/results/{one.location.rpartition('/results/')[2]}"

    # What it shows ------------------------------------------------------------------------

    def executions(self) -> list[Execution]:
        return oracle.executions(self.directory / EXECUTED)

    def executed(self) -> set[str]:
        return {one.id for one in self.executions()}

    def drain(self, within: float = DRAINED, pause: float = 1) -> None:
        """Wait until everything acknowledged is executed and nothing more is, but not for ever.

        Nothing more is executed where nothing was in a `pause` (seconds).
        """
        acknowledged = {one.delivery for one in self.sender.tries if one.good} - self.excused
        poll(lambda: acknowledged <= self.executed(), within)
        count, end = -1, monotonic() + within
        while count != (count := len(self.executions())) and monotonic() < end:
            sleep(pause)

    def checks(self) -> list[dict]:
        """Return what each child of the gateways says of itself."""
        return [
            child
            for gateway in self.gateways
            for child in json.loads(ask(f"{gateway.admin_url}/readyz") or "{}").get("children", [])
        ]

    def metric(self, name: str) -> float:
        """Return the sum of a metric's series, over all gateways."""
        return sum(total(page, name) for page in self._pages())

    def _pages(self) -> list[str]:
        return [ask(f"{gateway.admin_url}/metrics") for gateway in self.gateways]

    def remains(self) -> Remains:
        """Say what the gateways hold, the parents included."""
        pids = sorted(child["pid"] for child in self.checks())
        pids += sorted(gateway.pid for gateway in self.gateways)
        page = os.sysconf("SC_PAGE_SIZE")
        statm = [Path(f"/proc/{pid}/statm").read_text().split() for pid in pids]
        return Remains(
            pids,
            descriptors=sum(map(descriptors, pids)),
            memory=sum(int(fields[1]) * page for fields in statm),
            in_flight=self.metric("gateway_in_flight"),
            connections=self.metric("gateway_connections_open"),
        )

    def quiet(self) -> bool:
        """Do all gateways say that nothing is under way and nobody connected?"""
        names, pages = ("gateway_in_flight", "gateway_connections_open"), self._pages()
        return all(pages) and not any(total(page, name) for page in pages for name in names)

    def _as_before(self) -> bool:
        """Is it quiet, with as many processes as before?"""
        serving = len(self.checks()) + len(self.gateways)
        return self.quiet() and serving == len(self.before.pids)

    def judge(self, row: Row) -> Result:
        """Say what this lane has shown of `row`."""
        self.drain()
        result = RowResult(
            row=row.number, title=row.title, strategy=self.strategy, label=self.label,
            problems=self.problems, notes=self.notes,
        )  # fmt: skip
        tries, done = self.sender.tries, self.executions()
        judge = RowJudge(row, self.strategy, tries, done, self.window, self.excused)
        result.judge(judge, rules_of(row))
        if self.before is not None:
            poll(self._as_before, SETTLED)
            judge_remains(result, self.before, self.remains(), row.same)
        result.problems += self.tracebacks()
        return result

    def tracebacks(self) -> list[str]:
        """Say which gateways have logged one."""
        return [
            f"{name} logged a traceback"
            for name, server in self.servers.items()
            if name.startswith("gateway") and "Traceback" in server.output()
        ]

    def keep_logs(self, directory: Path, **others: Server) -> None:
        """Copy what everybody has logged to `directory`, also what `others` have."""
        directory.mkdir(parents=True)
        for name in (SENT, EXECUTED, self.config.name):
            if (self.directory / name).exists():
                shutil.copy(self.directory / name, directory)
        for name, server in (self.servers | others).items():
            if server.log.exists():
                shutil.copy(server.log, directory / f"{name}.log")

    def stop(self) -> None:
        with ExitStack() as stopping:  # all of them, whatever becomes of one
            for server in (*self.gateways, *self.workers):
                stopping.callback(server.kill)


def ask(url: str) -> str:
    """Return the body of a GET, whatever its status; nothing where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()
    except OSError:
        return ""
