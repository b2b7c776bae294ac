"""One gateway for each strategy, over the same servers and the same worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.strategies import STRATEGIES
from tests.support.stack import RabbitMQ, Server, Stack

ROOT = Path(__file__).parents[2]
#: Seconds: the deadline of the route `/slow`, and how much later an answer may come.
DEADLINE, GRACE = 1.0, 0.5

ROUTES = """
secret_key = "a key of the contract"
public_url = "https://hooks.example.com"

[[routes]]
path = "/"

[[routes]]
path = "/patient"
deadline = 50

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
path = "/accept"
answer = "accept"

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
    return stack.worker(
        rabbitmq.url, redis_server.url, app=app, pool="prefork", concurrency=2, cwd=ROOT
    )


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
