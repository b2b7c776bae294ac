"""What of a planned system is full first, and at which rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from gateway.cli.sizing.cpu import CPU
from gateway.cli.sizing.load import Load
from gateway.cli.sizing.plan import Limit, Part, Plan
from gateway.config.settings import Config

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
