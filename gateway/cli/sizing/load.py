"""What `gateway capacity` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
