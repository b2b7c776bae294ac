"""Gateways and workers of an earlier commit beside those of this one, on one broker and one Redis.

upgrade_from.txt names that commit; after a release it is the release's. git has its files.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import pytest

from gateway.cli import main
from gateway.stack.server import poll
from tests.faults.client import AGAIN, Client, Sender
from tests.faults.oracle import executions
from tests.faults.tasks import EXECUTED
from tests.simulation.records import Try
from tests.support.requests import REQUESTS, fetch, metric
from tests.support.stack import RabbitMQ, Server, Stack, free_port
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
COMMIT = Path(__file__).with_name("upgrade_from.txt").read_text().strip()
RATE = 50  # requests a second
SOME = 3 * RATE  # requests between two steps
#: What a child logs when it serves, and what one of the earlier version does.
SERVING, EARLIER = "serving with the strategy", "the earlier version serves with the strategy"
TARGETS = ("/keyed?seconds=0.1", "/accepted?seconds=0.1", AGAIN, "/plain?seconds=0.1")
CONFIG = """\
timeout = 8
secret_key = "of these tests only"
public_url = "http://127.0.0.1"
journal = 100000

[[routes]]
path = "/plain"
task = "faults.run"
queue = "{queue}"

[[routes]]
path = "/keyed"
task = "faults.run"
queue = "{queue}"
idempotency = "header:X-Delivery"

[[routes]]
path = "/accepted"
task = "faults.run"
queue = "{queue}"
idempotency = "header:X-Delivery"
answer = "accept"
"""
#: What is replaced in turn: an upgrade with the workers first, the way back, and an upgrade with
#: the gateways first.
STEPS = [
    *[("worker", "new"), ("gateway", "new")],
    *[("gateway", "old"), ("worker", "old")],
    *[("gateway", "new"), ("worker", "new")],
]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return where each version's packages are."""
    old = tmp_path_factory.mktemp("earlier")
    archive = ["git", "archive", COMMIT, "gateway", "appserver", "tests/faults", "loadtest"]
    done = subprocess.run(archive, cwd=ROOT, capture_output=True)
    assert done.returncode == 0, (
        f"the earlier version cannot be had: {done.stderr.decode()}\n"
        "This test needs a checkout with its history: git fetch --unshallow"
    )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        files.extractall(old, filter="data")
    child = old / "gateway" / "process" / "child.py"
    child.write_text(child.read_text().replace(SERVING, EARLIER))
    return {"old": old, "new": ROOT, "installed": old.with_name("installed")}


def install(versions: dict[str, Path], version: str) -> None:
    """Let Python find this version where both are installed, one at a time."""
    link = versions["installed"].with_name("next")
    link.symlink_to(versions[version])
    link.replace(versions["installed"])


class Site:
    """Two gateways behind nginx and two workers, each of which is replaced by another version."""

    def __init__(
        self, stack: Stack, broker: RabbitMQ, redis: Server, strategy: str, versions, version: str
    ):
        self.stack, self.broker, self.redis = stack, broker, redis
        self.strategy, self.versions = strategy, versions
        self.directory = stack.directory / f"site-{monotonic()}"
        self.directory.mkdir()
        self.queue = self.directory.name
        self.config = self.directory / "gateway.toml"
        self.config.write_text(CONFIG.format(queue=self.queue))
        self.ports = [(free_port(), free_port()) for _ in range(2)]
        self.gateways = [self.gateway(ports, version) for ports in self.ports]
        self.workers = [self.worker(version) for _ in range(2)]
        self.nginx = stack.nginx([port for port, _ in self.ports])

    def _env(self, version: str) -> dict[str, str]:
        return {"PYTHONPATH": str(self.versions[version])}

    def gateway(self, ports: tuple[int, int], version: str) -> Server:
        return self.stack.gateway(
            f"--strategy={self.strategy}",
            *("--broker", self.broker.url, "--result-backend", self.redis.url),
            *("--config", str(self.config)),
            port=ports[0],
            admin_port=ports[1],
            env=self._env(version),
            wrapper=("env", "-C", str(self.directory)),
        )

    def worker(self, version: str) -> Server:
        return self.stack.worker(
            self.broker.url,
            self.redis.url,
            app="tests.faults.tasks",
            pool="threads",
            concurrency=8,
            queues=(self.queue,),
            env={**self._env(version), "FAULTS_DIRECTORY": str(self.directory)},
            cwd=self.versions[version],
        )

    def replace(self, role: str, version: str) -> None:
        """Restart all of a role, one after the other, as docs/deploy.md says."""
        running = self.gateways if role == "gateway" else self.workers
        for number, server in enumerate(running):
            server.stop(timeout=45)
            if role == "gateway":
                running[number] = self.gateway(self.ports[number], version)
            else:
                running[number] = self.worker(version)

    def stop(self) -> None:
        for server in (self.nginx, *self.gateways, *self.workers):
            server.stop(timeout=45)


@pytest.fixture
def site(stack: Stack, rabbitmq: RabbitMQ, start, versions) -> Iterator[object]:
    redis, made = start(stack.redis), []

    def make(strategy: str, version: str) -> Site:
        made.append(Site(stack, rabbitmq, redis, strategy, versions, version))
        return made[-1]

    yield make
    for each in made:
        each.stop()
    redis.stop()


@contextmanager
def load(place: Site) -> Iterator[Sender]:
    """Send requests to the site, some of them before the block and some after it."""
    client, ports = Client(), {"nginx": urlsplit(place.nginx.url).port}
    log = place.directory / "sent.jsonl"
    sender = Sender(place.queue, ports, log, TARGETS, RATE, patience=8)
    client.start([sender])
    try:
        assert poll(lambda: len(sender.tries) > SOME, 30)
        yield sender
        client.stop(30)
        client.run(sender.close())
    finally:
        client.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["pika", "redis"])
def test_an_upgrade_in_turn_costs_no_request(site, strategy, capsys):
    # Given a site of the earlier version under load,
    place = site(strategy, "old")
    with load(place) as sender:
        # when one role after the other is replaced by the other version, then nobody notices.
        for role, version in STEPS:
            place.replace(role, version)
            number = len(sender.tries)
            assert poll(lambda n=number: len(sender.tries) > n + SOME, 30)
    judge(place, sender.tries)
    # What one version has written into the journal, the other one replays.
    replayed(place, sender.tries, capsys)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")])
def test_a_parent_of_one_version_has_children_of_the_other(site, versions, first, second):
    install(versions, first)
    place = site("pika", "installed")
    with load(place) as sender:
        install(versions, second)
        for gateway in place.gateways:
            os.kill(gateway.pid, signal.SIGHUP)
            until(lambda g=gateway: "supervisor: reloaded" in g.output(), timeout=30)
        number = len(sender.tries)
        assert poll(lambda: len(sender.tries) > number + SOME, 30)
    for gateway in place.gateways:
        # Those of the one, and then those of the other.
        served = gateway.output().count(SERVING), gateway.output().count(EARLIER)
        assert served == (1, 1)
    # Their counters are one file, whatever each of them counts.
    assert sum(metric(each, REQUESTS) for each in place.gateways) == len(sender.tries)
    judge(place, sender.tries)


def judge(place: Site, sent: list[Try]) -> None:
    """Nothing was refused, lost, or run twice, and every later try has the first one's answer."""
    assert [one for one in sent if not one.good] == []
    assert [one for one in sent if one.status == 200 and one.body != one.delivery] == []
    names = {one.delivery for one in sent}
    done = place.directory / EXECUTED
    assert poll(lambda: {one.id for one in executions(done)} >= names, 15)
    ran = executions(done)
    assert len(ran) == len(names) == len({one.task for one in ran})
    # Their results can be read, whichever version has taken them, at whichever gateway.
    accepted = [one for one in sent if one.route == "/accepted"]
    assert len(accepted) > len({one.delivery for one in accepted}) > SOME / 4
    for number, one in enumerate(accepted[:: len(accepted) // 20]):
        gateway = place.gateways[number % 2]
        answer = fetch(gateway.url + urlsplit(one.location).path)
        assert (answer.status, answer.body.decode()) == (200, one.delivery)
    keyed = [one for one in sent if one.route == "/keyed"]
    assert len(keyed) > len({one.delivery for one in keyed})


def replayed(place: Site, sent: list[Try], capsys) -> None:
    urls = ["--broker", place.broker.url, "--result-backend", place.redis.url]
    urls += ["--config", str(place.config)]

    # What each route has is listed from the last one to the first one.
    argv = ["deliveries", "list", *urls[2:4], "--json", "--route", "/plain", "--limit", "100000"]
    assert main(argv) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    last, *_, first = [each["id"] for each in found if each["queue"] == place.queue]
    assert main(["deliveries", "replay", *urls, first, last]) == 0
    assert capsys.readouterr().out.count("SUCCESS") == 2
    ran = Counter(one.id for one in executions(place.directory / EXECUTED))
    plain = [one.delivery for one in sent if one.route == "/plain"]
    one, other = sorted(plain.index(name) for name in ran if ran[name] > 1)
    # The earlier version has taken the first one.
    assert one < SOME / 4 and other > len(plain) - SOME / 4
