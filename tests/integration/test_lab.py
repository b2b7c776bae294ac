"""Programs of the lab that fail or hang are told and leave nothing; others are watched."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

import psutil
import pytest

from gateway.stack import StackError
from loadtest import cli, machine, stack
from loadtest.experiments import transports
from loadtest.lab import program
from loadtest.lab.pools.watch import Watch, connections, line, shared_once_mb
from loadtest.lab.transport_cases import BUFFERED, Case
from tests.support.stack import RabbitMQ
from tests.support.waiting import until


@pytest.fixture
def servers(rabbitmq: RabbitMQ, start: Callable) -> Iterator[stack.Stack]:
    with stack.Stack() as found:
        redis = start(found.redis)
        found.rabbitmq, found.redis = lambda: rabbitmq, lambda: redis
        yield found


def test_a_transport_that_fails_fails_the_run_and_others_are_measured(servers, monkeypatch, capsys):
    # Given a transport whose receiver cannot connect, as a socket's name is too long for it,
    cases = [Case("long", "zeromq", "push-ipc"), Case(BUFFERED, "local", "buffered-socket")]
    monkeypatch.setattr(transports, "CASES", cases)
    monkeypatch.setattr(servers, "directory", servers.directory / ("long" * 30))
    servers.directory.mkdir()

    # when both are measured,
    report = transports.run(argparse.Namespace(requests=50, repeats=1), servers)
    report.machine, report.options = machine.machine(), {"repeats": 1}

    # then the failure says why, the exit code is 1, and nothing is advised.
    (failure,) = report.failures
    assert failure.startswith("long, repeat 1: transports exited with 1") and "ZMQError" in failure
    assert [row["strategy"] for row in report.rows] == [BUFFERED]
    assert cli.publish(report, argparse.Namespace(json=None, html=None, plots=None)) == 1
    assert "ZMQError" in capsys.readouterr().err
    assert report.advice == ""


def test_a_program_that_does_not_end_is_killed_with_its_children():
    # Given a checker with several processes, and a server that accepts no one,
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        # when it is given too little time,
        with pytest.raises(StackError, match=r"^checker was still running after 2 s$"):
            program.run("checker", "processes", f"--url={url}", "--number=8", timeout=2)

    # then none of its processes is left.
    def left() -> list[str]:
        arguments = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
        return [each for line in arguments for each in line if url in each]

    until(lambda: not left())


# Watching processes ----------------------------------------------------------------------------


# Connects twice to the port, takes 64 MB, and computes until its input ends.
CLIENT = """\
import socket, sys, threading
links = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(2)]
block = bytearray(b"x" * 64 * 2**20)
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set())).start()
print("ready", flush=True)
while not over.is_set():
    sum(range(10_000))
"""


class Family:
    """Processes, also once they have ended."""

    def __init__(self, *children: subprocess.Popen):
        self.processes = [psutil.Process(child.pid) for child in children]
        self.listed = Event()

    def family(self) -> list[psutil.Process]:
        self.listed.set()
        return self.processes


class Broken:
    def family(self) -> list[psutil.Process]:
        raise PermissionError("no processes here")


@contextmanager
def client(port: int) -> Iterator[subprocess.Popen]:
    argv = [sys.executable, "-c", CLIENT, str(port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        yield child


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def test_a_busy_process_is_seen_with_its_memory_and_connections(port: int):
    with client(port) as child:
        family = Family(child)
        (process,) = family.processes
        with Watch(family, {"server": port}, every=0.05) as watch:
            family.listed.wait()
            before = used(process)
            until(lambda: used(process) > before + 0.1)
        assert 64 < shared_once_mb(family) < 500

    series = watch.series
    assert len(series["seconds"]) > 1 and series["seconds"] == sorted(series["seconds"])
    assert series["cpu_percent"][0] == 0 and max(series["cpu_percent"]) > 0
    assert all(64 < megabytes < 500 for megabytes in series["rss_mb"])
    assert max(series["connections"]["server"]) == 2
    (one,) = series["processes"]
    assert one == {what: series[what] for what in ("cpu_percent", "rss_mb")}
    assert line(series, "rss_mb")[0][1] == series["rss_mb"][0]


def test_processes_are_added_up_and_one_that_ends_no_longer_counts(port: int):
    with client(port) as first, client(port) as second:
        family = Family(first, second)
        with Watch(family, {"server": port}, every=0.05) as watch:
            until(lambda: watch.series["rss_mb"][-1:] > [128])
            first.kill()
            first.wait()
            until(lambda: watch.series["rss_mb"][-1] < 128)
            until(lambda: watch.series["connections"]["server"][-1] == 2)

    series = watch.series
    assert max(series["connections"]["server"]) == 4
    gone, left = series["processes"]
    assert gone["rss_mb"][0] > 64 and gone["rss_mb"][-1] == 0
    assert left["rss_mb"][-1] == series["rss_mb"][-1] > 64


def test_our_own_connections_do_not_count(port: int):
    with socket.create_connection(("127.0.0.1", port)):
        assert connections({"server": port}) == {"server": 0}
        with client(port):
            assert connections({"server": port, "other": 1}) == {"server": 2, "other": 0}


def test_what_goes_wrong_while_sampling_is_raised_at_the_end():
    with pytest.raises(PermissionError), Watch(Broken(), {}):
        pass
