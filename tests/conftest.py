"""Private servers for all tests: one of a kind per session, started when first asked for."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from tornado.ioloop import IOLoop

from gateway.metrics import Metrics
from gateway.stack import loopback
from gateway.stores import pipeline
from gateway.stores.state_store import StateStore
from tests.support.certificates import Certificates
from tests.support.in_memory import LOOPS, Start, running, serving
from tests.support.stack import ProgramMissing, RabbitMQ, Server, Stack, free_port, shared

S = TypeVar("S", bound=Server)

# No example has a deadline: the machine may be busy. Others are made up in each run, so a test of a
# property takes few; with --hypothesis-profile=thorough (`make fuzz`) it takes thousands.
# How long it takes says nothing on a machine that does other things, too.
settings.register_profile(
    "usual", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("usual"), max_examples=2_000)
settings.load_profile("usual")


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGINT interrupt, and give each of several test processes ports of its own.

    A server's start lies between finding a port and listening on it. Commands that tests run choose
    from all ports still.
    """
    # A shell lets what it starts in the background ignore it, which the tests' processes would
    # inherit; and many of them are ended by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        loopback.PORTS = loopback.PORTS[number::count]


def pytest_collection_finish() -> None:
    """Keep the garbage collector from what was loaded, which it would have each fork copy."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function, on the loop that `each_loop` makes if it uses that.

    Those marked `gen_test` are pytest-tornado's.
    """
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or pyfuncitem.get_closest_marker("gen_test"):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    with asyncio.Runner(loop_factory=pyfuncitem.funcargs.get("each_loop")) as runner:
        runner.run(test(**given))
    return True


@pytest.fixture(params=LOOPS)
def each_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Run a coroutine's test on each of the loops that gateways run on."""
    return LOOPS[request.param]


@pytest.fixture(scope="session")
def stack_of_all() -> Iterator[Stack]:
    with Stack() as stack:
        yield stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Starts servers for a module's tests, and stops what still runs after them."""
    with Stack() as stack:
        yield stack


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def rabbitmq(stack_of_all: Stack, certificates: Certificates) -> RabbitMQ:
    """The only broker of most tests, as it takes seconds to start: no test may leave it changed."""
    tls, port = certificates.server, free_port()
    broker = _start(
        lambda: shared(stack_of_all.rabbitmq)(f"""\
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {tls.ca}
ssl_options.certfile = {tls.cert}
ssl_options.keyfile = {tls.key}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
""")
    )
    broker.tls_url = f"amqps://guest:guest@127.0.0.1:{port}//"
    return broker


@pytest.fixture(scope="module")
def own_rabbitmq(rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    """The same broker as if it were a module's own, which its tests break, or leave messages in."""
    rabbitmq.wipe()
    yield rabbitmq
    rabbitmq.recover()
    rabbitmq.wipe()


@pytest.fixture(scope="module")
def redis_server(stack: Stack) -> Server:
    """A Redis of the module's own: what is in it, and who listens to it, is the module's alone."""
    return _start(stack.redis)


@pytest.fixture(scope="module")
def results(stack: Stack) -> Server:
    """Another one."""
    return _start(stack.redis)


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics()
    yield metrics
    metrics.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands wait for Redis for as long as a machine may stand still."""
    monkeypatch.setattr(pipeline, "PATIENCE", 60.0)  # to connect
    for owner in (pipeline.Pipeline, StateStore):
        monkeypatch.setitem(owner.__init__.__kwdefaults__, "patience", 60.0)


@pytest.fixture(scope="session")
def start() -> Callable[[Callable[[], S]], S]:
    """Start what a test needs for itself, as `start(stack.redis)`."""
    return _start


@pytest.fixture(scope="module")
def unmeasured() -> Iterator[None]:
    """Let what a module's tests start run at full speed: its coverage is not measured."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
            patch.delenv(name)
        yield


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Keep the garbage collector off, so that what a reference cycle keeps is found.

    `gc.get_objects` leaves out what there is before the test.
    """
    gc.disable()
    gc.freeze()
    yield
    gc.enable()


@pytest.fixture
def io_loop(request: pytest.FixtureRequest) -> Iterator[IOLoop]:
    """The loop of a test marked `gen_test`; pytest-tornado's own warns with today's Tornado."""
    with running(getattr(request, "param", "asyncio")) as io_loop:
        yield io_loop


@pytest.fixture
def serve(io_loop: IOLoop) -> Iterator[Start]:
    """Start what gives a gateway whose tasks run in memory."""
    with serving(io_loop) as start:
        yield start


def _start(method: Callable[[], S]) -> S:
    """Start a server; skip where its program is missing, but not when all tests have to run."""
    try:
        return method()
    except ProgramMissing as error:
        if os.environ.get("CI") or os.environ.get("REQUIRE_SERVERS"):
            raise
        pytest.skip(str(error))
