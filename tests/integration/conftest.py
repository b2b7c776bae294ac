"""What modules of these tests share: servers, and a gateway of the module's `CONFIG`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.integration.deliveries import Servers
from tests.support.stack import RabbitMQ, Server, Stack


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
