"""Say how many gateways, workers, queues and connections a rate needs, and what breaks first.

What is in the system follows from Little's law, and CPU time from costs, which load tests have
measured: docs/scaling.md explains each formula. Nothing may be used more than `utilisation` says.

A cost is named by its part and its strategy, a worker's by its pool as well: ``gateway redis``,
``worker pika threads``, ``broker pika``, ``redis pika``; what claims add: ``gateway claims``;
memory: ``memory gateway pika``, ``memory worker threads``, ``memory broker``, ``memory waiting
pika``. `loadtest.costs` takes them from reports; costs.json has those of the committed ones.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, ValidationError

from gateway.config.problems import explain
from gateway.config.settings import Config, StrategyName
from gateway.config.strategies import properties
from gateway.errors import ConfigError
from gateway.model import Model, Text

KIB, MIB, GIB = 2**10, 2**20, 2**30
BODY = 250  # bytes of the measured requests
MESSAGE = KIB  # bytes of a message beside the request's body, at most
STORED = 300  # bytes that Redis needs for a result beside its text; docs/reliability.md
CLAIM, KEPT = 200, 1.25  # bytes of a claim, and of each byte of its answer; docs/reliability.md
CONNECTION = 100 * KIB  # of RabbitMQ's memory: https://www.rabbitmq.com/docs/connections
WAL = 512 * MIB  # a quorum queue's log, of which a node may hold three in memory
WATERMARK = 0.4  # of a node's memory, from which on RabbitMQ blocks publishers
REPLICAS = 3  # of a quorum queue
PREFETCH = 16  # the app server's multiplier; 1 is for tasks of a second and longer
_NEVER = 1e-9  # a chance
PORTS = 28_232  # Linux' own ports to one address and port: net.ipv4.ip_local_port_range
POOLS = {"prefork": 0, "threads": 64, "gevent": 100, "solo": 1}  # tasks at once; 0: the cores
#: The costs of the committed reports.
SHIPPED = Path(__file__).with_name("costs.json")

_option = methodcaller("replace", "_", "-")  # the name of a field's option
_LEAST = 1e-9  # of a cost, and of a rate at which it was measured
_Rate = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
_Amount = Annotated[float, Field(ge=_LEAST, le=1e15, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, le=10**6)]
_Bytes = Annotated[int, Field(ge=0, le=10**9)]
_Kept = Annotated[float, Field(ge=0, le=1e9)]
_GiB = Annotated[float, Field(ge=0.1, le=1e5), AfterValidator(lambda gib: gib * GIB)]


class Cost(Model, strict=False):  # JSON has no type for a tuple
    """CPU use over the rate, or an amount of memory, with the name of the report that has it.

    `points` are in the order of their rates: requests a second of one process of the part, and the
    CPU seconds that it uses in a second. Memory has one point, at the rate 0, in bytes.
    """

    points: Annotated[list[tuple[_Rate, _Amount]], Field(min_length=1)]
    report: str = ""

    def cores(self, rate: float) -> float:
        """Return the CPU seconds a second at `rate`."""
        return _along(self.points, rate)

    def rate(self, cores: float) -> float:
        """Return the rate for which so many `cores` are enough."""
        return _along([(cores, rate) for rate, cores in self.points], cores)

    def plus(self, seconds: float) -> Cost:
        """Return the cost of requests that take so many CPU seconds more."""
        more = [(rate, cores + seconds * rate) for rate, cores in self.points]
        return self.model_copy(update={"points": more})

    @property
    def amount(self) -> float:
        return self.points[0][1]


def _along(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the height `at` which the line through zero and the `points` is.

    Outside of all points a request costs as much as at the nearest one.
    """
    last = height = 0.0
    for (first, start), (last, height) in pairwise([(0.0, 0.0), *points]):
        if at <= last:
            return start + (height - start) * (at - first) / (last - first)
    return height * at / last


def _usable(costs: dict[str, Cost]) -> dict[str, Cost]:
    for name, cost in costs.items():
        if cost.points[0][0] < _LEAST and not name.startswith("memory"):
            raise ValueError(f"{name} has no rate")
    return costs


class _Report(Model, extra="ignore"):
    costs: Annotated[dict[str, Cost], Field(min_length=1), AfterValidator(_usable)]


def read(file: Path) -> dict[str, Cost]:
    """Return the costs in a load test's JSON report; raises `ConfigError` where it has none."""
    try:
        found = _Report.model_validate_json(file.read_bytes()).costs
    except (OSError, ValidationError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else explain(exc, _Report)[0]
        remedy = "name a report that loadtest/run.sh --json has written"
        raise ConfigError([f"--measured: {file}: {why}; {remedy}"]) from exc
    return {k: it.model_copy(update={"report": it.report or file.name}) for k, it in found.items()}


class Load(Model, alias_generator=_option, allow_inf_nan=False, populate_by_name=True):
    """What is asked for: an option each. `memory` is given in GiB, and kept in bytes."""

    rate: float = Field(ge=0.001, le=1e7, description="requests a second at the peak")
    task_time: float = Field(ge=0, le=86_400, description="seconds that a task takes")
    strategy: StrategyName = Field(Config().strategy, description="of the gateway")
    task_cpu: _Share = Field(0.0, description="the share of the task's time that is CPU time")
    pool: Literal["prefork", "threads", "gevent", "solo"] = Field(
        "prefork", description="of workers"
    )
    concurrency: _Count = Field(0, description="tasks of a worker at once; 0: its pool's default")
    processes: _Count = Field(0, description="gateway processes; 0: as many as are needed")
    workers: _Count = Field(0, description="workers; 0: as many as are needed")
    body: _Bytes = Field(BODY, description="bytes of a request")
    result: _Bytes = Field(BODY, description="bytes of a task's result")
    identified: _Share = Field(1.0, description="the share of the deliveries that have a claim")
    claim_ttl: _Kept = Field(86_400, description="seconds that claims are kept")
    result_ttl: _Kept = Field(300, description="seconds that results are kept")
    queue_type: Literal["classic", "quorum"] = Field("classic", description="of the queues")
    cores: int = Field(8, ge=1, le=1024, description="cores of a machine")
    memory: _GiB = Field(32 * GIB, description="GiB of a machine")
    utilisation: float = Field(0.7, ge=0.01, le=0.99, description="how much of anything is used")


@dataclass(frozen=True)
class Part:
    """One kind of process: CPU seconds a second, bytes and connections are of all together."""

    count: int
    cores: float
    memory: float
    machines: int
    amqp: int = 0
    redis: int = 0


@dataclass(frozen=True)
class Limit:
    """What is full at `rate` requests a second, and what helps then."""

    what: str
    rate: float
    remedy: str


def waiting(slots: int, busy: float, seconds: float) -> float:
    """Return the mean seconds until one of `slots` is free, of which `busy` are busy on average.

    This is Erlang's C formula: requests come at random, and tasks take `seconds` on average.
    """
    if busy >= slots:
        return math.inf
    blocked = 1.0  # Erlang's B formula, by its recursion
    # So far below `busy` the value does not matter, and it is zero so far above.
    for n in range(max(1, int(busy - 6 * math.sqrt(busy))), slots + 1):
        blocked = busy * blocked / (n + busy * blocked)
        if blocked < _NEVER:
            return 0.0
    queued = slots * blocked / (slots - busy * (1 - blocked))
    return queued * seconds / (slots - busy)


class Plan:
    """A system for `load`; raises `ConfigError` where its number of workers is too small.

    ``seconds``: from a request to its answer; ``backlog_seconds``: until the broker is full if no
    worker runs; ``stored_results``, ``kept_claims``: how many there are at a time.
    """

    def __init__(self, load: Load, costs: Mapping[str, Cost]):
        if load.pool == "solo" and load.concurrency > 1:
            raise ConfigError(["--concurrency: a solo pool runs one task at a time; leave it out"])
        self._load, self._costs, self._info = load, costs, properties(load.strategy)
        self._aim, claimed = load.utilisation, load.rate * load.identified
        self._copies = REPLICAS if load.queue_type == "quorum" else 1
        pools = (load.pool, "threads", "solo")
        self._pool = next(p for p in pools if f"worker {load.strategy} {p}" in costs)
        self._gateway, self._broker = self._cost("gateway"), self._cost("broker")
        self._worker = self._cost("worker", f" {self._pool}")
        self._task = load.task_time * load.task_cpu
        # A worker's main process, or its lock, allows it one core; prefork's tasks run in others.
        self._main = self._worker.plus(self._task * (load.pool != "prefork"))
        # Seconds of a slot: a message costs a worker that is busy the least.
        self._each = each = load.task_time + 1 / self._worker.rate(1)
        self._threads = Config().threads if self._info.threads else 1
        limited = self._info.threads or self._info.blocks
        self._most = self._threads if limited else Config().max_in_flight
        self.concurrency = load.concurrency or POOLS[load.pool] or load.cores
        self.prefetch = max(1, round(1 / max(load.task_time, 1 / PREFETCH)))
        self.workers = self._workers()
        self._slots = self.workers.count * self.concurrency
        taken = each + waiting(self._slots, load.rate * each, each)
        self.seconds = taken + self._gateway.cores(1) + self._broker.cores(1)
        self.in_flight = load.rate * self.seconds
        self.gateways = self._gateways()
        traffic = self._copies * load.rate * (load.body + MESSAGE)  # bytes a second
        self.brokers = self._brokers(self.gateways.amqp + self.workers.amqp, traffic * taken)
        self.queues = max(1, math.ceil(self.brokers.cores / self._copies / self._aim))
        free = self.brokers.count * load.memory * WATERMARK - self.brokers.memory
        self.backlog_seconds = max(0.0, free) / traffic
        self.stored_results = load.result_ttl * (load.rate if self._info.stored else claimed)
        reading = costs[f"redis {load.strategy}"].cores(load.rate) if self._info.stored else 0.0
        self.results = self._redis(reading, self.stored_results * (load.result + STORED))
        self.kept_claims = load.claim_ttl * claimed
        claim = CLAIM + KEPT * load.result * (load.result <= Config().max_kept_answer)
        self.claims = self._redis(self._claim("redis") * load.rate, 2 * self.kept_claims * claim)
        self.limits = self._limits()
        self.notes = list(self._notes())

    def _cost(self, part: str, pool: str = "") -> Cost:
        return self._costs[f"{part} {self._load.strategy}{pool}"].plus(self._claim(part))

    def _claim(self, part: str) -> float:
        """Return the CPU seconds of a request that its claim takes, on average."""
        return self._costs[f"{part} claims"].cores(1) * self._load.identified

    def _workers(self) -> Part:
        load, aim = self._load, self._aim
        needed = load.rate * self._each / aim / self.concurrency, load.rate / self._main.rate(aim)
        count = load.workers or math.ceil(max(needed))
        ends = count * self.concurrency / self._each
        if ends <= load.rate:
            problem = f"{count} with {self.concurrency} tasks at once end {ends:,.0f} a second"
            raise ConfigError([f"--workers: {problem}; give more, or leave it out"])
        children = self.concurrency if load.pool == "prefork" else 0
        cores = count * self._worker.cores(load.rate / count) + load.rate * self._task
        costs = (self._costs.get(f"memory worker {p}") for p in (load.pool, "threads", "solo"))
        memory = count * (1 + children) * next(cost.amount for cost in costs if cost)
        # One for the tasks, and one for the replies of each process that runs them.
        amqp = count * (1 + max(1, children) * self._info.replies)
        redis = count * self.concurrency * (self._info.stored or load.identified > 0)
        return Part(count, cores, memory, self._machines(cores, memory), amqp, redis)

    def _gateways(self) -> Part:
        load, name, aim = self._load, self._load.strategy, self._aim
        needed = self.in_flight / (self._most * aim), load.rate / self._gateway.rate(aim)
        n = load.processes or math.ceil(max(needed))
        cores = n * self._gateway.cores(load.rate / n)
        waits = {name: cost.amount for name, cost in self._costs.items() if "waiting" in name}
        request = waits.get(f"memory waiting {name}") or max(waits.values())
        # Each machine has a parent process as well.
        memory = (n + self._machines(cores, 0)) * self._costs[f"memory gateway {name}"].amount
        memory += self.in_flight * (request + 3 * max(0, load.body - BODY))
        amqp = 1 + self._info.publishing * self._threads
        redis = self._info.reading * self._threads + 2 * (load.identified > 0)
        return Part(n, cores, memory, self._machines(cores, memory), n * amqp, n * redis)

    def _brokers(self, connections: int, messages: float) -> Part:
        load, quorum = self._load, self._copies > 1
        cores = self._copies * self._broker.cores(load.rate)
        nodes = max(self._copies, math.ceil(cores / self._aim / load.cores))
        memory = nodes * (self._costs["memory broker"].amount + quorum * 3 * WAL)
        return Part(nodes, cores, memory + messages + connections * CONNECTION, nodes, connections)

    def _redis(self, cores: float, memory: float) -> Part:
        """A Redis runs commands on one core. Its memory is a machine's, up to the aim."""
        count = math.ceil(max(cores, memory / self._load.memory) / self._aim)
        return Part(count, cores, memory, count)

    def _machines(self, cores: float, memory: float) -> int:
        used = max(cores / self._load.cores, memory / self._load.memory)
        return max(1, math.ceil(used / self._aim))

    def _limits(self) -> list[Limit]:
        """Return what has a limit, what is full first as the first."""
        load, gateways, workers, brokers = self._load, self.gateways, self.workers, self.brokers
        found = [
            Limit("gateway CPU", gateways.count * self._gateway.rate(1),
                  "more processes, a core for each"),
            Limit("gateway requests in flight", gateways.count * self._most / self.seconds,
                  "more gateway processes"),
            Limit("worker slots", self._slots / self._each,
                  "more workers, or a greater --concurrency"),
            Limit("worker CPU", workers.count * self._main.rate(1),
                  "more workers: each has one core for its messages"),
            Limit("queues", self.queues * self._broker.rate(1), "more queues, on several nodes: "
                  "`queues` with `ordering_key`, or a queue a route"),
            Limit("broker CPU", load.rate * brokers.count * load.cores / brokers.cores,
                  "more nodes, with the queues' leaders spread over them"),
            Limit("ports between nginx and gateways", gateways.machines * PORTS / self.seconds,
                  "more gateway addresses or UNIX sockets"),
        ]  # fmt: skip
        for name, part, remedy in (
            ("results", self.results, "another cell; or a strategy with replies over AMQP"),
            ("claims", self.claims, "another cell; a shorter idempotency_window"),
        ):
            for what, used in (("CPU", part.cores), ("memory", part.memory / load.memory)):
                if used:
                    most = load.rate * part.count / used
                    found.append(Limit(f"Redis of {name}, {what}", most, remedy))
        return sorted(found, key=attrgetter("rate"))

    def _notes(self) -> Iterator[str]:
        load, cells = self._load, max(self.results.count, self.claims.count)
        yield (
            f"assumed, not measured: {MESSAGE} bytes of a message beside its body, {STORED} of a "
            f"result beside its text, {CLAIM} of a claim; {CONNECTION // KIB} KiB of a connection "
            "in RabbitMQ"
        )
        if self._pool != load.pool:
            yield f"no report has a {load.pool} pool with {load.strategy}: {self._pool} instead"
        if f"memory waiting {load.strategy}" not in self._costs:
            yield f"no report has waiting requests of {load.strategy}: the most of others instead"
        if cells > 1:
            each = "each with its own gateways, queues, workers and Redis (docs/scaling.md)"
            yield f"one Redis is not enough: split the paths over {cells} cells, {each}"
        if load.pool == "prefork" and load.task_cpu < 0.5 and self.workers.machines > 1:
            yield "tasks that wait need no process each: try --pool threads"
        if load.pool == "gevent":
            yield "gevent: set redis_max_connections, as greenlets open their own"
        if max(load.body, load.result) > 4 * KIB:
            yield f"CPU was measured with {BODY} bytes: measure yours (--measured)"
        if self._copies > 1:
            yield f"quorum: not measured; each of {REPLICAS} replicas as a classic queue"


def options(parser: argparse.ArgumentParser) -> None:
    for name, it in Load.model_fields.items():
        metavar = "|".join(get_args(it.annotation)) or ("NAME" if it.annotation is str else "N")
        default = it.default / GIB if name == "memory" else it.default
        text = f"{it.description}{'' if it.is_required() else f' ({default})'}"
        parser.add_argument(f"--{it.alias}", type=Text, metavar=metavar, help=text)
    text = "a report of loadtest/run.sh --json: its costs"
    parser.add_argument("--measured", metavar="FILE", type=Path, help=text)
    parser.add_argument("--json", action="store_true", help="one object: load, plan, reports")


def run(arguments: argparse.Namespace) -> int:
    texts = {each.alias: getattr(arguments, name) for name, each in Load.model_fields.items()}
    try:
        load = Load.model_validate({k: text for k, text in texts.items() if text is not None})
    except ValidationError as exc:
        raise ConfigError(explain(exc, Load, "--")) from exc
    costs = read(SHIPPED) | (read(arguments.measured) if arguments.measured else {})
    parts = ["gateway", "broker", "memory gateway", *["redis"] * properties(load.strategy).stored]
    workers = {f"worker {load.strategy} {pool}" for pool in (load.pool, "threads", "solo")}
    if workers.isdisjoint(costs) or not costs.keys() >= {f"{p} {load.strategy}" for p in parts}:
        measure = f"loadtest/run.sh strategies --strategies {load.strategy} --json FILE"
        problem = f"what {load.strategy} costs was not measured yet; run {measure}"
        raise ConfigError([f"--strategy: {problem}, and give --measured FILE"])
    found = Plan(load, costs)
    used = {load.strategy, "broker", load.pool, *(["claims"] if load.identified else [])}
    sources = {name: cost.report for name, cost in costs.items() if used & {*name.split()[1:]}}
    if arguments.json:
        plan = {name: value for name, value in vars(found).items() if name[0] != "_"}
        shown = {"load": load.model_dump(), "plan": plan, "reports": sources}
        print(json.dumps(shown, indent=2, default=asdict))
    else:
        print(*_lines(load, found, sources), sep="\n")
    return 0


def _lines(load: Load, found: Plan, sources: dict[str, str]) -> Iterator[str]:
    yield (
        f"{load.rate:,g} requests/s with {load.strategy}, tasks of {load.task_time:g} s, "
        f"{load.utilisation:.0%} of {load.cores} cores and {load.memory / GIB:g} GiB a machine"
    )
    yield f"in flight: {found.in_flight:,.0f}, each {found.seconds * 1e3:,.1f} ms\n"
    row = "{:<24} {:>7} {:>9} {:>11} {:>9} {:>7} {:>7}"
    yield row.format("", "number", "cores", "memory MiB", "machines", "AMQP", "Redis")
    for name, part in (
        ("gateway processes", found.gateways),
        (f"workers, {load.pool}:{found.concurrency}", found.workers),
        ("RabbitMQ nodes", found.brokers),
        ("Redis of results", found.results),
        ("Redis of claims", found.claims),
    ):
        figures = f"{part.count:,}", f"{part.cores:,.1f}", f"{part.memory / MIB:,.0f}"
        yield row.format(name, *figures, part.machines, f"{part.amqp:,}", f"{part.redis:,}")
    yield f"\nqueues: {found.queues} {load.queue_type}; prefetch multiplier: {found.prefetch}"
    yield f"results kept: {found.stored_results:,.0f}; claims kept: {found.kept_claims:,.0f}"
    if load.identified:
        share = f"{load.identified:.0%} of the deliveries have one (--identified)"
        yield f"claims: {share}, for {load.claim_ttl:,.0f} s (--claim-ttl)"
    yield f"without workers the broker takes messages for {found.backlog_seconds:,.0f} s"
    yield "\nwhat breaks first, and at which rate:"
    for limit in found.limits:
        yield f"  {limit.rate:>12,.0f}/s  {limit.what}: {limit.remedy}"
    yield from (f"note: {note}" for note in found.notes)
    yield f"costs: {', '.join(sorted(set(sources.values())))}"
