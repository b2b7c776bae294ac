"""The waiting strategies: one file each, one table, one contract (see `base`)."""

from __future__ import annotations

from importlib import import_module

from gateway.strategies.base import Strategy

#: Name -> where it is, and what it does in a line.
STRATEGIES = {
    "blocking": ("blocking:Blocking", "AsyncResult.get() on the loop: the baseline, one at a time"),
    "threadpool": ("threadpool:ThreadPool", "AsyncResult.get() in a bounded pool of threads"),
    "ioloop": ("ioloop:IOLoop", "one poller a process: MGET of all pending results"),
    "gevent": ("gevent_drainer:GeventDrainer", "Celery's gevent drainer, a greenlet a publish"),
    "pika": ("pika_rpc:PikaRPC", "AMQP replies to one queue a process"),
    "redis": ("redis_push:RedisPush", "one pattern subscription a process; the default"),
}


def find(name: str) -> type[Strategy]:
    """Import the strategy called `name`; raises ImportError where its extra is not installed."""
    module, _, attribute = STRATEGIES[name][0].partition(":")
    return getattr(import_module(f"gateway.strategies.{module}"), attribute)
