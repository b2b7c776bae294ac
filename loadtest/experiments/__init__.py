"""The experiments: a file each, a line in this table, one contract.

A module has `run(options, stack) -> Report`, where `options` are what `loadtest.cli` parses, and
`DEFAULTS` for the options that it wants other defaults of. It raises `WrongOption` for those that
it cannot do anything with, before it measures.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class WrongOption(Exception):
    """An experiment cannot do what the options ask for; one line says what to do instead."""


#: Name -> what it compares, in a line. The module has the same name, with `_` for `-`.
EXPERIMENTS = {
    "strategies": "the gateway's strategies, each in front of the same worker",
    "paths": "signed, deduplicated and journalled deliveries, other queues and workers, nginx",
    "cost": "a relayed request with Tornado alone, a reply with a task that ignores its result",
    "peers": "the gateway with Flower, FastAPI + Celery, and AMQP without HTTP",
    "slow": "tasks of 50 ms with those that take no time",
    "waiting": "thousands of requests that wait for 10 seconds in one process",
    "alone": "one connection's latency with an AMQP round trip without HTTP",
    "openloop": "latencies at constant rates, counted from when a request was due",
    "growth": "CPU per request over the rate, and over the time that tasks take",
    "soak": "memory, files, keys, channels and queues over ten minutes at a fifth of the ceiling",
    "capacity": "what `gateway capacity` predicts with what is measured",
    "fair": "a tenant's flood, and its tasks that hang, with nine others on fair queues",
    "separate": "quick tasks beside a flood of slow ones: a queue and a worker each, one for both",
    "worker-pools": "the worker's pools: solo, also supervised, prefork, threads, gevent",
    "replies": "direct reply-to with a reply queue, and one worker with two",
    "fronts": "a connection of one's own with nginx in between, over TCP and a UNIX socket",
    "pools": "worker pools and concurrency on tasks that wait long for another service",
    "consumers": "AMQP drivers, connections, prefetch; the cost of bindings, queues, connections",
    "transports": "how far a broker is from a pipe: a million messages from process to process",
    "loops": "five ways to wait for many, and asyncio's event loop with uvloop",
}


def find(name: str) -> ModuleType:
    """Import the experiment called `name`; raises KeyError where there is none."""
    EXPERIMENTS[name]
    return import_module(f"loadtest.experiments.{name.replace('-', '_')}")
