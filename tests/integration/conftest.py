"""What modules of these tests share: servers, and a gateway of the module's `CONFIG`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.deliveries import Servers
from tests.support.stack import RabbitMQ, Server, Stack

#: The modules that `make test` runs: those that need little time and have found the most. The
#: others are marked `long`.
QUICK = {
    *("bad_input", "claims", "http", "http_connections", "http_limits", "idempotency", "journal"),
    *("late_results", "lost_connections", "pipeline", "publisher", "result_script", "subscription"),
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        ours = item.path.parent == Path(__file__).parent
        if ours and item.path.stem.removeprefix("test_") not in QUICK:
            item.add_marker("long")


@pytest.fixture(scope="module")
def servers(
    stack: Stack, rabbitmq: RabbitMQ, start: Callable[[Callable[[], Server]], Server]
) -> Iterator[Servers]:
    """A broker and a Redis of the module's own, with a worker."""
    servers = Servers(stack, rabbitmq, start(stack.redis))
    yield servers
    servers.stop()
    servers.results.stop()


@pytest.fixture(scope="module")
def gateway(servers: Servers, request: pytest.FixtureRequest) -> Server:
    return servers.gateway("redis", request.module.CONFIG)
