"""Rows 18-21 and 35-37: what the result store may do."""

from __future__ import annotations

import time
from time import monotonic

from redis import Redis

from gateway.stack import free_port
from gateway.stack.server import poll
from tests.faults.faults import KILLED, Fault
from tests.faults.lane import Lane, ask
from tests.faults.proxy import Proxy
from tests.faults.rows.brokers import BOTH
from tests.faults.servers import port_of
from tests.faults.trial import ALL, LOST, Trial, row

SUBSCRIBED = "gateway_results_connections_total"


@row(18, "Redis killed, empty restart", (503, 504), ALL)
def killed(trial: Trial) -> None:
    """kill -9, 3 s, an empty restart."""
    trial.open(targets=("/echo", "/echo?seconds=0.05"))
    trial.suffer(Fault(0, "redis", KILLED, trial.choose(3, 1)))
    _expect_unnoticed(trial, "pika")


@row(19, "Redis frozen", (503, 504))
def frozen(trial: Trial) -> None:
    """CLIENT PAUSE for 10 s."""
    trial.open(targets=BOTH, rate=50)
    sick = set()
    with trial.load(), trial.fault():
        with Redis.from_url(trial.results.url) as redis:
            redis.execute_command("CLIENT", "PAUSE", "10000")
        end = monotonic() + 10
        while monotonic() < end:
            healthy = {lane: ask(f"{lane.gateway.admin_url}/healthz") for lane in trial.lanes}
            sick |= {lane for lane, said in healthy.items() if "true" not in said}
            time.sleep(0.5)
    for lane in trial.lanes:
        lane.expect(lane not in sick, "the loop stood still")
        accepts = lane.tries(route="/accept")
        slow = [one for one in accepts if not one.good or one.took > 1]
        lane.expect(not slow, f"{len(slow)} of {len(accepts)} were not accepted at once")


@row(20, "pub/sub cut")
def subscriptions_cut(trial: Trial) -> None:
    """CLIENT KILL TYPE pubsub, ten times in a row."""
    trial.open(targets=BOTH)
    (lane,) = [lane for lane in trial.lanes if lane.strategy == "redis"]
    with trial.load(), trial.fault(), Redis.from_url(trial.results.url) as redis:
        for _ in trial.times(10, short=3):
            before = lane.metric(SUBSCRIBED)
            redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            again = poll(lambda n=before: lane.metric(SUBSCRIBED) > n, 5)
            lane.expect(again, "it did not subscribe again")
            time.sleep(1)


@row(21, "Redis full", LOST)
def full(trial: Trial) -> None:
    """maxmemory 1mb, noeviction: no result can be stored."""
    trial.open(targets=("/echo",), rate=50)
    with trial.load(), trial.fault():
        _fill(trial)
    _expect_unnoticed(trial, "pika")
    for lane in trial.lanes:
        if lane.strategy != "pika":
            seen = "OutOfMemoryError" in lane.worker.output()
            lane.expect(seen, "the worker does not say what is wrong")


@row(35, "Redis full under `threads` and `gevent`", LOST, ("redis",))
def full_in_pools(trial: Trial) -> None:
    """The same under workers whose pool has threads, or greenlets."""
    for strategy in trial.strategies:
        for pool in ("threads", "gevent"):
            trial.lane(strategy, label=pool)
    trial.each(lambda lane: trial.serve(lane, worker={"pool": lane.label}, targets=BOTH, rate=50))
    with trial.load(), trial.fault():
        _fill(trial)
    for lane in trial.lanes:
        lost = lane.notes["results_lost"] = lane.worker.output().count("is lost, and")
        lane.expect(lost > 1, "the worker does not say how many results are lost")
        settled = poll(lambda lane=lane: _unacknowledged(trial, lane) == 0, 10)
        lane.expect(settled, "the worker keeps messages whose tasks have ended")


def _fill(trial: Trial) -> None:
    """Let the store take nothing for 10 s."""
    with Redis.from_url(trial.results.url) as redis:
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", "1mb")
        trial.pause(10, short=4)
        redis.config_set("maxmemory", "0")


@row(36, "Redis' name leads to a new primary", LOST, ALL, again=True)
def led_elsewhere(trial: Trial) -> None:
    """Its name leads to a new primary; connections to the old one, now a replica, live on."""
    old, new = trial.results, trial.stack.redis()
    proxy = Proxy(port_of(old))
    trial.at_exit(new.kill)
    trial.at_exit(proxy.close)
    trial.open(results=f"redis://127.0.0.1:{proxy.port}/0", targets=BOTH)
    with Redis.from_url(old.url) as before, Redis.from_url(new.url) as after:
        trial.at_exit(lambda: before.replicaof("NO", "ONE"))
        after.replicaof("127.0.0.1", port_of(old))
        with trial.load(), trial.fault():
            poll(lambda: after.info("replication")["master_link_status"] == "up", 10)
            after.replicaof("NO", "ONE")
            proxy.lead(port_of(new))
            before.replicaof("127.0.0.1", port_of(new))
            trial.pause(10, short=4)
    # The old one still is a replica, and everything has recovered nevertheless.
    for lane in trial.lanes:
        lane.expect(_ready(lane), "it is not ready with the new primary")


@row(37, "Redis is a replica", LOST)
def replica(trial: Trial) -> None:
    """It is a replica for 10 s, and a primary again."""
    trial.open(targets=BOTH, rate=50)
    with trial.load(), trial.fault(), Redis.from_url(trial.results.url) as redis:
        redis.replicaof("127.0.0.1", free_port())
        trial.pause(10, short=4)
        ready = [lane for lane in trial.lanes if _ready(lane)]
        redis.replicaof("NO", "ONE")
    for lane in trial.lanes:
        lane.expect(lane not in ready, "it was ready with a replica")


def _ready(lane: Lane) -> bool:
    return '"ready": true' in ask(f"{lane.gateway.admin_url}/readyz")


def _unacknowledged(trial: Trial, lane: Lane) -> int:
    rows = trial.broker.ctl("list_queues", "name", "messages_unacknowledged").splitlines()
    return int(dict(row.split("\t") for row in rows)[lane.queue])


def _expect_unnoticed(trial: Trial, strategy: str) -> None:
    for lane in trial.lanes:
        if lane.strategy == strategy:
            bad = [one for one in lane.tries() if not one.good]
            lane.expect(not bad, f"{len(bad)} requests noticed")
