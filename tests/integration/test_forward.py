"""`gateway forward`: a local server gets what the gateway gets, each once."""

from __future__ import annotations

import hashlib
import hmac
import os
import queue
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gateway.stack.server import poll
from tests.integration.deliveries import URLS, Servers, run, send
from tests.support.command import GATEWAY
from tests.support.command import run as run_gateway
from tests.support.config import route, source
from tests.support.http_server import Asked, Said, served
from tests.support.stack import Server, free_port

TOKEN = "of-these-tests-only"
CONFIG = (
    f'journal = 1000\nadmin_token = "{TOKEN}"\nstate_prefix = "forward"\n{URLS}'
    + source("forge", "github", secrets=["sesame"])
    + route("/plain")
    + route("/forge", source="forge")
    + route("/args", args=["json:/id"])
)
PATIENCE = 60  # seconds


class Local:
    """A local server, which answers with ``status``."""

    def __init__(self) -> None:
        self.got: queue.Queue[Asked] = queue.Queue()
        self.status, self.url = 200, ""

    def answer(self, asked: Asked) -> Said:
        self.got.put(asked)
        return self.status, {}, b""


@pytest.fixture
def local(servers: Servers) -> Iterator[Local]:
    servers.results.client.flushdb()
    local = Local()
    with served(local.answer) as port:
        local.url = f"http://127.0.0.1:{port}/hook?own=1"
        yield local


def command(gateway: Server, to: str, *args: str, token: str = TOKEN) -> list[str]:
    own = ["--to", to, "--admin", gateway.admin_url, "--token", token]
    return ["forward", *own, *args]


@contextmanager
def forwarding(gateway: Server, local: Local, *args: str) -> Iterator[Callable[[], str]]:
    """Forward what comes; yield a function that returns the next line that is printed."""
    argv = [*GATEWAY, *command(gateway, local.url, *args)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout.readline().startswith("waiting for deliveries")
            yield process.stdout.readline
        finally:
            process.send_signal(signal.SIGINT)  # as Ctrl-C does
        assert "Traceback" not in process.communicate()[1]


def test_the_original_request_arrives(gateway, local):
    body = b'{"action": "opened", "by": "\xc3\xa9"}'
    signature = "sha256=" + hmac.digest(b"sesame", body, hashlib.sha256).hex()
    signed = [f"X-Hub-Signature-256: {signature}", "X-GitHub-Event: issues"]
    with forwarding(gateway, local, "--route", "/forge", "--event", "issue*") as printed:
        assert run(send(gateway, "/plain", "not wanted")).status == 200
        answer = run(send(gateway, "/forge?a=b&a=c", body.decode(), *signed))
        assert answer.status == 200
        got = local.got.get(timeout=PATIENCE)
        assert (got.path, got.body) == ("/hook?own=1&a=b&a=c", body)
        # A task is not told the signature, and the journal has what the task is told.
        assert (got.headers["x-github-event"], "x-hub-signature-256" in got.headers) == (
            "issues", False
        )  # fmt: skip
        assert got.headers["host"].startswith("127.0.0.1:")
        line = printed()
        assert " /forge issues.opened -> 200 in " in line
    assert local.got.empty()


def test_what_was_kept_is_sent_first_and_each_once(servers, gateway, local):
    assert run(send(gateway, "/plain", "before 1")).status == 200
    assert run(send(gateway, "/plain", "before 2")).status == 200
    with servers.results.client as client:
        assert poll(lambda: client.xlen("forward:{journal}:deliveries") == 2, PATIENCE)
    local.status = 500
    with forwarding(gateway, local, "--since", "1h") as printed:
        assert [" -> 500 in " in printed() for _ in range(2)] == [True, True]
        assert run(send(gateway, "/plain", "after")).status == 200
        bodies = [local.got.get(timeout=PATIENCE).body for _ in range(3)]
    assert bodies == [b"before 1", b"before 2", b"after"]


def test_what_was_kept_before_is_not_new(servers, gateway, local):
    for n in range(120):  # more than there are on a page
        assert run(send(gateway, "/plain", f"before {n}")).status == 200
    with servers.results.client as client:
        journal = "forward:{journal}:deliveries"
        assert poll(lambda: client.xlen(journal) >= 120, PATIENCE)
        with forwarding(gateway, local):
            for position, _ in client.xrevrange(journal, count=10):
                client.xdel(journal, position)  # so that older ones are on the first page
            assert run(send(gateway, "/plain", "after")).status == 200
            assert local.got.get(timeout=PATIENCE).body == b"after"
            assert run(send(gateway, "/plain", "the last")).status == 200
            assert local.got.get(timeout=PATIENCE).body == b"the last"
    assert local.got.empty()


def test_one_is_sent_again(gateway, local):
    with forwarding(gateway, local) as printed:
        assert run(send(gateway, "/plain?x=1", "\x00once")).status == 200
        local.got.get(timeout=PATIENCE)
        delivery_id = printed().split()[1]
    done = run_gateway(*command(gateway, local.url, "--id", delivery_id))
    assert (done.returncode, done.stderr) == (0, "")
    assert local.got.get(timeout=PATIENCE)[::2] == ("/hook?own=1&x=1", b"\x00once")


def test_what_came_while_the_gateway_restarted_is_sent(servers, gateway, local):
    other = servers.gateway("redis", CONFIG)
    with forwarding(other, local) as printed:
        other.stop()
        assert run(send(gateway, "/plain", "meanwhile")).status == 200
        other.restart()
        assert local.got.get(timeout=PATIENCE).body == b"meanwhile"
        assert "/plain" in printed()


def test_who_cannot_be_served_is_told(gateway, local):
    with forwarding(gateway, local) as printed:
        assert run(send(gateway, "/args", '{"id": "7"}')).status == 502
        assert printed().endswith(
            " not sent: its request is not kept, as its route has `args`, or by `keep_bodies`\n"
        )
    nobody = f"http://127.0.0.1:{free_port()}/"
    own = {"GATEWAY_ADMIN_PORT": str(gateway.admin_port), "GATEWAY_ADMIN_TOKEN": TOKEN}
    done = run_gateway("forward", "--to", local.url, "--id", "none", env=os.environ | own)
    assert "404: there is no such delivery" in done.stderr
    argv = [*GATEWAY, "forward", "--to", local.url, "--admin", nobody]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert "start the gateway, or correct --admin; trying again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
    for argv, said in (
        (command(gateway, local.url, token="other"), "401: send Authorization: Bearer"),
        (command(gateway, local.url, "--id", "none"), "404: there is no such delivery"),
        (command(gateway, local.url, "--route", "x"), "400: route: x: is not a path"),
        (command(gateway, "ftp://h"), "--to: is written as http://"),
        (command(gateway, "http://[::1"), "--to: is written as http://"),
        (command(gateway, local.url, token=f"{TOKEN}\n"), "has letters that are not ASCII"),
        (command(gateway, local.url, "--admin", nobody, "--id", "x"), "onnect"),
    ):
        done = run_gateway(*argv)
        assert done.returncode == 1 and done.stderr.startswith("gateway: ")
        assert said in done.stderr and "Traceback" not in done.stderr and TOKEN not in done.stderr
