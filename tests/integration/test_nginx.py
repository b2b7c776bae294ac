"""deploy/nginx.conf in front of four gateways."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from gateway.stack import RabbitMQ, Server, Stack
from tests.contract.conftest import get, metric, post, post_all, until
from tests.http_client import request

ROUTES = """
[[routes]]
path = "/"

[[routes]]
path = "/nobody"
queue = "nobody-behind-nginx"
deadline = 60
"""


@pytest.fixture(scope="module")
def gateways(
    stack: Stack, rabbitmq: RabbitMQ, redis_server: Server, tmp_path_factory
) -> list[Server]:
    config: Path = tmp_path_factory.mktemp("nginx") / "gateway.toml"
    config.write_text(ROUTES)
    worker = stack.worker(rabbitmq.url, redis_server.url)
    urls = ("--broker", rabbitmq.url, "--result-backend", redis_server.url)
    options = ("--strategy=pika", "--config", str(config), *urls)
    gateways = [stack.gateway(*options) for _ in range(4)]
    yield gateways
    for server in (*gateways, worker):
        server.stop()


@pytest.fixture(scope="module")
def nginx(stack: Stack, start, gateways: list[Server]) -> Server:
    ports = [int(gateway.url.rpartition(":")[2]) for gateway in gateways]
    nginx = start(lambda: stack.nginx(ports))
    yield nginx
    nginx.stop()


def test_each_request_gets_its_own_answer_and_all_gateways_work(nginx, gateways):
    bodies = [b"request %d" % n for n in range(2_000)]

    answers = post_all(f"{nginx.url}/", bodies, at_once=200)

    assert [a.body for a in answers] == bodies
    done = [
        metric(gateway, 'gateway_requests_total{route="/",status="200"}') for gateway in gateways
    ]
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
    wrong_method = get(f"{nginx.url}/")

    assert (wrong_path.code, wrong_method.code) == (404, 405)
    assert wrong_path.headers["Content-Type"] == "application/problem+json"
    assert wrong_method.headers["Allow"] == "POST"


def test_a_body_over_the_limit_is_refused(nginx):
    assert post(f"{nginx.url}/", b"x" * (1024 * 1024 + 1)).code == 413


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


def test_what_a_client_says_of_itself_goes_no_further(nginx):
    config = (nginx.log.parent / f"nginx-{nginx.url.rpartition(':')[2]}" / "nginx.conf").read_text()
    for header in ("X-Forwarded-For", "X-Real-IP"):
        assert re.search(rf"proxy_set_header\s+{header}\s+\$remote_addr;", config)
