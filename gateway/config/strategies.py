"""The table of waiting strategies and their properties, without importing any of them.

A strategy is imported only in the process that runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class StrategyInfo:
    """The properties of a strategy.

    ``where`` is ``"module:Class"`` below `gateway.strategies`, ``summary`` is one line.
    ``stored``: it reads results from the result store. ``subscribes``: it subscribes to each task's
    ``key``, or to a ``prefix`` of all keys. ``replies``: workers reply to it over AMQP.
    ``amqp_only``: it needs an AMQP broker. ``blocks``: it blocks the loop while it waits.
    ``threads``: each request has one of the process's threads while it waits.
    ``publishing`` and ``reading`` are a process's connections to the broker, beside that of the
    asynchronous publisher, and to the result store; with ``threads`` they are those of a thread.
    ``patches`` is the library that patches its processes before anything else is imported; it is
    also the name of the extra that installs the library.
    """

    where: str
    summary: str
    stored: bool = True
    subscribes: Literal["", "key", "prefix"] = ""
    replies: bool = False
    amqp_only: bool = True
    blocks: bool = False
    threads: bool = False
    publishing: int = 0
    reading: int = 2
    patches: str = ""


STRATEGIES = {
    "blocking": StrategyInfo(
        "blocking:Blocking",
        "AsyncResult.get() on the loop: the baseline, one at a time",
        subscribes="key",
        blocks=True,
        publishing=1,
        reading=3,
    ),
    "threadpool": StrategyInfo(
        "threadpool:ThreadPool",
        "AsyncResult.get() in a bounded pool of threads",
        subscribes="key",
        threads=True,
        publishing=1,
    ),
    "ioloop": StrategyInfo(
        "ioloop:IOLoop",
        "one poller a process: MGET of all pending results",
        amqp_only=False,
    ),
    "gevent": StrategyInfo(
        "gevent_drainer:GeventDrainer",
        "Celery's gevent drainer, a greenlet a publish",
        subscribes="key",
        publishing=64,
        patches="gevent",
    ),
    "pika": StrategyInfo(
        "pika_rpc:PikaRPC",
        "AMQP replies to one queue a process",
        stored=False,
        replies=True,
        reading=0,
    ),
    "redis": StrategyInfo(
        "redis_push:RedisPush",
        "one pattern subscription a process; the default",
        subscribes="prefix",
        amqp_only=False,
    ),
}
