"""One gateway for each strategy, over the same servers and the same worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tornado.httpclient import HTTPResponse
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from gateway.stack import RabbitMQ, Server, Stack
from gateway.stack.server import poll
from gateway.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
#: Seconds: the deadline of the route `/slow`, and how much later an answer may come.
DEADLINE, GRACE = 1.0, 0.5

ROUTES = """
[[routes]]
path = "/"

[[routes]]
path = "/fail"
task = "appserver.tasks.fail"

[[routes]]
path = "/sleep"
task = "appserver.tasks.sleep"

[[routes]]
path = "/slow"
task = "appserver.tasks.sleep"
deadline = 1.0

[[routes]]
path = "/large"
task = "appserver.tasks.large"

[[routes]]
path = "/unknown"
task = "appserver.tasks.that_nobody_wrote"

[[routes]]
path = "/returned"
task = "tests.returned"

[[routes]]
path = "/stored"
task = "tests.stored"

[[routes]]
path = "/unended"
task = "tests.stored"
deadline = 1.0

[[routes]]
path = "/nowhere"
queue = "a-queue-that-nobody-declares"
declare = false
"""


@pytest.fixture(scope="session")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("contract") / "gateway.toml"
    path.write_text(ROUTES)
    return path


@pytest.fixture(scope="module")
def worker(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Server:
    """Two processes, so that a task that outlives its deadline holds up nobody else's."""
    app = "tests.integration.webhook_tasks"
    worker = stack.worker(
        rabbitmq.url, redis_server.url, app=app, pool="prefork", concurrency=2, cwd=ROOT
    )
    yield worker
    worker.stop()


@pytest.fixture(scope="module", params=list(STRATEGIES))
def gateway(
    request: pytest.FixtureRequest,
    stack: Stack,
    rabbitmq: RabbitMQ,
    redis_server: Server,
    worker: Server,
    routes: Path,
) -> Server:
    gateway = start_gateway(stack, request.param, rabbitmq.url, redis_server.url, routes)
    gateway.strategy = request.param
    yield gateway
    gateway.stop()


def start_gateway(stack: Stack, strategy: str, broker: str, results: str, routes: Path) -> Server:
    return stack.gateway(
        f"--strategy={strategy}",
        "--broker", broker,
        "--result-backend", results,
        "--config", str(routes),
    )  # fmt: skip


def post_all(url: str, bodies: Sequence[bytes], at_once: int = 200) -> list[HTTPResponse]:
    """Post each body, `at_once` of them at a time; return the answers in the same order."""
    return post_each([(url, body) for body in bodies], at_once)


def post_each(requests: Sequence[tuple[str, bytes]], at_once: int = 200) -> list[HTTPResponse]:
    """The same for requests to different URLs."""

    async def run() -> list[HTTPResponse]:
        client = SimpleAsyncHTTPClient(force_instance=True, max_clients=at_once)
        options = {"raise_error": False, "connect_timeout": 60, "request_timeout": 60}
        try:
            return await asyncio.gather(
                *(client.fetch(url, method="POST", body=body, **options) for url, body in requests)
            )
        finally:
            client.close()

    return asyncio.run(run())


def post(url: str, body: bytes = b"hello") -> HTTPResponse:
    (answer,) = post_all(url, [body])
    return answer


def metric(gateway: Server, name: str) -> float:
    """Return the sum of a metric's series."""
    answer = get(f"{gateway.admin_url}/metrics")
    lines = answer.body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def get(url: str) -> HTTPResponse:
    async def run() -> HTTPResponse:
        client = SimpleAsyncHTTPClient(force_instance=True)
        try:
            return await client.fetch(url, raise_error=False)
        finally:
            client.close()

    return asyncio.run(run())


def until(condition: Callable[[], bool]) -> None:
    """Look again and again, for a minute at the most."""
    assert poll(condition, 60)
