"""Rows 11 and 41-53: what clusters may do, of RabbitMQ and of Redis."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import redis

from gateway.stack.server import poll
from tests.faults.client import AGAIN
from tests.faults.lane import QUORUM, Lane
from tests.faults.rows.brokers import BOTH
from tests.faults.servers import channel
from tests.faults.trial import LOST, Trial, row
from tests.support.redis_kinds import Nodes, Watched
from tests.support.stack import RabbitMQ

#: As the chart sets them.
CONFIG = "cluster_partition_handling = pause_minority\nnet_ticktime = 8\n"
#: The first ones are sent again under the same identity.
IDENTIFIED = ("/once?seconds=0.05", AGAIN, "/echo", "/accept")
RATE = 50
LONG = 80  # seconds for which a node is frozen
SERVED = 15  # seconds after which a node that is away is not noticed any more

Leave = Callable[[list[RabbitMQ]], object]


def _nodes(trial: Trial, config: str = CONFIG) -> list[RabbitMQ]:
    nodes = trial.stack.rabbitmq_cluster(3, config)
    for node in nodes:
        trial.at_exit(node.kill)
    return nodes


def _open(trial: Trial, nodes: list[RabbitMQ], targets: tuple[str, ...] = IDENTIFIED) -> None:
    """Open a lane for each strategy; the first node leads the queues of all."""
    for strategy in trial.strategies:
        lane = trial.lane(strategy, broker=";".join(node.url for node in nodes), quorum=True)
        # As the lane's gateway and worker declare it, each of which begins with any node.
        arguments = {"x-queue-type": "quorum", **tomllib.loads(QUORUM)["queue_arguments"]}
        with channel(nodes[0]) as amqp:
            amqp.queue_declare(lane.queue, durable=True, auto_delete=False, arguments=arguments)
    trial.each(lambda lane: trial.serve(lane, targets=targets, rate=RATE))


@row(11, "quorum leader killed", (503, 504), again=True)
def leader_killed(trial: Trial) -> None:
    """kill -9 of the node that leads every queue and that the gateways are connected to."""
    nodes = _nodes(trial, "")
    _open(trial, nodes, BOTH)
    with trial.load():
        leader = nodes[0]
        _expect_leader(leader, trial.lanes)
        with trial.fault():
            leader.kill()
        # The gap ends without it; its return is not to be noticed at all.
        time.sleep(15)
        leader.restart()
        time.sleep(5)


@row(41, "quorum leader frozen", (503, 504), again=True)
def leader_frozen(trial: Trial) -> None:
    """SIGSTOP of the leader; the others have to notice it by themselves, and lead on."""
    _leave_leader(trial, LONG, lambda nodes: nodes[0].freeze(), lambda nodes: nodes[0].thaw())


@row(51, "quorum leader partitioned", (503, 504), again=True)
def leader_parted(trial: Trial) -> None:
    """The leader and the others refuse each other, while clients reach them all."""
    _leave_leader(trial, 30, lambda nodes: _know(nodes, False), lambda nodes: _know(nodes, True))


@row(52, "quorum leader drained", (503, 504), again=True)
def leader_drained(trial: Trial) -> None:
    """`rabbitmq-upgrade drain` of the leader, and `revive`."""

    def maintain(do: str) -> Leave:
        return lambda nodes: nodes[0].ctl("eval", f"rabbit_maintenance:{do}().")

    _leave_leader(trial, 30, maintain("drain"), maintain("revive"))


def _leave_leader(trial: Trial, seconds: float, leave: Leave, back: Leave) -> None:
    """Have the first node `leave`, which leads, and come `back` after so many seconds."""
    nodes = _nodes(trial)
    _open(trial, nodes)
    with trial.load():
        _expect_leader(nodes[0], trial.lanes)
        left = monotonic()
        with trial.fault():
            leave(nodes)
            time.sleep(SERVED)
        try:
            trial.pause(seconds - SERVED, short=5)
        finally:
            back(nodes)
        returned = monotonic()
        time.sleep(20)
    for lane in trial.lanes:
        _note_gap(lane, "gap_left", left, returned)
        _note_gap(lane, "gap_returned", returned, monotonic())
        gap = lane.notes["gap_left"]
        lane.expect(gap <= SERVED, f"{gap} s after the node's loss a request was still refused")


def _know(nodes: list[RabbitMQ], known: bool) -> None:
    """Have the first node refuse the others, or know them again.

    All at once: where it still knew one of them, Erlang would part that one from the third as well.
    https://www.erlang.org/doc/apps/kernel/global.html
    """
    others = ", ".join(f"'{other.node}'" for other in nodes[1:])
    cookie = "erlang:get_cookie()" if known else "refused"
    change = f"[erlang:set_cookie(Node, {cookie}) || Node <- [{others}]]"
    nodes[0].ctl("eval", f"{change}, [erlang:disconnect_node(Node) || Node <- [{others}]].")


def _note_gap(lane: Lane, name: str, since: float, until: float) -> None:
    """Note for how many seconds after `since` something was refused."""
    bad = [one.at - since for one in lane.tries(since=since, until=until) if not one.good]
    lane.notes[name] = round(max(bad, default=0.0), 1)


@row(42, "quorum queues' nodes restarted in turn", (503, 504), again=True)
def nodes_restarted(trial: Trial) -> None:
    """Each node in turn, when the others say that its queues do without it."""
    nodes = _nodes(trial)
    _open(trial, nodes)
    with trial.load(), trial.fault():
        for node in nodes:
            other = next(each for each in nodes if each is not node)
            joined = poll(lambda o=other: _joined(o, trial.lanes, len(nodes)), 30)
            trial.lanes[0].expect(joined, "a queue has not all of its nodes")
            node.stop(timeout=30)
            node.restart()


KILLED, FROZEN, PARTED = "killed", "frozen", "partitioned"
#: A primary without a replica refuses to write.
MINIMUM = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")


def _sentinels(trial: Trial, what: str, options: tuple[str, ...] = (), replicas: int = 0) -> None:
    """Have the Sentinels promote a replica; a claim is taken when so many `replicas` have it.

    A primary that is frozen goes on after 20 s as a replica. One that is parted from its replicas
    and the Sentinels goes on answering.
    """
    # The new primary needs a replica as well.
    watched = Watched(trial.stack, *options, replicas=1 + replicas)
    trial.at_exit(watched.stop)
    account = {"GATEWAY_SENTINEL_PASSWORD": watched.PASSWORD}
    env = {**account, "GATEWAY_STATE_REPLICAS": str(replicas)}
    with watched.client(watched.primary) as client:
        poll(lambda: client.wait(1 + replicas, 100) == 1 + replicas, 10)
    servers = {"worker": {"env": account}, "gateway": {"env": env}}
    trial.open(results=watched.url, targets=IDENTIFIED, rate=RATE, **servers)
    strike = {KILLED: watched.primary.kill, FROZEN: watched.primary.freeze, PARTED: watched.part}
    with trial.load():
        with trial.fault():
            strike[what]()
            if what != PARTED:
                poll(lambda: "+switch-master" in watched.sentinel.output(), 15)
        if what == FROZEN:
            time.sleep(20)
            watched.primary.thaw()
        time.sleep(10)


def _sentinel_row(number: int, title: str, what: str, second: bool, **more: object) -> None:
    row(number, title, LOST, second=second)(partial(_sentinels, what=what, **more))


_sentinel_row(43, "Sentinel: primary killed", KILLED, True)
_sentinel_row(44, "the same with `state_replicas = 1`", KILLED, False, replicas=1)
_sentinel_row(45, "Sentinel: primary frozen", FROZEN, True)
_sentinel_row(46, "Sentinel: primary partitioned", PARTED, True)
_sentinel_row(47, "the same with `min-replicas-to-write 1`", PARTED, True, options=MINIMUM)
_sentinel_row(48, "row 46 with `state_replicas = 1`", PARTED, False, replicas=1)
_sentinel_row(53, "row 45 with `state_replicas = 1`", FROZEN, False, replicas=1)


@row(49, "Redis Cluster: a shard fails over", LOST, second=True)
def shard_failed_over(trial: Trial) -> None:
    """kill -9 of a master of a Redis Cluster, whose replica takes its slots over."""
    nodes = _cluster(trial)
    with trial.load(), trial.fault():
        nodes.masters[0].kill()
        slots = lambda: "master" in nodes.ask(nodes.replica, "ROLE")  # noqa: E731
        trial.lanes[0].expect(poll(slots, 15), "the replica was not promoted")


@row(50, "Redis Cluster: slots are moved")
def resharded(trial: Trial) -> None:
    """Slots with their keys are moved to another master, and back."""
    nodes = _cluster(trial)
    first, second = nodes.masters[:2]
    with trial.load(), trial.fault(), redis.Redis.from_url(first.url) as client:
        for source, target in ((first, second), (second, first)):
            for slot in trial.times(200, short=50):
                nodes.move(slot, source, target)
        trial.lanes[0].notes["keys"] = client.dbsize()


def _cluster(trial: Trial) -> Nodes:
    """Start a cluster for claims, beside a Redis for results."""
    nodes = Nodes(trial.stack, 3, replica=True)
    trial.at_exit(nodes.stop)
    gateway = {"env": {"GATEWAY_STATE_URL": nodes.url}}
    trial.open(gateway=gateway, targets=IDENTIFIED, rate=RATE)
    return nodes


def _queues(node: RabbitMQ) -> dict[str, Any]:
    columns = ("name", "leader", "online")
    listed = json.loads(node.ctl("list_queues", *columns, "--formatter", "json"))
    return {queue["name"]: queue for queue in listed}


def _joined(node: RabbitMQ, lanes: list[Lane], number: int) -> bool:
    with suppress(KeyError):
        queues = _queues(node)
        return all(len(queues[lane.queue]["online"]) == number for lane in lanes)
    return False


def _expect_leader(node: RabbitMQ, lanes: list[Lane]) -> None:
    """Expect that all nodes have joined the lanes' queues, and that this one leads them."""
    if not poll(lambda: _joined(node, lanes, 3), 10):
        lanes[0].expect(False, f"a queue is not on all nodes: {_queues(node)}")
    queues = _queues(node)
    for lane in lanes:
        leader = queues[lane.queue]["leader"]
        lane.expect(leader == node.node, f"{leader} leads its queue, and not {node.node}")
