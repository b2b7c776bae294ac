"""A new version is installed under a running parent, which then starts children of that version."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import gateway
from tests.support.requests import REQUESTS, metric, post
from tests.support.stack import Server
from tests.support.waiting import until

PACKAGE = Path(gateway.__file__).parent
CONFIG = '[[routes]]\npath = "/"\ntask = "appserver.tasks.echo"\n'
RELOADED = "supervisor: reloaded"
NEW = "this version serves with the strategy"


class Installed:
    """Two versions of the package, of which one at a time is what Python finds."""

    def __init__(self, directory: Path):
        self._directory = directory
        for name in ("old", "new"):
            shutil.copytree(PACKAGE, directory / name / "gateway")
        # The parent's older version leaves it to its children which signals end them.
        handle = directory / "old" / "gateway" / "process" / "child_handle.py"
        text = handle.read_text()
        assert text.count("(signal.SIGINT, signal.SIGHUP)") == 1
        handle.write_text(text.replace("(signal.SIGINT, signal.SIGHUP)", "()"))
        self._change(directory / "new" / "gateway")
        self.path = directory / "installed"

    def install(self, name: str) -> None:
        link = self._directory / "next"
        link.symlink_to(self._directory / name)
        link.replace(self.path)

    def _change(self, package: Path) -> None:
        """Make the next version: with one more setting, one more metric, and a moved module."""
        for file, before, after in [
            ("config/settings.py", "    log_requests: ", "    colour: str = 'red'\n{}"),
            (
                "metric_table.py",
                '    "gateway_clients_gone',
                '    "gateway_colours_total": Metric(COUNTER, ""),\n{}',
            ),
            ("process/child.py", "serving with the strategy", NEW),
        ]:
            text = (package / file).read_text()
            assert text.count(before) == 1
            (package / file).write_text(text.replace(before, after.format(before)))
        (package / "relay" / "limits.py").rename(package / "relay" / "bounds.py")
        for path in package.rglob("*.py"):
            text = path.read_text()
            # What stays as it is stays compiled.
            if "gateway.relay.limits" in text:
                path.write_text(text.replace("gateway.relay.limits", "gateway.relay.bounds"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("versions"))


@pytest.fixture
def start(start_gateway, worker, installed, tmp_path) -> Callable[..., Server]:
    """Start a gateway of the installed version, which is not the one of this checkout."""
    elsewhere = ("env", "-C", str(tmp_path))
    env = {"PYTHONPATH": str(installed.path)}

    def start(config: str = CONFIG, processes: int = 2) -> Server:
        return start_gateway(config, f"--processes={processes}", env=env, wrapper=elsewhere)

    return start


@contextmanager
def load(server: Server) -> Iterator[list[int]]:
    """Post one request after the other; collect the statuses of the answers."""
    statuses: list[int] = []
    ended = threading.Event()

    def send() -> None:
        while not ended.wait(0.01):
            statuses.append(post(server.url, b"hello").code)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield statuses
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")])
def test_children_of_another_version_serve_and_count(installed, start, first, second):
    installed.install(first)
    server = start()

    with load(server) as statuses:
        until(lambda: len(statuses) > 20)
        installed.install(second)
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: RELOADED in server.output())
        parent = psutil.Process(server.pid)
        until(lambda: len(parent.children()) == 2)  # the others have ended
        children = parent.children()
        for child in children:  # as those of a whole group
            child.send_signal(signal.SIGHUP)
            child.send_signal(signal.SIGINT)
        number = len(statuses)
        until(lambda: len(statuses) > number + 20)

    assert set(statuses) == {200}
    assert server.output().count(NEW) == 2
    assert parent.children() == children
    counted = metric(server, REQUESTS, http_route="/", http_response_status_code=200)
    assert counted == metric(server, REQUESTS) == len(statuses)


def test_a_setting_that_the_other_version_does_not_know_keeps_the_old_children(installed, start):
    installed.install("new")
    server = start(f'colour = "blue"\n{CONFIG}', processes=1)
    before = set(server.pids())

    installed.install("old")
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: "the old children stay" in server.output())

    assert "colour: there is no such setting" in server.output()
    assert "restart the gateway" in server.output()
    until(lambda: set(server.pids()) == before)  # the new one may still be ending
    assert post(server.url, b"hello").body == b"hello"
