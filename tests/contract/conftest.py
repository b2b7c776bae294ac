"""One gateway for each strategy, over the same servers and the same worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.strategies import STRATEGIES
from tests.support.config import route
from tests.support.stack import RabbitMQ, Server, Stack

ROOT = Path(__file__).parents[2]
#: Seconds: the deadline of the route `/slow`, and how much later an answer may come.
DEADLINE, GRACE = 1.0, 0.5

ROUTES = (
    """\
secret_key = "a key of the contract"
public_url = "https://hooks.example.com"
"""
    + route("/", None)
    + route("/patient", None, deadline=50)
    + route("/fail", "appserver.tasks.fail")
    + route("/sleep", "appserver.tasks.sleep")
    + route("/slow", "appserver.tasks.sleep", deadline=1.0)
    + route("/large", "appserver.tasks.large")
    + route("/unknown", "appserver.tasks.that_nobody_wrote")
    + route("/returned", "tests.returned")
    + route("/stored", "tests.stored")
    + route("/unended", "tests.stored", deadline=1.0)
    + route("/accept", None, answer="accept")
    + route("/nowhere", None, queue="a-queue-that-nobody-declares", declare=False)
)


@pytest.fixture(scope="session")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("contract") / "gateway.toml"
    path.write_text(ROUTES)
    return path


@pytest.fixture(scope="module")
def worker(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Server:
    """Two processes, so that a task that outlives its deadline holds up nobody else's."""
    app = "tests.integration.tasks"
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
