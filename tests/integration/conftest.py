"""What modules of these tests share: servers, and a gateway of the module's `CONFIG`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.faults.proxy import Proxy
from tests.integration.checking import worker_of
from tests.integration.deliveries import ROOT, Servers
from tests.support.otlp import Collector
from tests.support.stack import RabbitMQ, Server, Stack

Start = Callable[[Callable[[], Server]], Server]
#: The modules that `make test` runs: those that need little time and have found the most. The
#: others are marked `long`.
QUICK = {
    "bad_input", "claims", "http", "http_connections", "http_limits", "idempotency", "journal",
    "late_answers", "lost_connections", "pipeline", "publisher", "result_script", "subscription",
    "unattended_tasks",
}  # fmt: skip


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Load no module of which nothing would be run."""
    return True if config.option.markexpr == "not long" and _is_long(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_long(item.path):
            item.add_marker("long")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Stop what the test itself has started, also where it has failed."""
    Stack.started.clear()
    try:
        yield
    finally:
        _stop(Stack.started)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """Stop what a fixture has started at its end, after its own last lines."""
    own: list[Server] = []
    fixturedef.addfinalizer(lambda: _stop(own))
    before = len(Stack.started)
    try:
        return (yield)
    finally:
        own += Stack.started[before:]
        del Stack.started[before:]


def _stop(servers: Sequence[Server]) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda server: server.stop(), servers))


def _is_long(path: Path) -> bool:
    name = path.stem.removeprefix("test_")
    return path.parent == Path(__file__).parent and name != path.stem and name not in QUICK


@pytest.fixture(scope="module")
def servers(stack, redis_server, request) -> Servers:
    """The module's servers, with a worker as `WORKER` says.

    The broker is the module's own with `OWN_BROKER`.
    """
    module = request.module
    broker = "own_rabbitmq" if getattr(module, "OWN_BROKER", False) else "rabbitmq"
    options = getattr(module, "WORKER", {})
    return Servers(stack, request.getfixturevalue(broker), redis_server, **options)


@pytest.fixture(scope="module")
def start_gateway(stack, urls, tmp_path_factory) -> Callable[..., Server]:
    """Start gateways with a configuration, whose file is its `config`, at the module's servers."""

    def start(config: str, *options: str, **more: Any) -> Server:
        file = tmp_path_factory.mktemp("gateway") / "gateway.toml"
        file.write_text(config)
        gateway = stack.gateway(*urls, "--config", str(file), *options, **more)
        gateway.config = file
        return gateway

    return start


@pytest.fixture(scope="module")
def broker(own_rabbitmq: RabbitMQ) -> RabbitMQ:
    """The broker of tests that break it, or leave messages in it."""
    return own_rabbitmq


@pytest.fixture(scope="module")
def urls(rabbitmq: RabbitMQ, redis_server: Server) -> list[str]:
    """Return a gateway's options that name the module's servers."""
    return ["--broker", rabbitmq.url, "--result-backend", redis_server.url]


@pytest.fixture(scope="module")
def worker(stack, rabbitmq, redis_server, request) -> Server:
    """A worker at the same servers, as `WORKER` says."""
    options = getattr(request.module, "WORKER", {})
    return stack.worker(rabbitmq.url, redis_server.url, cwd=ROOT, **options)


@pytest.fixture
def worker_with(
    stack: Stack, rabbitmq: RabbitMQ, redis_server: Server, tmp_path: Path
) -> Callable[..., AbstractContextManager[Server]]:
    """Run workers in a `with` block, with the gateway's result store unless another is given."""

    def start(
        backend: str = redis_server.url, lines: str | None = None, *args: str, **env: str
    ) -> AbstractContextManager[Server]:
        return worker_of(stack, rabbitmq.url, tmp_path, backend, lines, *args, **env)

    return start


@pytest.fixture(scope="module")
def nginx(stack: Stack, start: Start, gateway: Server) -> Server:
    """An nginx in front of the module's `gateway`."""
    return start(lambda: stack.nginx([gateway.port]))


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    """A client of the module's Redis, which is empty at first, and has counted nothing."""
    with redis_server.client as client:
        client.flushall()
        client.config_resetstat()
        yield client


@pytest.fixture
def proxy(rabbitmq: RabbitMQ) -> Iterator[Proxy]:
    """A proxy of the broker's port."""
    proxy = Proxy(rabbitmq.port)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
def nothing_is_told(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail where an error was logged."""
    yield
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


@pytest.fixture(scope="module")
def gateway(servers: Servers, request: pytest.FixtureRequest) -> Server:
    return servers.gateway("redis", request.module.CONFIG)
