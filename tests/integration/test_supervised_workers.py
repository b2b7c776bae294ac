"""Workers of the pool `solo` under one supervisor: limits, lost workers, and their end."""

from __future__ import annotations

import signal
from collections import Counter

import psutil
import pytest

from gateway.cli import main
from gateway.stack.server import poll
from tests.integration.deliveries import ROOT
from tests.integration.limited_tasks import RAN
from tests.integration.losses import TIMEOUT, Servers, accept, ask, result
from tests.integration.test_poison import RUNS
from tests.support.config import route
from tests.support.stack import Server

LIMITS = {
    "/accept": {"answer": "accept"}, "/soft": {"soft_time_limit": 1}, "/hard": {"time_limit": 1},
}  # fmt: skip
MANY = 400


class Workers(Servers):
    """Two supervised workers."""

    def start(self, *options: str) -> Server:
        env = {
            "GATEWAY_BROKER_URL": self.broker.url,
            "GATEWAY_RESULT_BACKEND": self.results,
            "FAULTS_DIRECTORY": str(self.directory),
        }
        app, options = "tests.integration.limited_tasks", ("-Q", self.queue, *options)
        return self.stack.workers(2, env, *options, app=app, cwd=ROOT)

    def routes(self) -> str:
        own = (route(p, "limited.run", queue=self.queue, **r) for p, r in LIMITS.items())
        return "".join(own)

    def ran(self) -> Counter[str]:
        """Return how often each delivery has run."""
        return Counter(body for body, _ in self._lines())

    def processes(self) -> set[str]:
        """Return the ids of the processes in which tasks have run."""
        return {pid for _, pid in self._lines()}

    def _lines(self) -> list[list[str]]:
        file = self.directory / RAN
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def servers(stack, broker, results, tmp_path_factory) -> Workers:
    return Workers(stack, broker, results.url, tmp_path_factory.mktemp("supervised"))


def solo_of(workers: Server) -> list[psutil.Process]:
    """Return the workers' own processes."""
    return psutil.Process(workers.pid).children()


def end_of(workers: Server) -> int | None:
    """Return the supervisor's exit code once it has ended."""
    assert poll(lambda: not workers.alive(), TIMEOUT)
    return workers._process.returncode


@pytest.mark.parametrize("strategy", ["pika", "redis"])
def test_limits_mean_what_they_mean_in_a_pool_of_processes(servers, strategy, capsys):
    workers = servers.start()
    gateway = servers.gateway("--strategy", strategy)
    before = {process.pid for process in solo_of(workers)}

    tidied = ask(gateway, "/soft?how=tidies&seconds=20", "tidied")
    soft = ask(gateway, "/soft?seconds=20", "soft")
    assert {process.pid for process in solo_of(workers)} == before
    hard = ask(gateway, "/hard?seconds=20&how=goes+on", "hard")

    assert tidied[:2] == (200, "tidied")
    assert soft[0] == 502 and "SoftTimeLimitExceeded" in soft[1]
    assert hard[0] == 502 and "failed: TimeLimitExceeded" in hard[1]
    # The worker that was interrupted is replaced, at once.
    assert poll(lambda: len({process.pid for process in solo_of(workers)} - before) == 1, TIMEOUT)
    assert poll(lambda: workers.output().count(" ready.") == 3, TIMEOUT)
    assert "has ended" not in workers.output()
    assert ask(gateway, "/hard", "quick")[:2] == (200, "quick")
    assert servers.ran() == dict.fromkeys(("tidied", "soft", "hard", "quick"), 1)
    assert servers.messages() == (0, 0)
    assert servers.dead_letters() == []
    config = str(servers.directory / "gateway.toml")
    main(["check", "--config", config, *servers.urls])
    said = capsys.readouterr().out
    assert "2 answered" in said
    assert "long tasks" not in said


def test_a_task_that_hangs_in_c_code_becomes_a_dead_letter(servers):
    workers = servers.start()
    gateway = servers.gateway()

    hangs = ask(gateway, "/hard?how=computes&seconds=60", "hangs")

    assert hangs[0] == 502 and "WorkerLostError" in hangs[1]
    assert servers.ran() == {"hangs": RUNS}
    assert [body for _, body in servers.dead_letters()] == ["hangs"]
    assert "by SIGALRM: its task has not ended after its time limit" in workers.output()
    assert ask(gateway, "/hard", "quick")[:2] == (200, "quick")


@pytest.mark.parametrize("supervised", [True, False])
def test_a_task_longer_than_the_heartbeats_runs_once(servers, supervised):
    if supervised:
        servers.start()
    else:
        servers.worker("solo", app="tests.integration.limited_tasks")
    gateway = servers.gateway()

    long = accept(gateway, "seconds=8", "long")

    assert result(gateway, long) == (200, "long")
    assert poll(lambda: servers.messages() == (0, 0), TIMEOUT)
    assert servers.ran() == {"long": 1}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_so_does_one_whose_worker_ends(servers, pool):
    tasks = "tests.integration.limited_tasks"
    ending = servers.worker(pool, concurrency=2, app=tasks)
    gateway = servers.gateway()
    long, short = (accept(gateway, f"seconds={seconds}", seconds) for seconds in ("10", "2"))
    assert poll(lambda: len(servers.ran()) == 2, TIMEOUT)

    ending._process.terminate()
    servers.worker("solo", app=tasks)

    # What has ended is acknowledged while the other one runs on.
    assert result(gateway, short) == (200, "2")
    assert poll(lambda: servers.messages() == (0, 1), TIMEOUT) and ending.alive()
    assert result(gateway, long) == (200, "10")
    assert poll(lambda: not ending.alive(), TIMEOUT)
    assert (servers.messages(), servers.ran()) == ((0, 0), {"10": 1, "2": 1})


def test_nothing_is_lost_with_a_worker_and_it_is_started_again(servers):
    workers = servers.start()
    gateway = servers.gateway()
    before = solo_of(workers)

    locations = [accept(gateway, "seconds=0.01", f"{n}") for n in range(MANY)]
    before[0].kill()

    for n, location in enumerate(locations):
        assert result(gateway, location) == (200, f"{n}")
    assert "by SIGKILL" in workers.output()
    assert poll(lambda: workers.output().count(" ready.") == 3, TIMEOUT)
    assert poll(lambda: servers.messages() == (0, 0), TIMEOUT)


def test_the_supervisors_end_is_that_of_its_workers(servers):
    workers = servers.start("--prefetch-multiplier=4")
    gateway = servers.gateway()

    locations = [accept(gateway, "seconds=0.02", f"{n}") for n in range(MANY)]
    workers._process.terminate()
    assert end_of(workers) == 0
    # What had begun has ended, and the rest is in the queue.
    waiting, taken = servers.messages()
    assert taken == 0 and len(servers.ran()) + waiting == MANY
    # They end in the same way where their supervisor is killed.
    killed = servers.start()
    own = solo_of(killed)
    psutil.Process(killed.pid).kill()
    assert poll(lambda: not any(process.is_running() for process in own), TIMEOUT)
    servers.start()
    for n, location in enumerate(locations):
        assert result(gateway, location) == (200, f"{n}")
    assert servers.ran() == {f"{n}": 1 for n in range(MANY)}


def test_a_worn_worker_is_replaced(servers):
    workers = servers.start("--max-tasks-per-child=1", "--prefetch-multiplier=1")
    gateway = servers.gateway()

    for n in range(2):
        assert ask(gateway, "/hard", f"{n}")[:2] == (200, f"{n}")
        assert poll(lambda: workers.output().count(" ready.") == 3 + n, TIMEOUT)  # noqa: B023

    assert len(servers.processes()) == 2
    assert "has ended" not in workers.output()
    workers._process.send_signal(signal.SIGINT)
    assert end_of(workers) == 1  # as of a worker of Celery's that is told so
