"""A program of the lab that fails or hangs is told, and nothing of it is left."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable, Iterator

import psutil
import pytest

from gateway.stack import StackError
from loadtest import cli, machine, stack
from loadtest.experiments import transports
from loadtest.lab import program
from loadtest.lab.transport_cases import BUFFERED, Case
from tests.support.stack import RabbitMQ
from tests.support.waiting import until


@pytest.fixture
def servers(rabbitmq: RabbitMQ, start: Callable) -> Iterator[stack.Stack]:
    with stack.Stack() as found:
        redis = start(found.redis)
        found.rabbitmq, found.redis = lambda: rabbitmq, lambda: redis
        yield found


def test_a_transport_that_fails_fails_the_run_and_the_others_are_measured(
    servers: stack.Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
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
