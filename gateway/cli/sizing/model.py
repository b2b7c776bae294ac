"""How much of everything a rate of requests needs; docs/scaling.md explains each formula.

What is in the system follows from Little's law: its rate times the seconds that each stays. CPU
time follows from measured costs. Nothing may be used more than the aim `utilisation` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gateway.cli.sizing.costs import Cost, Costs
from gateway.config.settings import Config
from gateway.config.strategies import STRATEGIES
from gateway.errors import ConfigError

Pool = Literal["prefork", "threads", "gevent", "solo"]

KIB, MIB, GIB = 2**10, 2**20, 2**30
BODY = 250  # bytes of the measured requests
MESSAGE = KIB  # bytes of a message beside the request's body, at most
STORED = 300  # bytes that Redis needs for a result beside its text; docs/reliability.md
CLAIM, KEPT = 200, 1.25  # bytes of a claim, and of each byte of its answer; docs/reliability.md
CONNECTION = 100 * KIB  # of RabbitMQ's memory: https://www.rabbitmq.com/docs/connections
WAL = 512 * MIB  # a quorum queue's log, of which a node may hold three in memory
WATERMARK = 0.4  # of a node's memory, from which on RabbitMQ blocks publishers
REPLICAS = 3  # of a quorum queue
PORTS = 28_232  # Linux' own ports to one address and port: net.ipv4.ip_local_port_range
PREFETCH = 16  # the app server's multiplier; 1 is for tasks of a second and longer
GREENLETS = 64  # of the strategy `gevent` publish at once, each on a connection of its own
CONCURRENCY = {"threads": 64, "gevent": 100, "solo": 1}


@dataclass(frozen=True)
class Load:
    """What is asked for. Times are in seconds, sizes in bytes, shares from 0 to 1.

    `task_cpu` is the share of the task's time that is CPU time. `identified` is the share of the
    deliveries that have an identity, and so a claim, for `claim_ttl`. `cores` and `memory` (bytes)
    are those of one machine. `concurrency` is that of a worker; 0: the pool's default.
    `processes` of gateways and `workers` are as many as are needed where they are 0.
    """

    rate: float
    task_time: float
    strategy: str = "redis"
    task_cpu: float = 0.0
    pool: Pool = "prefork"
    concurrency: int = 0
    processes: int = 0
    workers: int = 0
    body: int = BODY
    result: int = BODY
    identified: float = 1.0
    claim_ttl: float = 86_400
    result_ttl: float = 300
    queue_type: Literal["classic", "quorum"] = "classic"
    cores: int = 8
    memory: float = 32 * GIB
    utilisation: float = 0.7


@dataclass(frozen=True)
class Part:
    """One kind of process: how many, their CPU seconds a second and bytes in all, how many machines
    they fill, and the connections that they open."""

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
    """How much of everything. `seconds` is how long a request stays; bytes and seconds."""

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
    limits: list[Limit]
    notes: list[str]


def plan(load: Load, costs: Costs) -> Plan:
    """Size a system for `load`; `costs` are those of `gateway.cli.sizing.costs`.

    Raises `ConfigError` where the load's own number of workers is too small.
    """
    return _Sizing(load, costs).plan()


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


class _Sizing:
    def __init__(self, load: Load, costs: Costs):
        self._load, self._costs = load, costs
        self._info = STRATEGIES[load.strategy]
        self._notes: list[str] = []
        self._claimed = load.rate * load.identified
        self._gateway = costs[f"gateway {load.strategy}"]
        self._broker = costs[f"broker {load.strategy}"]
        self._redis = costs[f"redis {load.strategy}"]
        self._worker = self._worker_cost()

    def plan(self) -> Plan:
        load, aim = self._load, self._load.utilisation
        each = load.task_time + self._worker.cores(1)  # seconds of a worker's slot
        concurrency = load.concurrency or CONCURRENCY.get(load.pool, load.cores)
        slots = math.ceil(load.rate * each / aim)
        workers = load.workers or _least(
            math.ceil(slots / concurrency),
            lambda n: self._worker_core(load.rate / n) <= aim,
            load.rate,
        )
        if workers * concurrency <= load.rate * each:
            ends = workers * concurrency / each
            raise ConfigError(
                [f"--workers: {workers} with {concurrency} tasks at once end {ends:,.0f} a second"]
            )
        slots = workers * concurrency
        wait = waiting(slots, load.rate * each, each)
        seconds = wait + each + self._gateway.cores(1) + self._broker.cores(1)
        in_flight = load.rate * seconds
        gateways = self._gateways(in_flight, seconds)
        messages = load.rate * (wait + each) * (load.body + MESSAGE)
        copies = REPLICAS if load.queue_type == "quorum" else 1
        broker_cores = copies * (self._broker.cores(load.rate) + self._more("broker"))
        queues = max(1, math.ceil(broker_cores / copies / aim))
        nodes = max(1, math.ceil(broker_cores / aim / load.cores))
        nodes = max(nodes, REPLICAS) if copies > 1 else nodes
        worker = self._workers(workers, concurrency)
        used = nodes * self._costs["memory broker"].amount + copies * messages
        used += (gateways.amqp + worker.amqp) * CONNECTION + (copies > 1) * nodes * 3 * WAL
        brokers = Part(nodes, broker_cores, used, nodes, gateways.amqp + worker.amqp)
        stored = load.result_ttl * (load.rate if self._info.stored else self._claimed)
        asked = self._redis.cores(load.rate) if self._info.stored else 0.0
        results = self._redis_part(asked, stored * (load.result + STORED))
        kept = self._claimed * load.claim_ttl
        claims = self._redis_part(self._more("redis"), 2 * kept * self._claim_bytes())
        free = nodes * load.memory * WATERMARK - used
        backlog = max(0.0, free) / (copies * load.rate * (load.body + MESSAGE))
        found = Plan(
            seconds=seconds,
            in_flight=in_flight,
            gateways=gateways,
            workers=worker,
            concurrency=concurrency,
            prefetch=min(PREFETCH, max(1, round(1 / load.task_time)))
            if load.task_time
            else PREFETCH,
            queues=queues,
            brokers=brokers,
            results=results,
            claims=claims,
            stored_results=stored,
            kept_claims=kept,
            backlog_seconds=backlog,
            limits=[],
            notes=self._notes,
        )
        found.limits.extend(sorted(self._limits(found, slots / each), key=lambda each: each.rate))
        self._remark(found)
        return found

    def _worker_cost(self) -> Cost:
        """Return the pool's cost; of threads, or of the pool that was measured, without one."""
        strategy, pool = self._load.strategy, self._load.pool
        for other in (pool, "threads", "solo"):
            cost = self._costs.get(f"worker {strategy} {other}")
            if cost is not None:
                if other != pool:
                    self._notes.append(
                        f"no report has the cost of a {pool} pool with {strategy}: {other} instead"
                    )
                return cost
        raise KeyError(f"worker {strategy}")

    def _more(self, part: str) -> float:
        """Return the CPU seconds a second that claims add to `part`."""
        cost = self._costs.get(f"{part} claims")
        return cost.cores(self._claimed) if cost and self._claimed else 0.0

    def _worker_core(self, rate: float) -> float:
        """Return the use of the one core that a worker's main process or its lock allows."""
        load = self._load
        share = 1 if load.pool != "prefork" else 0  # prefork's tasks run in other processes
        claims = self._more("worker") * rate / load.rate
        return self._worker.cores(rate) + claims + share * rate * load.task_time * load.task_cpu

    def _workers(self, count: int, concurrency: int) -> Part:
        load, children = self._load, concurrency if self._load.pool == "prefork" else 0
        task = load.rate * load.task_time * load.task_cpu
        cores = count * self._worker.cores(load.rate / count) + self._more("worker") + task
        known = (
            self._costs.get(f"memory worker {pool}") for pool in (load.pool, "threads", "solo")
        )
        of_one = next(cost.amount for cost in known if cost)
        memory = count * (1 + children) * of_one
        replies = self._info.replies
        amqp = count * (1 + children * replies if children else 2)
        stores = self._info.stored or load.identified > 0
        redis = count * concurrency * stores
        return Part(count, cores, memory, self._machines(cores, memory), amqp, redis)

    def _gateways(self, in_flight: float, seconds: float) -> Part:
        load, config, name = self._load, Config(), self._load.strategy
        most = {"threadpool": config.threads, "blocking": 1}.get(name, config.max_in_flight)
        least = math.ceil(in_flight / (most * load.utilisation))

        def fits(n: int) -> bool:
            use = self._gateway.cores(load.rate / n) + self._more("gateway") / n
            return use <= load.utilisation

        count = load.processes or _least(least, fits, load.rate)
        cores = count * self._gateway.cores(load.rate / count) + self._more("gateway")
        held = self._costs.get(f"memory waiting {name}") or self._costs["memory waiting redis"]
        bodies = 3 * max(0, load.body - BODY)
        machines = self._machines(cores, 0)
        memory = (count + machines) * self._costs[f"memory gateway {name}"].amount
        memory += in_flight * (held.amount + bodies)
        amqp = {"threadpool": config.threads + 1, "gevent": GREENLETS + 1, "blocking": 2}
        redis = {"threadpool": 2 * config.threads, "pika": 0, "blocking": 3}
        each = redis.get(name, 2) + (2 if load.identified else 0)
        machines = max(machines, self._machines(cores, memory))
        return Part(count, cores, memory, machines, count * amqp.get(name, 1), count * each)

    def _redis_part(self, cores: float, memory: float) -> Part:
        """A Redis runs commands on one core. Its memory is a machine's, up to the aim."""
        aim = self._load.utilisation
        count = max(math.ceil(cores / aim), math.ceil(memory / (aim * self._load.memory)))
        return Part(count, cores, memory, count)

    def _claim_bytes(self) -> float:
        answer = self._load.result
        return CLAIM + (KEPT * answer if answer <= Config().max_kept_answer else 0)

    def _machines(self, cores: float, memory: float) -> int:
        load = self._load
        by_cores, by_memory = cores / load.cores, memory / load.memory
        return max(1, math.ceil(max(by_cores, by_memory) / load.utilisation))

    def _limits(self, plan: Plan, tasks: float) -> list[Limit]:
        load = self._load
        count, workers = plan.gateways.count, plan.workers.count
        at_full = {"threadpool": Config().threads, "blocking": 1}
        held = count * at_full.get(load.strategy, Config().max_in_flight)

        def scaled(part: Part, capacity: float, use: float) -> float:
            return load.rate * part.count * capacity / use if use else math.inf

        found = [
            Limit(
                "gateway CPU",
                _rate(lambda r: self._gateway.cores(r / count) + self._share("gateway", r) / count),
                "more processes, a core for each",
            ),
            Limit("gateway requests in flight", held / plan.seconds, "more gateway processes"),
            Limit("worker slots", tasks, "more workers, or a greater --concurrency"),
            Limit(
                "worker CPU",
                _rate(lambda r: self._worker_core(r / workers)),
                "more workers: each has one core for its messages",
            ),
            Limit(
                "queues",
                plan.queues * self._broker.full(1),
                "more queues, on several nodes: `queues` with `ordering_key`, or a queue a route",
            ),
            Limit(
                "broker CPU",
                scaled(plan.brokers, load.cores, plan.brokers.cores),
                "more nodes, with the queues' leaders spread over them",
            ),
            Limit(
                "ports between nginx and gateways",
                plan.gateways.machines * PORTS / plan.seconds,
                "more gateway addresses or UNIX sockets",
            ),
        ]
        for name, part, remedy in (
            ("results", plan.results, "another cell; or pika, which stores only what has a claim"),
            ("claims", plan.claims, "another cell; a shorter idempotency_window"),
        ):
            found.append(Limit(f"Redis of {name}, CPU", scaled(part, 1, part.cores), remedy))
            rate = scaled(part, load.memory, part.memory)
            found.append(Limit(f"Redis of {name}, memory", rate, remedy))
        return [each for each in found if each.rate < math.inf]

    def _share(self, part: str, rate: float) -> float:
        return self._more(part) * rate / self._load.rate

    def _remark(self, plan: Plan) -> None:
        load = self._load
        cells = max(plan.results.count, plan.claims.count)
        if cells > 1:
            self._notes.append(
                f"one Redis is not enough: split the paths over {cells} cells, each with its own "
                "gateways, queues, workers and Redis (docs/scaling.md)"
            )
        if load.pool == "prefork" and load.task_cpu < 0.5 and plan.workers.machines > 1:
            self._notes.append("tasks that wait need no process each: try --pool threads")
        if load.pool == "gevent":
            self._notes.append("gevent: set redis_max_connections, as greenlets open their own")
        if max(load.body, load.result) > 4 * KIB:
            self._notes.append(f"CPU was measured with {BODY} bytes: measure yours (--measured)")
        if load.queue_type == "quorum":
            self._notes.append(
                f"quorum: not measured; each of {REPLICAS} replicas as a classic queue"
            )
        if load.identified and "gateway claims" in self._costs:
            report = self._costs["gateway claims"].report
            if report == "soak.json":
                self._notes.append(f"claims cost at most this: {report} had a journal as well")


def _least(least: int, fits: Callable[[int], bool], rate: float) -> int:
    """Return the least number from `least` on that `fits`, which greater ones then do as well."""
    low = high = max(1, least)
    while not fits(high):
        low, high = high + 1, 2 * high
        if high > 1e9 * max(rate, 1):
            return high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return high


def _rate(cores: Callable[[float], float]) -> float:
    """Return the rate at which `cores`, which grow with it, reach one."""
    low, high = 0.0, 1.0
    while cores(high) < 1:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if cores(middle) < 1 else (low, middle)
    return high
