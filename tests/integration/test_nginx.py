"""deploy/nginx.conf in front of four gateways."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.config.settings import Config
from gateway.stack.loopback import accepts
from gateway.stack.server import poll
from loadtest.stack import NGINX_CONF
from tests.support.config import route
from tests.support.http_client import ask, request
from tests.support.http_server import served
from tests.support.requests import REQUESTS, fetch, is_ready, metric, post, post_all
from tests.support.stack import Server, Stack, free_port
from tests.support.waiting import until

ROUTES = route("/", None) + route("/nobody", None, queue="nobody-behind-nginx", deadline=60)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gateways(start_gateway, worker) -> list[Server]:
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda _: start_gateway(ROUTES, "--strategy=pika"), range(4)))


@pytest.fixture(scope="module")
def nginx(stack: Stack, start, gateways: list[Server]) -> Server:
    ports = [gateway.port for gateway in gateways]
    return start(lambda: stack.nginx(ports))


def test_each_request_gets_its_own_answer_and_all_gateways_work(nginx, gateways):
    bodies = [b"request %d" % n for n in range(600)]

    answers = post_all(f"{nginx.url}/", bodies, at_once=200)

    assert [a.body for a in answers] == bodies
    wanted = {"http_route": "/", "http_response_status_code": 200}
    done = [metric(gateway, REQUESTS, **wanted) for gateway in gateways]
    assert sum(done) == len(bodies)
    assert min(done) > len(bodies) / 8, done


def test_a_gateway_that_is_gone_costs_no_request(nginx, gateways):
    gateways[0].kill()
    try:
        answers = post_all(f"{nginx.url}/", [b"%d" % n for n in range(200)])
        assert {a.code for a in answers} == {200}
    finally:
        gateways[0].restart()


def test_errors_come_through_as_the_gateway_gave_them(nginx):
    wrong_path = post(f"{nginx.url}/nothing/here")
    wrong_method = fetch(f"{nginx.url}/")

    assert (wrong_path.code, wrong_method.status) == (404, 405)
    assert wrong_path.headers["Content-Type"] == "application/problem+json"
    assert wrong_method.headers["allow"] == "POST"


def test_a_client_that_leaves_frees_its_waiter_behind_nginx(nginx, gateways):
    def counted(name: str) -> float:
        return sum(metric(gateway, name) for gateway in gateways)

    gone = counted("gateway_clients_gone_total")
    host, port = nginx.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(request(b"x", "/nobody"))
        until(lambda: counted("gateway_in_flight") == 1)

    # Nginx closes its connection to the gateway without a word, as one that still listens would.
    until(lambda: counted("gateway_in_flight") == 0)
    assert counted("gateway_clients_gone_total") == gone + 1


@pytest.mark.parametrize(("method", "sent"), [("POST", 1), ("PUT", 2), ("GET", 2)])
def test_no_post_is_sent_to_another_gateway_once_it_was_sent(stack, start, method, sent):
    with contextlib.ExitStack() as opened:
        # Given two gateways that end when they have got a request,
        listeners = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        got: list[bytes] = []

        def take(listener: socket.socket) -> None:
            with contextlib.suppress(OSError):  # the test is over
                while True:
                    with listener.accept()[0] as connection:
                        got.append(connection.recv(65536).partition(b" ")[0])

        for listener in listeners:
            threading.Thread(target=take, args=(listener,), daemon=True).start()
        nginx = start(lambda: stack.nginx([each.getsockname()[1] for each in listeners]))
        # when one comes, then only what HTTP calls idempotent goes to the other as well.
        assert fetch(f"{nginx.url}/", method=method).status == 502
        assert got == [method.encode()] * sent
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
    nginx.stop()


def test_behind_a_balancer_the_sender_is_whom_that_names(stack, start, monkeypatch, tmp_path):
    def balanced(address: str) -> Server:
        """Start nginx with the file as its comments say."""
        text = re.sub(
            r"# ((?:set_real_ip|real_ip|203\.).*;)$", r"\1", NGINX_CONF.read_text(), flags=re.M
        )
        file = tmp_path / f"{address}.conf"
        file.write_text(text.replace("203.0.113.10", address))
        monkeypatch.setattr("loadtest.stack.NGINX_CONF", file)
        return start(lambda: stack.nginx([upstream]))

    def seen(nginx: Server, *headers: str) -> tuple[str, str]:
        asked = json.loads(asyncio.run(ask(nginx.port, request(b"", "/", *headers))).body)
        assert asked["x-forwarded-for"] == asked["x-real-ip"]
        return asked["x-forwarded-for"], asked["x-forwarded-proto"]

    said = ("X-Forwarded-For: 192.0.2.1, 198.51.100.7, 127.0.0.1", "X-Forwarded-Proto: https")
    with served(lambda asked: (200, {}, json.dumps(asked.headers).encode())) as upstream:
        # Who connects is the balancer: what it appended is true, what was there before is not.
        known = balanced("127.0.0.1")
        assert seen(known, *said) == ("198.51.100.7", "https")
        assert seen(known) == ("127.0.0.1", "http")
        # Who connects is somebody else, or the file is as it ships: it is whoever connects.
        other = balanced("203.0.113.10")
        monkeypatch.setattr("loadtest.stack.NGINX_CONF", NGINX_CONF)
        shipped = start(lambda: stack.nginx([upstream]))
        assert seen(other, *said) == seen(shipped, *said) == ("127.0.0.1", "http")


# The shipped file, the defaults and the document's command together ------------------------


@pytest.fixture
def shipped(stack, start, rabbitmq, redis_server, worker) -> Server:
    """Start the command of docs/start.md with all defaults, and nginx in front of it."""
    config = Config()
    ports = [int(p) for p in re.findall(r"^ *server [\d.]+:(\d+)", NGINX_CONF.read_text(), re.M)]
    if taken := [port for port in {*ports, config.port, config.admin_port} if accepts(port)]:
        pytest.skip(f"somebody else listens on {taken}")
    (command,) = re.findall(r"^    gateway (serve .*)$", (ROOT / "docs/start.md").read_text(), re.M)
    env = {"GATEWAY_BROKER_URL": rabbitmq.url, "GATEWAY_RESULT_BACKEND": redis_server.url}
    argv = [sys.executable, "-m", "gateway", *shlex.split(command)]
    ready = lambda: is_ready(config)  # noqa: E731
    stack.spawn("gateway", argv, env=env, ready=ready)
    return start(lambda: stack.nginx(ports))


def test_the_documented_command_serves_all_behind_the_shipped_nginx(shipped):
    answers = post_all(f"{shipped.url}/", [b"%d" % n for n in range(100)], at_once=10)
    assert [a.body for a in answers] == [b"%d" % n for n in range(100)]
    assert {a.code for a in answers} == {200}
    # Nothing of the admin port is to be seen from outside, whichever way nginx goes.
    for path, status in [("/", 405), ("/metrics", 404), ("/readyz", 404), ("/healthz", 404)]:
        assert {fetch(f"{shipped.url}{path}").status for _ in range(8)} == {status}


# What is logged ----------------------------------------------------------------------------


@pytest.mark.parametrize("alive", [True, False], ids=["alive", "gone"])
def test_no_log_has_the_token_of_a_result(stack, start, gateways, alive):
    port = gateways[0].port if alive else free_port()
    nginx = start(lambda: stack.nginx([port]))
    home = nginx.log.parent / f"nginx-{nginx.url.rpartition(':')[2]}"
    for path in ("/results/token", "//results/token?a=token", "/x/../results/token", "/shown"):
        assert fetch(f"{nginx.url}{path}").status == (404 if alive else 502)
    logs = [home / "access.log", home / "error.log", nginx.log]

    # Written after a second at the latest.
    assert poll(lambda: logs[0].read_text().count("\n") == 4, 10)
    nginx.stop()
    text = "".join(log.read_text() for log in logs)
    assert text.count('"path":"/results/-"') == 3 and '"path":"/shown"' in text
    assert "token" not in text


# One that is full --------------------------------------------------------------------------


def test_a_gateway_that_is_full_is_passed_over(stack, start, gateways, start_gateway):
    # Given a gateway with room for one connection, and a queue of those that wait that is full,
    # (whose silent connections end soon, as some of the requests are behind them,)
    full = start_gateway("max_connections = 1\nbacklog = 1\nidle_timeout = 2\n")
    port, other = (server.port for server in (full, gateways[0]))
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(TimeoutError):
            for _ in range(10):
                connection = socket.create_connection(("127.0.0.1", port), timeout=0.5)
                opened.enter_context(connection)
        nginx = start(lambda: stack.nginx([port, other], proxy_connect_timeout="500ms"))
        # when webhooks come, then the other one answers them, each once,
        before = metric(gateways[0], REQUESTS)
        answers = post_all(f"{nginx.url}/", [b"%d" % n for n in range(10)], at_once=5)
        assert [a.body for a in answers] == [b"%d" % n for n in range(10)]
        # but for those that the full one has found room for meanwhile.
        served = metric(gateways[0], REQUESTS) - before
        assert served + metric(full, REQUESTS) == 10
        assert served > 5
        assert fetch(f"{full.admin_url}/healthz").status == 200
