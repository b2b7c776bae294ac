"""The experiments: a file each, a line in this table, one contract.

A module has `run(options, stack) -> Report`, where `options` are what `loadtest.cli` parses, and
`DEFAULTS` for the options that it wants other defaults of.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

#: Name -> what it compares, in a line. The module has the same name.
EXPERIMENTS = {
    "strategies": "the gateway's strategies, each in front of the same worker",
    "cost": "a relayed request with Tornado alone, a reply with a task that ignores its result",
    "peers": "the gateway with Flower, FastAPI + Celery, and AMQP without HTTP",
    "slow": "tasks of 50 ms with those that take no time",
    "waiting": "thousands of requests that wait for 10 seconds in one process",
    "alone": "one connection's latency with an AMQP round trip without HTTP",
    "openloop": "latencies at constant rates, counted from when a request was due",
    "growth": "CPU per request over the rate, and over the time that tasks take",
    "soak": "memory, files, keys, channels and queues over ten minutes at half of the ceiling",
    "capacity": "what `gateway capacity` predicts with what is measured",
    "fair": "a tenant's flood, and its tasks that hang, with nine others on fair queues",
    "pools": "the worker's pools: solo, prefork, threads, gevent",
    "consumers": "direct reply-to with a reply queue, and one worker with two",
    "transports": "a connection of one's own with nginx in between, over TCP and a UNIX socket",
    "loops": "asyncio's event loop with uvloop",
}


def find(name: str) -> ModuleType:
    """Import the experiment called `name`; raises KeyError where there is none."""
    EXPERIMENTS[name]
    return import_module(f"loadtest.experiments.{name}")
