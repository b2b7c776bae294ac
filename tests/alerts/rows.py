"""The faults, and the alerts that each has to fire."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import psutil
from redis import Redis

from gateway.history.gateways import EVERY, KEY, SCRIPT
from tests.alerts.site import NOTIFY, QUEUE, SIGNED, Site

RESTARTS = 4


@contextmanager
def nothing(site: Site) -> Iterator[None]:
    yield


@contextmanager
def gateway_killed(site: Site) -> Iterator[None]:
    site.gateway.kill()
    yield
    site.gateway.restart()


@contextmanager
def gateway_restarted(site: Site) -> Iterator[None]:
    for _ in range(RESTARTS):
        site.gateway.kill()
        site.gateway.restart()
        site.scraped()
    yield


@contextmanager
def process_killed(site: Site) -> Iterator[None]:
    """Its parent starts another one."""
    for child in psutil.Process(site.gateway.pid).children():
        child.kill()
    yield


@contextmanager
def processes_killed(site: Site) -> Iterator[None]:
    """Each as soon as its parent has started another one."""
    parent = psutil.Process(site.gateway.pid)
    killed: set[int] = set()
    while len(killed) < RESTARTS:
        for child in parent.children():
            if child.pid not in killed:
                killed.add(child.pid)
                child.kill()
        site.scraped()
    yield


@contextmanager
def reloaded_in_vain(site: Site) -> Iterator[None]:
    good = site.config.read_text()
    reload(site, "processes = 0\n")
    yield
    reload(site, good)


def reload(site: Site, config: str) -> None:
    site.config.write_text(config)
    os.kill(site.gateway.pid, signal.SIGHUP)


@contextmanager
def loop_held_up(site: Site) -> Iterator[None]:
    """For most of each second, as a task of the `blocking` strategy would do."""
    (child,) = psutil.Process(site.gateway.pid).children()
    ended = threading.Event()

    def hold_up() -> None:
        while not ended.wait(0.2):
            child.suspend()
            ended.wait(0.6)
            child.resume()

    thread = threading.Thread(target=hold_up)
    thread.start()
    yield
    ended.set()
    thread.join()


@contextmanager
def broker_killed(site: Site) -> Iterator[None]:
    site.broker.sync()
    site.broker.kill()
    yield
    site.broker.restart()


@contextmanager
def broker_blocked(site: Site) -> Iterator[None]:
    """A memory alarm: it takes no messages."""
    site.broker.ctl("set_vm_memory_high_watermark", "0")
    yield
    site.broker.ctl("set_vm_memory_high_watermark", "0.4")


@contextmanager
def queue_full(site: Site) -> Iterator[None]:
    """It holds one message, which nobody takes, and rejects the others."""
    site.worker.freeze()
    limits = '{"max-length": 1, "overflow": "reject-publish"}'
    site.broker.ctl("set_policy", "--apply-to", "queues", "full", f"^{QUEUE}$", limits)
    yield
    site.broker.ctl("clear_policy", "full")
    site.worker.thaw()


@contextmanager
def queue_deleted(site: Site) -> Iterator[None]:
    site.worker.kill()
    site.broker.ctl("delete_queue", QUEUE)
    yield
    site.worker.restart()


@contextmanager
def results_killed(site: Site) -> Iterator[None]:
    site.results.kill()
    yield
    site.results.restart()


@contextmanager
def worker_killed(site: Site) -> Iterator[None]:
    site.worker.kill()
    yield
    site.worker.restart()


@contextmanager
def archiver_killed(site: Site) -> Iterator[None]:
    site.archiver.kill()
    yield
    site.archiver.restart()


def requests_to(path: str) -> Callable[[Site], AbstractContextManager[None]]:
    """Return the fault that all requests go to `path`."""

    @contextmanager
    def fault(site: Site) -> Iterator[None]:
        usual, site.traffic.path = site.traffic.path, path
        yield
        site.traffic.path = usual

    return fault


@contextmanager
def state_full(site: Site) -> Iterator[None]:
    with Redis.from_url(site.state.url) as redis:
        redis.config_set("maxmemory", int(redis.info("memory")["used_memory"] / 0.95))
        yield
        redis.config_set("maxmemory", 0)


@contextmanager
def state_frozen(site: Site) -> Iterator[None]:
    site.state.freeze()
    yield
    site.state.thaw()


@contextmanager
def another_gateway(site: Site) -> Iterator[None]:
    """It says that it has the same routes, and has another secret_key."""
    with Redis.from_url(site.state.url) as redis:
        (own,) = redis.hvals(KEY)
        line = {**json.loads(own.partition(b" ")[2]), "name": "another", "secret_key": "another"}
        ended = threading.Event()

        def tell() -> None:
            while not ended.wait(EVERY):
                redis.eval(SCRIPT, 1, KEY, 60, "another", json.dumps(line))

        telling = threading.Thread(target=tell)
        telling.start()
        yield
        ended.set()
        telling.join()
        redis.hdel(KEY, "another")


@dataclass(frozen=True)
class Row:
    """`fault` lasts as long as its context, and fires all of `fires`, perhaps some of `may`.

    `config`: what else the gateway has in its configuration.
    """

    title: str
    fault: Callable[[Site], AbstractContextManager[None]]
    fires: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    config: str = ""


def names(*alerts: str) -> frozenset[str]:
    return frozenset(f"Gateway{name}" for name in alerts)


ROWS = (
    Row("nothing", nothing),
    Row("gateway killed", gateway_killed, names("Down")),
    Row(
        "gateway restarted again and again",
        gateway_restarted,
        names("Restarts"),
        # The durations are shortened, and a start is not.
        names("Down", "NotReady"),
    ),
    Row("serving process killed", process_killed),
    Row(
        "serving processes killed again and again",
        processes_killed,
        names("ProcessRestarts"),
        names("NotReady"),
    ),
    Row("reloaded with a wrong file", reloaded_in_vain, names("NotReloaded")),
    Row("event loop held up", loop_held_up, names("LoopLate"), names("Deadlines")),
    Row(
        "broker killed",
        broker_killed,
        names("NotReady", "Errors"),
        names("MessagesRefused", "Deadlines"),
    ),
    Row(
        "broker blocked",
        broker_blocked,
        names("NotReady", "Errors"),
        names("MessagesRefused", "Deadlines"),
    ),
    Row("queue full", queue_full, names("Errors", "MessagesRefused"), names("Deadlines")),
    Row("queue deleted", queue_deleted, names("Errors", "MessagesRefused"), names("Deadlines")),
    Row("results' Redis killed", results_killed, names("NotReady"), names("Errors", "Deadlines")),
    Row("no worker", worker_killed, names("Deadlines")),
    Row("tasks too slow", requests_to("/echo?seconds=2"), names("Deadlines")),
    Row("tasks fail", requests_to("/echo?seconds=no-number"), names("Errors")),
    Row(
        "accepted tasks fail, and nobody can be told",
        requests_to("/accept?seconds=no-number"),
        names("TasksFailed", "NotificationsFailed"),
        config=NOTIFY,
    ),
    Row("late answers are refused", requests_to("/late"), names("LateAnswersFailed")),
    Row("wrong signatures", requests_to("/signed"), names("Unverified"), config=SIGNED),
    Row("no route takes the deliveries", requests_to("/choosy"), names("DeliveriesIgnored")),
    # The journal is in the same Redis.
    Row("claims' Redis full", state_full, names("StateFull"), names("JournalLost"), config=SIGNED),
    Row("a gateway with another secret_key", another_gateway, names("Differs")),
    Row("journal's Redis frozen", state_frozen, names("JournalLost")),
    Row("no archiver", archiver_killed, names("ArchiveBehind")),
)
