"""The rows of the matrix, in one table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.config.strategies import STRATEGIES
from tests.faults.oracle import Result
from tests.faults.rows import (
    brokers,
    clusters,
    gateways,
    machine,
    network,
    replies,
    results,
    senders,
    workers,
)
from tests.faults.servers import Servers
from tests.faults.trial import WHOLE, Size, Trial
from tests.simulation.records import RESET

SIX = tuple(STRATEGIES)
TWO = ("pika", "redis")
LOST = (502, 503, 504)


@dataclass(frozen=True)
class Row:
    """One fault: `run` injects it.

    Inside its time only `statuses` are excused, besides 2xx; `again`: tasks may run twice;
    `same`: the serving processes stay the same; `second`: a claim may be lost, and its delivery run
    once for each try; `deadline` of its requests (seconds).
    """

    number: int
    title: str
    run: Callable[[Trial], None]
    statuses: tuple[int | str, ...] = ()
    strategies: tuple[str, ...] = TWO
    again: bool = False
    same: bool = True
    second: bool = False
    deadline: float = 8.0


ROWS = {
    row.number: row
    for row in (
        Row(1, "broker killed, restarted", brokers.killed, (503, 504), SIX, again=True),
        Row(2, "broker frozen for 30 s", brokers.frozen, (503, 504), SIX, again=True),
        Row(3, "memory alarm", brokers.memory_alarm, (503, 504), SIX),
        Row(4, "disk alarm", brokers.disk_alarm, (503, 504)),
        Row(5, "queue full", brokers.queue_full, (503, 504)),
        Row(6, "queue missing", brokers.queue_missing, (503, 504), SIX),
        Row(7, "permission revoked", brokers.permission_revoked, (503, 504)),
        Row(8, "connections closed every 5 s", brokers.connections_closed, (503, 504), again=True),
        Row(9, "packets dropped, connections reset", network.cut, (503, 504), again=True),
        Row(10, "slow link", network.slow, (503, 504)),
        Row(11, "quorum leader killed", clusters.leader_killed, (503, 504), again=True),
        Row(12, "worker's children killed", workers.child_killed, (), again=True),
        Row(13, "worker killed whole", workers.whole_killed, (504,), again=True),
        Row(14, "killed before the ack", workers.killed_after_the_effect, (), again=True),
        Row(15, "poison task", workers.poison, (), again=True),
        Row(16, "worker stopped", workers.stopped, (504,), SIX, deadline=4),
        Row(17, "worker redeployed", workers.redeployed),
        Row(18, "Redis killed, empty restart", results.killed, (503, 504), SIX),
        Row(19, "Redis frozen", results.frozen, (503, 504)),
        Row(20, "pub/sub cut", results.subscriptions_cut),
        Row(21, "Redis full", results.full, (502, 503, 504)),
        Row(
            22,
            "gateway killed after the confirm",
            gateways.killed_after_the_confirm,
            (RESET, 503, 504),
            same=False,
        ),
        Row(
            23,
            "gateway killed before the confirm",
            gateways.killed_before_the_confirm,
            (RESET, 503, 504),
            again=True,
            same=False,
        ),
        Row(
            24,
            "gateway restarted, replies for nobody",
            gateways.restarted,
            (RESET, 503),
            same=False,
        ),
        Row(25, "rolling restart behind nginx", gateways.rolled, same=False),
        Row(26, "one gateway of four frozen", gateways.frozen, (504,), deadline=5),
        Row(27, "client gone in mid-wait", senders.gone, (), SIX),
        Row(28, "file descriptors run out", machine.descriptors_run_out),
        Row(29, "clock stepped by 10 min", machine.clock_stepped, (502,)),
        Row(30, "log pipe blocked", machine.log_blocked),
        Row(31, "one delivery 100 times at once", senders.repeated, (), SIX),
        Row(32, "forged replies", replies.forged),
        Row(
            35,
            "Redis full under `threads` and `gevent`",
            results.full_in_pools,
            (502, 503, 504),
            ("redis",),
        ),
        Row(
            36,
            "Redis' name leads to a new primary",
            results.led_elsewhere,
            (502, 503, 504),
            SIX,
            again=True,
        ),
        Row(37, "Redis is a replica", results.replica, (502, 503, 504)),
        Row(38, "broker connection silently dead", network.silent, (503, 504), again=True),
        Row(41, "quorum leader frozen", clusters.leader_frozen, (503, 504), again=True),
        Row(
            42,
            "quorum queues' nodes restarted in turn",
            clusters.nodes_restarted,
            (503, 504),
            again=True,
        ),
        Row(43, "Sentinel: primary killed", clusters.sentinel_killed, LOST, second=True),
        Row(
            44,
            "the same with `state_replicas = 1`",
            clusters.sentinel_killed_waiting,
            LOST,
        ),
        Row(45, "Sentinel: primary frozen", clusters.sentinel_frozen, LOST, second=True),
        Row(46, "Sentinel: primary partitioned", clusters.sentinel_parted, LOST, second=True),
        Row(
            47,
            "the same with `min-replicas-to-write 1`",
            clusters.sentinel_parted_minimum,
            LOST,
            second=True,
        ),
        Row(48, "row 46 with `state_replicas = 1`", clusters.sentinel_parted_waiting, LOST),
        Row(49, "Redis Cluster: a shard fails over", clusters.shard_failed_over, LOST, second=True),
        Row(50, "Redis Cluster: slots are moved", clusters.resharded),
        Row(51, "quorum leader partitioned", clusters.leader_parted, (503, 504), again=True),
        Row(52, "quorum leader drained", clusters.leader_drained, (503, 504), again=True),
        Row(53, "row 45 with `state_replicas = 1`", clusters.sentinel_frozen_waiting, LOST),
    )  # fmt: skip
}


#: What is run where no rows are named, and what `--rows cluster` means.
ALONE = [number for number in ROWS if number <= 40]
CLUSTER = [number for number in ROWS if number > 40]


def run(
    row: Row,
    servers: Servers,
    strategies: tuple[str, ...],
    size: Size = WHOLE,
    logs: Path | None = None,
    always: bool = False,
) -> list[Result]:
    """Run a row over `strategies`, and have it judged; keep its logs where it does not hold."""
    trial = Trial(servers, strategies, row.deadline, size)
    results: list[Result] = []

    def keep_logs() -> None:
        holds = results and all(result.holds for result in results)
        if logs is not None and (always or not holds):
            trial.keep_logs(logs / f"row-{row.number}")

    with ExitStack() as end:
        end.callback(keep_logs)
        end.callback(trial.close)
        row.run(trial)
        results += trial.judge(row)
        if all(result.holds for result in results):
            trial.keep()
    return results
