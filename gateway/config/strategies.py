"""The waiting strategies and what each one can do, without importing any of them.

A strategy is imported where it runs: in a process that was made for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class StrategyInfo:
    """``where`` is ``"module:Class"`` below `gateway.strategies`, ``summary`` one line.

    ``stored``: it reads results from the result store, and does so on a subscription for each
    task's key, or for a prefix of all keys, where ``subscribes`` says so. ``replies``: workers
    reply to it over AMQP. ``amqp_only``: no other broker serves it. ``blocks``: its loop stands
    still while it waits. ``patches`` names the library by which its processes are patched before
    anything else is imported, which also is the extra that installs it.
    """

    where: str
    summary: str
    stored: bool = True
    subscribes: Literal["", "key", "prefix"] = ""
    replies: bool = False
    amqp_only: bool = True
    blocks: bool = False
    patches: str = ""


STRATEGIES = {
    "blocking": StrategyInfo(
        "blocking:Blocking",
        "AsyncResult.get() on the loop: the baseline, one at a time",
        subscribes="key",
        blocks=True,
    ),
    "threadpool": StrategyInfo(
        "threadpool:ThreadPool",
        "AsyncResult.get() in a bounded pool of threads",
        subscribes="key",
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
        patches="gevent",
    ),
    "pika": StrategyInfo(
        "pika_rpc:PikaRPC",
        "AMQP replies to one queue a process",
        stored=False,
        replies=True,
    ),
    "redis": StrategyInfo(
        "redis_push:RedisPush",
        "one pattern subscription a process; the default",
        subscribes="prefix",
        amqp_only=False,
    ),
}
