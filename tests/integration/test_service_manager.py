"""The gateway under a service manager: what it says, and sockets that outlive it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gateway.process.service_manager import ServiceManager
from tests.support.requests import post
from tests.support.stack import RabbitMQ, Server, Stack, free_port
from tests.support.waiting import TIMEOUT, until

#: Holds a socket, and starts a gateway on it again whenever it has ended, as systemd does with a
#: socket unit: the socket is descriptor 3 (sd_listen_fds(3)).
MANAGER = """\
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    if not (pid := os.fork()):
        os.dup2(listener.fileno(), 3)
        os.set_inheritable(3, True)
        os.environ.update(LISTEN_FDS="1", LISTEN_FDNAMES="http", LISTEN_PID=str(os.getpid()))
        os.execv(sys.executable, [sys.executable, "-m", "gateway", "serve", *sys.argv[2:]])
    os.waitpid(pid, 0)
"""
SERVING = "serving with the strategy"


class Manager:
    """Receives what a gateway says on a socket of its own; `status` is the last it has said."""

    def __init__(self, address: str):
        self.address = address
        self.status = ""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0"))
        self.socket.settimeout(TIMEOUT)

    def until(self, name: str) -> dict[str, str]:
        """Return the next message that has the variable `name`."""
        while name not in (message := self._receive()):
            pass
        return message

    def until_status(self, begin: str) -> dict[str, str]:
        """Return the message with which the status begins so; without one if it does already."""
        message: dict[str, str] = {}
        while not self.status.startswith(begin):
            message = self._receive()
        return message

    def _receive(self) -> dict[str, str]:
        message = dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())
        self.status = message.get("STATUS", self.status)
        return message


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = f"@gateway-{os.getpid()}" if request.param == "abstract" else f"{tmp_path}/notify"
    manager = Manager(address)
    yield manager
    manager.socket.close()


@pytest.fixture
def start_gateway(stack, rabbitmq, redis_server) -> Callable[..., Server]:
    def start(address: str, *args: str, **env: str) -> Server:
        urls = {"GATEWAY_BROKER_URL": rabbitmq.url, "GATEWAY_RESULT_BACKEND": redis_server.url}
        env = {**urls, "NOTIFY_SOCKET": address, **env}
        return stack.gateway(*args, env=env, ready="/healthz")

    return start


def children(server: Server) -> list[psutil.Process]:
    return psutil.Process(server.pid).children()


def test_start_reload_and_end_are_told(manager, start_gateway):
    gateway = start_gateway(manager.address, "--processes", "2")
    # Nobody has asked for the watchdog.
    assert "WATCHDOG" not in manager.until("READY")
    manager.until_status("ready, 2 processes")
    os.kill(gateway.pid, signal.SIGHUP)
    assert int(manager.until("RELOADING")["MONOTONIC_USEC"]) > 0
    assert manager.until("READY") == {"READY": "1"}
    until(lambda: "supervisor: reloaded" in gateway.output())
    until(lambda: len(children(gateway)) == 2)  # the replaced ones have ended
    for child in children(gateway):
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"} & child.environ().keys()
    os.kill(gateway.pid, signal.SIGTERM)
    assert manager.until("STOPPING") == {"STOPPING": "1", "STATUS": "draining"}


def test_a_reload_that_fails_ends_as_well(manager, start_gateway, tmp_path):
    config = tmp_path / "gateway.toml"
    config.write_text("processes = 1\n")
    gateway = start_gateway(manager.address, "--config", str(config))
    manager.until("READY")
    config.write_text("processes = 'many'\n")
    os.kill(gateway.pid, signal.SIGHUP)
    manager.until("RELOADING")
    manager.until("READY")
    until(lambda: "not reloaded: " in gateway.output())


@pytest.mark.parametrize("strategy", ["redis", "threadpool"])
def test_it_starts_without_a_broker_and_says_what_is_wrong(tmp_path, start_gateway, strategy):
    manager = Manager(f"{tmp_path}/notify")
    nobody = f"amqp://127.0.0.1:{free_port()}//"
    env = {"GATEWAY_BROKER_URL": nobody, "GATEWAY_CONFIRM_TIMEOUT": "0.5"}
    start_gateway(manager.address, f"--strategy={strategy}", **env)
    manager.until("READY")
    manager.until_status("not ready, 1 process: broker: ")
    manager.socket.close()


def test_what_could_not_be_sent_is_sent_again(tmp_path, start_gateway):
    manager = Manager(f"{tmp_path}/notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others:
        others.setblocking(False)
        with suppress(BlockingIOError):  # until no more fit
            while True:
                others.sendto(b"OTHER=1", manager.address)
    gateway = start_gateway(manager.address)
    until(lambda: "cannot tell the service manager STATUS=" in gateway.output())
    manager.until("READY")
    manager.socket.close()


def test_the_watchdog_hears_nothing_while_a_process_hangs(manager, start_gateway):
    gateway = start_gateway(manager.address, "--processes", "2", WATCHDOG_USEC="4000000")
    manager.until_status("ready, 2 processes")
    manager.until("WATCHDOG")
    child = children(gateway)[0]
    child.suspend()
    hangs = f"ready, 2 processes: process {child.pid} does not answer"
    assert "WATCHDOG" not in manager.until_status(hangs)
    child.resume()
    manager.until("WATCHDOG")
    assert manager.status == "ready, 2 processes"


def test_a_manager_that_is_away_is_logged_and_no_reason_to_end(start_gateway, tmp_path):
    gateway = start_gateway(str(tmp_path / "nobody"))
    until(lambda: "cannot tell the service manager STATUS=" in gateway.output())
    assert gateway.alive()


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
    ids=["any", "ours", "another's", "no number", "none"],
)
def test_a_watchdog_of_another_process_is_not_ours(variables, seconds):
    environment = {"NOTIFY_SOCKET": "/run/notify", "PATH": "/bin", **variables}
    manager = ServiceManager.of(environment)
    assert (manager.address, manager.watchdog) == ("/run/notify", seconds)
    assert environment == {"PATH": "/bin"}


@pytest.fixture
def activated(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Server:
    """A service manager with one socket, and the gateway that it starts."""
    number, admin = free_port(), free_port()
    # A port that is taken: had the gateway bound one itself, it would not have started.
    taken = redis_server.url.rpartition(":")[2].partition("/")[0]
    urls = ["--broker", rabbitmq.url, "--result-backend", redis_server.url]
    argv = [sys.executable, "-c", MANAGER, str(number), *urls]
    argv += ["--admin-port", str(admin), "--port", taken]
    server = stack.spawn("activated", argv, ready=SERVING)
    server.url = f"http://127.0.0.1:{number}"
    return server


def test_a_restart_refuses_nobody_on_a_passed_socket(activated, stack, rabbitmq, redis_server):
    stack.worker(rabbitmq.url, redis_server.url)
    assert post(activated.url, b"hello").body == b"hello"
    (gateway,) = children(activated)
    for child in gateway.children():
        assert not [name for name in child.environ() if name.startswith("LISTEN_")]
    # Whatever it is sent while it ends, is away, and starts again, is answered.
    gateway.terminate()
    sent = 0
    while activated.output().count(SERVING) < 2:
        assert post(activated.url, b"again").body == b"again"
        sent += 1
    assert sent and gateway.pid not in [each.pid for each in children(activated)]


@pytest.mark.parametrize("passed", ["socket.socket()", "open(os.devnull)"])
def test_what_was_passed_has_to_listen(passed):
    program = MANAGER.replace("socket.create_server", f"{passed} or ").replace(
        "os.waitpid(pid, 0)", "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    argv = [sys.executable, "-c", program, str(free_port())]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 1
    assert done.stderr.startswith("gateway: descriptor 3, which the service manager has passed, is")
