"""How much of everything a rate of requests needs; docs/scaling.md explains each formula.

What is in the system follows from Little's law: its rate times the seconds that each stays. CPU
time follows from measured costs. Nothing may be used more than the aim `utilisation` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from gateway.cli.sizing.costs import Cost, Costs
from gateway.config.settings import Config
from gateway.config.strategies import STRATEGIES
from gateway.errors import ConfigError


class CPU:
    """The costs of a load's strategy and pool; `gateway` and so on are those of plain requests.

    Where no report has the pool of the load, `pool` is the one whose costs are used instead. Raises
    `KeyError` where no report has the strategy.
    """

    def __init__(self, load: Load, costs: Costs):
        self._load, self._costs = load, costs
        self.gateway = costs[f"gateway {load.strategy}"]
        self.broker = costs[f"broker {load.strategy}"]
        self.redis = costs[f"redis {load.strategy}"]
        self.pool, self.worker = self._worker()

    def _worker(self) -> tuple[str, Cost]:
        for pool in (self._load.pool, "threads", "solo"):
            cost = self._costs.get(f"worker {self._load.strategy} {pool}")
            if cost is not None:
                return pool, cost
        raise KeyError(f"worker {self._load.strategy}")

    def of_claims(self, part: str) -> float:
        """Return the CPU seconds a second that the load's claims add to `part`."""
        cost, claimed = self._costs.get(f"{part} claims"), self._load.rate * self._load.identified
        return cost.cores(claimed) if cost and claimed else 0.0

    def of_gateway(self, rate: float, count: int) -> float:
        """Return the cores that one of `count` gateways uses at `rate` requests a second in all."""
        return self.gateway.cores(rate / count) + self._share("gateway", rate) / count

    def of_worker(self, rate: float, count: int) -> float:
        """Return the use of the one core that a main process, or its lock, allows a worker.

        It is one of `count` workers at `rate` requests a second in all.
        """
        load = self._load
        share = 1 if load.pool != "prefork" else 0  # prefork's tasks run in other processes
        tasks = share * rate * load.task_time * load.task_cpu
        return self.worker.cores(rate / count) + (self._share("worker", rate) + tasks) / count

    def of_broker(self, rate: float, count: int) -> float:
        """Return the cores that one of `count` queues uses at `rate` requests a second in all."""
        return self.broker.cores(rate / count) + self._share("broker", rate) / count

    def _share(self, part: str, rate: float) -> float:
        """Return what claims add to `part` at another rate than the load's."""
        return self.of_claims(part) * rate / self._load.rate


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
    """How many processes, bytes and seconds a load needs.

    `seconds` is the time from a request to its answer. `stored_results` and `kept_claims` are
    numbers of them; `backlog_seconds` is how long the broker takes messages without workers.
    """

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


Pool = Literal["prefork", "threads", "gevent", "solo"]

#: Bytes.
KIB, MIB, GIB = 2**10, 2**20, 2**30
BODY = 250  # bytes of the measured requests


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


MESSAGE = KIB  # bytes of a message beside the request's body, at most
STORED = 300  # bytes that Redis needs for a result beside its text; docs/reliability.md
CLAIM, KEPT = 200, 1.25  # bytes of a claim, and of each byte of its answer; docs/reliability.md
CONNECTION = 100 * KIB  # of RabbitMQ's memory: https://www.rabbitmq.com/docs/connections
WAL = 512 * MIB  # a quorum queue's log, of which a node may hold three in memory
WATERMARK = 0.4  # of a node's memory, from which on RabbitMQ blocks publishers
REPLICAS = 3  # of a quorum queue
PREFETCH = 16  # the app server's multiplier; 1 is for tasks of a second and longer
GREENLETS = 64  # of the strategy `gevent` publish at once, each on a connection of its own
CONCURRENCY = {"threads": 64, "gevent": 100, "solo": 1}


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
        self._cpu = CPU(load, costs)
        self._claimed = load.rate * load.identified

    def plan(self) -> Plan:
        load, cpu, aim = self._load, self._cpu, self._load.utilisation
        each = load.task_time + cpu.worker.cores(1)  # seconds of a worker's slot
        concurrency = load.concurrency or CONCURRENCY.get(load.pool, load.cores)
        slots = math.ceil(load.rate * each / aim)
        workers = load.workers or _least(
            math.ceil(slots / concurrency),
            lambda n: cpu.of_worker(load.rate, n) <= aim,
            load.rate,
        )
        if workers * concurrency <= load.rate * each:
            ends = workers * concurrency / each
            raise ConfigError(
                [f"--workers: {workers} with {concurrency} tasks at once end {ends:,.0f} a second"]
            )
        slots = workers * concurrency
        wait = waiting(slots, load.rate * each, each)
        seconds = wait + each + cpu.gateway.cores(1) + cpu.broker.cores(1)
        in_flight = load.rate * seconds
        gateways = self._gateways(in_flight, seconds)
        messages = load.rate * (wait + each) * (load.body + MESSAGE)
        copies = REPLICAS if load.queue_type == "quorum" else 1
        broker_cores = copies * (cpu.broker.cores(load.rate) + cpu.of_claims("broker"))
        queues = max(1, math.ceil(broker_cores / copies / aim))
        nodes = max(1, math.ceil(broker_cores / aim / load.cores))
        nodes = max(nodes, REPLICAS) if copies > 1 else nodes
        worker = self._workers(workers, concurrency)
        used = nodes * self._costs["memory broker"].amount + copies * messages
        used += (gateways.amqp + worker.amqp) * CONNECTION + (copies > 1) * nodes * 3 * WAL
        brokers = Part(nodes, broker_cores, used, nodes, gateways.amqp + worker.amqp)
        stored = load.result_ttl * (load.rate if self._info.stored else self._claimed)
        asked = cpu.redis.cores(load.rate) if self._info.stored else 0.0
        results = self._redis_part(asked, stored * (load.result + STORED))
        kept = self._claimed * load.claim_ttl
        claims = self._redis_part(cpu.of_claims("redis"), 2 * kept * self._claim_bytes())
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
            notes=[],
        )
        notes = list(self._notes(found))
        return replace(found, limits=limits(load, found, cpu, slots / each), notes=notes)

    def _workers(self, count: int, concurrency: int) -> Part:
        load, cpu = self._load, self._cpu
        children = concurrency if load.pool == "prefork" else 0
        task = load.rate * load.task_time * load.task_cpu
        cores = count * cpu.worker.cores(load.rate / count) + cpu.of_claims("worker") + task
        known = (
            self._costs.get(f"memory worker {pool}") for pool in (load.pool, "threads", "solo")
        )
        of_one = next(cost.amount for cost in known if cost)
        memory = count * (1 + children) * of_one
        # One for the tasks, and one for the replies of each process that runs them.
        amqp = count * (1 + max(1, children) * self._info.replies)
        stores = self._info.stored or load.identified > 0
        redis = count * concurrency * stores
        return Part(count, cores, memory, self._machines(cores, memory), amqp, redis)

    def _gateways(self, in_flight: float, seconds: float) -> Part:
        load, cpu, config = self._load, self._cpu, Config()
        name = load.strategy
        least = math.ceil(in_flight / (most_in_flight(name) * load.utilisation))

        def fits(n: int) -> bool:
            return cpu.of_gateway(load.rate, n) <= load.utilisation

        count = load.processes or _least(least, fits, load.rate)
        cores = count * cpu.gateway.cores(load.rate / count) + cpu.of_claims("gateway")
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

    def _notes(self, plan: Plan) -> Iterator[str]:
        load = self._load
        if self._cpu.pool != load.pool:
            yield (
                f"no report has the cost of a {load.pool} pool with {load.strategy}: "
                f"{self._cpu.pool} instead"
            )
        cells = max(plan.results.count, plan.claims.count)
        if cells > 1:
            yield (
                f"one Redis is not enough: split the paths over {cells} cells, each with its own "
                "gateways, queues, workers and Redis (docs/scaling.md)"
            )
        if load.pool == "prefork" and load.task_cpu < 0.5 and plan.workers.machines > 1:
            yield "tasks that wait need no process each: try --pool threads"
        if load.pool == "gevent":
            yield "gevent: set redis_max_connections, as greenlets open their own"
        if max(load.body, load.result) > 4 * KIB:
            yield f"CPU was measured with {BODY} bytes: measure yours (--measured)"
        if load.queue_type == "quorum":
            yield f"quorum: not measured; each of {REPLICAS} replicas as a classic queue"
        if load.identified and "gateway claims" in self._costs:
            report = self._costs["gateway claims"].report
            if report == "soak.json":
                yield f"claims cost at most this: {report} had a journal as well"


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


PORTS = 28_232  # Linux' own ports to one address and port: net.ipv4.ip_local_port_range


def most_in_flight(strategy: str) -> int:
    """Return how many requests a gateway process may have in flight."""
    config = Config()
    return {"threadpool": config.threads, "blocking": 1}.get(strategy, config.max_in_flight)


def limits(load: Load, plan: Plan, cpu: CPU, tasks: float) -> list[Limit]:
    """Return the limits of `plan`, the lowest first; its workers end at most `tasks` a second."""
    count, workers = plan.gateways.count, plan.workers.count

    def scaled(part: Part, capacity: float, use: float) -> float:
        return load.rate * part.count * capacity / use if use else math.inf

    found = [
        Limit(
            "gateway CPU",
            _rate(lambda rate: cpu.of_gateway(rate, count)),
            "more processes, a core for each",
        ),
        Limit(
            "gateway requests in flight",
            count * most_in_flight(load.strategy) / plan.seconds,
            "more gateway processes",
        ),
        Limit("worker slots", tasks, "more workers, or a greater --concurrency"),
        Limit(
            "worker CPU",
            _rate(lambda rate: cpu.of_worker(rate, workers)),
            "more workers: each has one core for its messages",
        ),
        Limit(
            "queues",
            _rate(lambda rate: cpu.of_broker(rate, plan.queues)),
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
    return sorted((each for each in found if each.rate < math.inf), key=lambda each: each.rate)


def _rate(cores: Callable[[float], float]) -> float:
    """Return the rate at which `cores`, which grow with it, reach one."""
    low, high = 0.0, 1.0
    while cores(high) < 1:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if cores(middle) < 1 else (low, middle)
    return high
