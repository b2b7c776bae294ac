"""The plan that `gateway capacity` prints."""

from __future__ import annotations

from dataclasses import dataclass


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
