"""How much of everything a rate of requests needs; docs/scaling.md explains each formula.

What is in the system follows from Little's law: its rate times the seconds that each stays. CPU
time follows from measured costs. Nothing may be used more than the aim `utilisation` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gateway.cli.sizing.costs import Cost, Costs
from gateway.config.settings import Config, StrategyName
from gateway.config.strategies import properties
from gateway.errors import ConfigError
from gateway.model import Model

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
PORTS = 28_232  # Linux' own ports to one address and port: net.ipv4.ip_local_port_range
POOLS = {"prefork": 0, "threads": 64, "gevent": 100, "solo": 1}  # tasks at once; 0: the cores
REMEDIES = {
    "gateway CPU": "more processes, a core for each",
    "gateway requests in flight": "more gateway processes",
    "worker slots": "more workers, or a greater --concurrency",
    "worker CPU": "more workers: each has one core for its messages",
    "queues": "more queues, on several nodes: `queues` with `ordering_key`, or a queue a route",
    "broker CPU": "more nodes, with the queues' leaders spread over them",
    "ports between nginx and gateways": "more gateway addresses or UNIX sockets",
    "Redis of results": "another cell; or a strategy with replies over AMQP",
    "Redis of claims": "another cell; a shorter idempotency_window",
}
ASSUMED = (
    f"assumed, not measured: {MESSAGE} bytes of a message beside its body, {STORED} of a result "
    f"beside its text, {CLAIM} of a claim; {CONNECTION // KIB} KiB of a connection in RabbitMQ"
)

_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=0, le=10**6)]
_Bytes = Annotated[int, Field(ge=0, le=10**9)]
_Kept = Annotated[float, Field(ge=0, le=1e9)]
_GiB = Annotated[float, Field(ge=0.1, le=1e5), AfterValidator(lambda gib: gib * GIB)]


class Load(
    Model,
    alias_generator=lambda name: name.replace("_", "-"),
    allow_inf_nan=False,
    populate_by_name=True,
):
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
    utilisation: float = Field(
        0.7, ge=0.01, le=0.99, description="the share of anything that is used at the peak"
    )


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


@dataclass(frozen=True)
class Plan:
    """`seconds`: from a request to its answer; `backlog_seconds`: until the broker is full if no
    worker runs; `stored_results`, `kept_claims`: how many there are at a time."""

    seconds: float
    in_flight: float
    gateways: Part
    workers: Part
    concurrency: int
    prefetch: int
    queues: int
    brokers: Part
    results: Part
    claims: Part
    stored_results: float
    kept_claims: float
    backlog_seconds: float
    limits: list[Limit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def waiting(slots: int, busy: float, seconds: float) -> float:
    """Return the mean seconds until one of `slots` is free, of which `busy` are busy on average.

    This is Erlang's C formula: requests come at random, and tasks take `seconds` on average.
    """
    if busy >= slots:
        return math.inf
    blocked = 1.0  # Erlang's B formula, by its recursion
    for n in range(1, slots + 1):
        blocked = busy * blocked / (n + busy * blocked)
    queued = slots * blocked / (slots - busy * (1 - blocked))
    return queued * seconds / (slots - busy)


def plan(load: Load, costs: Costs) -> Plan:
    """Size a system for `load`; raises `ConfigError` where its number of workers is too small."""
    return _Sizing(load, costs).plan()


class _Sizing:
    def __init__(self, load: Load, costs: Costs):
        if load.pool == "solo" and load.concurrency > 1:
            raise ConfigError(["--concurrency: a solo pool runs one task at a time; leave it out"])
        self.load, self.costs, self.info = load, costs, properties(load.strategy)
        self.aim, self.claimed = load.utilisation, load.rate * load.identified
        self.copies = REPLICAS if load.queue_type == "quorum" else 1
        pools = (load.pool, "threads", "solo")
        self.pool = next(p for p in pools if f"worker {load.strategy} {p}" in costs)
        self.gateway, self.broker = self._cost("gateway"), self._cost("broker")
        self.worker = self._cost("worker", f" {self.pool}")
        self.task = load.task_time * load.task_cpu
        # A worker's main process, or its lock, allows it one core; prefork's tasks run in others.
        self.main = self.worker.plus(self.task * (load.pool != "prefork"))
        # Seconds of a slot: a message costs a worker that is busy the least.
        self.each = load.task_time + 1 / self.worker.rate(1)
        self.at_once = load.concurrency or POOLS[load.pool] or load.cores
        self.threads = Config().threads if self.info.threads else 1
        limited = self.info.threads or self.info.blocks
        self.most = self.threads if limited else Config().max_in_flight

    def _cost(self, part: str, pool: str = "") -> Cost:
        return self.costs[f"{part} {self.load.strategy}{pool}"].plus(self._claim(part))

    def _claim(self, part: str) -> float:
        """Return the CPU seconds of a request that its claim takes, on average."""
        return self.costs[f"{part} claims"].cores(1) * self.load.identified

    def plan(self) -> Plan:
        load = self.load
        workers = self._workers()
        slots = workers.count * self.at_once
        taken = self.each + waiting(slots, load.rate * self.each, self.each)
        seconds = taken + self.gateway.cores(1) + self.broker.cores(1)
        gateways = self._gateways(load.rate * seconds)
        traffic = self.copies * load.rate * (load.body + MESSAGE)  # bytes a second
        brokers = self._brokers(gateways.amqp + workers.amqp, traffic * taken)
        stored = load.result_ttl * (load.rate if self.info.stored else self.claimed)
        reading = self.costs[f"redis {load.strategy}"].cores(load.rate) * self.info.stored
        kept = load.claim_ttl * self.claimed
        claim = CLAIM + KEPT * load.result * (load.result <= Config().max_kept_answer)
        free = brokers.count * load.memory * WATERMARK - brokers.memory
        found = Plan(
            seconds=seconds,
            in_flight=load.rate * seconds,
            gateways=gateways,
            workers=workers,
            concurrency=self.at_once,
            prefetch=max(1, round(1 / max(load.task_time, 1 / PREFETCH))),
            queues=max(1, math.ceil(brokers.cores / self.copies / self.aim)),
            brokers=brokers,
            results=self._redis_part(reading, stored * (load.result + STORED)),
            claims=self._redis_part(self._claim("redis") * load.rate, 2 * kept * claim),
            stored_results=stored,
            kept_claims=kept,
            backlog_seconds=max(0.0, free) / traffic,
        )
        for what, rate in sorted(self._limits(found).items(), key=lambda limit: limit[1]):
            if rate < math.inf:
                found.limits.append(Limit(what, rate, REMEDIES[what.partition(",")[0]]))
        found.notes.extend(self._notes(found))
        return found

    def _workers(self) -> Part:
        load = self.load
        slots = math.ceil(load.rate * self.each / self.aim)
        needed = slots / self.at_once, load.rate / self.main.rate(self.aim)
        count = load.workers or math.ceil(max(needed))
        ends = count * self.at_once / self.each
        if ends <= load.rate:
            problem = f"{count} with {self.at_once} tasks at once end {ends:,.0f} a second"
            raise ConfigError([f"--workers: {problem}"])
        children = self.at_once if load.pool == "prefork" else 0
        cores = count * self.worker.cores(load.rate / count) + load.rate * self.task
        known = (self.costs.get(f"memory worker {p}") for p in (load.pool, "threads", "solo"))
        memory = count * (1 + children) * next(cost.amount for cost in known if cost)
        # One for the tasks, and one for the replies of each process that runs them.
        amqp = count * (1 + max(1, children) * self.info.replies)
        redis = count * self.at_once * (self.info.stored or load.identified > 0)
        return Part(count, cores, memory, self._machines(cores, memory), amqp, redis)

    def _gateways(self, in_flight: float) -> Part:
        load, name = self.load, self.load.strategy
        needed = in_flight / (self.most * self.aim), load.rate / self.gateway.rate(self.aim)
        count = load.processes or math.ceil(max(needed))
        cores = count * self.gateway.cores(load.rate / count)
        waits = {n: cost.amount for n, cost in self.costs.items() if "waiting" in n}
        request = waits.get(f"memory waiting {name}") or max(waits.values())
        parents = self._machines(cores, 0)
        memory = (count + parents) * self.costs[f"memory gateway {name}"].amount
        memory += in_flight * (request + 3 * max(0, load.body - BODY))
        amqp = 1 + self.info.publishing * self.threads
        redis = self.info.reading * self.threads + 2 * (load.identified > 0)
        machines = self._machines(cores, memory)
        return Part(count, cores, memory, machines, count * amqp, count * redis)

    def _brokers(self, connections: int, messages: float) -> Part:
        load, quorum = self.load, self.copies > 1
        cores = self.copies * self.broker.cores(load.rate)
        nodes = max(self.copies, math.ceil(cores / self.aim / load.cores))
        memory = nodes * (self.costs["memory broker"].amount + quorum * 3 * WAL)
        return Part(nodes, cores, memory + messages + connections * CONNECTION, nodes, connections)

    def _redis_part(self, cores: float, memory: float) -> Part:
        """A Redis runs commands on one core. Its memory is a machine's, up to the aim."""
        count = math.ceil(max(cores, memory / self.load.memory) / self.aim)
        return Part(count, cores, memory, count)

    def _machines(self, cores: float, memory: float) -> int:
        used = max(cores / self.load.cores, memory / self.load.memory)
        return max(1, math.ceil(used / self.aim))

    def _limits(self, plan: Plan) -> dict[str, float]:
        """Return for each of `REMEDIES` the rate at which it is full."""
        load, gateways, workers = self.load, plan.gateways, plan.workers

        def grown(most: float, used: float) -> float:
            return load.rate * most / used if used else math.inf

        return {
            "gateway CPU": gateways.count * self.gateway.rate(1),
            "gateway requests in flight": gateways.count * self.most / plan.seconds,
            "worker slots": workers.count * self.at_once / self.each,
            "worker CPU": workers.count * self.main.rate(1),
            "queues": plan.queues * self.broker.rate(1),
            "broker CPU": grown(plan.brokers.count * load.cores, plan.brokers.cores),
            "ports between nginx and gateways": gateways.machines * PORTS / plan.seconds,
            "Redis of results, CPU": grown(plan.results.count, plan.results.cores),
            "Redis of results, memory": grown(
                plan.results.count * load.memory, plan.results.memory
            ),
            "Redis of claims, CPU": grown(plan.claims.count, plan.claims.cores),
            "Redis of claims, memory": grown(plan.claims.count * load.memory, plan.claims.memory),
        }

    def _notes(self, plan: Plan) -> Iterator[str]:
        load, cells = self.load, max(plan.results.count, plan.claims.count)
        yield ASSUMED
        if self.pool != load.pool:
            what = f"the cost of a {load.pool} pool with {load.strategy}"
            yield f"no report has {what}: {self.pool} instead"
        if f"memory waiting {load.strategy}" not in self.costs:
            what = f"the memory of a request that waits with {load.strategy}"
            yield f"no report has {what}: the most of the others instead"
        if cells > 1:
            each = "each with its own gateways, queues, workers and Redis (docs/scaling.md)"
            yield f"one Redis is not enough: split the paths over {cells} cells, {each}"
        if load.pool == "prefork" and load.task_cpu < 0.5 and plan.workers.machines > 1:
            yield "tasks that wait need no process each: try --pool threads"
        if load.pool == "gevent":
            yield "gevent: set redis_max_connections, as greenlets open their own"
        if max(load.body, load.result) > 4 * KIB:
            yield f"CPU was measured with {BODY} bytes: measure yours (--measured)"
        if self.copies > 1:
            yield f"quorum: not measured; each of {REPLICAS} replicas as a classic queue"
