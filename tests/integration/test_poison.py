"""A message that keeps losing its worker becomes a dead letter, and no message is ever dropped."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from appserver.poison import BEGUN_AGAIN
from gateway.stack.server import poll
from tests.faults.tasks import BEGUN
from tests.integration.losses import TIMEOUT, Servers, accept, ask, result
from tests.support.stack import StackError

RUNS = 1 + BEGUN_AGAIN


@pytest.fixture
def servers(stack, broker, results, tmp_path_factory):
    return Servers(stack, broker, results.url, tmp_path_factory.mktemp("poison"))


@pytest.fixture(scope="module")
def resident(stack, broker, results, tmp_path_factory):
    """The gateway of the tests that have one like others, on a queue that they share."""
    servers = Servers(stack, broker, results.url, tmp_path_factory.mktemp("resident"))
    return (servers.queue, servers.gateway())


@pytest.fixture
def gateway(servers, resident):
    """The same; its queue and the dead letters of that are empty before and after."""
    servers.queue, gateway = resident
    # It may still be connecting again after another test.
    assert poll(lambda: ask(gateway, "/readyz", admin=True)[0] == 200, TIMEOUT)
    yield gateway
    servers.clear()


def test_a_prefetched_message_runs_again_after_a_lost_connection(servers, gateway):
    worker = servers.worker()
    # Given a message that waits behind another one and will kill its process once,
    first = accept(gateway, "until=go", "A")
    assert poll((servers.directory / BEGUN).exists, TIMEOUT)
    second = accept(gateway, "die=once", "B")
    assert poll(lambda: servers.messages() == (0, 2), TIMEOUT)
    # when the broker sends both again,
    servers.cut(worker)
    (servers.directory / "go").touch()
    # then it runs again, as it would have without that.
    assert result(gateway, second) == (200, "B")
    assert result(gateway, first) == (200, "A")
    assert [one.attempt for one in servers.executions("B")] == [1, 2]
    assert poll(lambda: not servers.noted(), TIMEOUT)
    assert servers.dead_letters() == []


def test_poison_on_the_queue_celery_lies_among_the_dead_letters(servers):
    servers.queue = "celery"
    servers.worker(concurrency=2)
    gateway = servers.gateway()

    accepted = accept(gateway, "die=always", "accepted")
    waited_for = ask(gateway, "/wait?die=always", "waited")
    neighbour = accept(gateway, "", "neighbour")

    assert waited_for[0] == 502
    assert "WorkerLostError" in waited_for[1]
    status, problem = result(gateway, accepted)
    assert status == 502
    assert "WorkerLostError" in problem
    assert result(gateway, neighbour) == (200, "neighbour")
    assert poll(lambda: servers.messages() == (0, 0), TIMEOUT)
    letters = {body: properties for properties, body in servers.dead_letters()}
    assert sorted(letters) == ["accepted", "waited"]
    # Celery gives a task to another process of the pool if the first has ended before it was read
    # that the task had begun; to the count, both are one beginning.
    assert {len(servers.executions(name)) for name in letters} <= {RUNS, RUNS + 1}
    for properties in letters.values():
        assert properties.headers["task"] == "faults.run"
        assert properties.headers["id"] == properties.correlation_id
        assert properties.headers["delivery"]["route"]
        assert properties.headers["dead_letter"]["reason"] == "worker-lost"
        assert properties.content_type == "application/json"
        assert properties.delivery_mode == 2
        assert properties.expiration is None
    assert not servers.noted()


@pytest.mark.parametrize("pool", ["solo", "threads", "gevent"])
def test_poison_that_takes_the_whole_worker_along(servers, gateway, pool):
    worker = servers.worker(pool)
    poison = accept(gateway, "die=always", "poison")
    neighbours = {f"neighbour-{n}": accept(gateway, "", f"neighbour-{n}") for n in range(5)}

    while not servers.executions("neighbour-4"):
        gone = poll(lambda: not worker.alive() or servers.executions("neighbour-4"), TIMEOUT)
        assert gone
        assert len(servers.executions("poison")) <= RUNS
        if not worker.alive():
            with contextlib.suppress(StackError):  # it may be gone again before it is ready
                worker.restart()

    assert result(gateway, poison)[0] == 502
    assert [body for _, body in servers.dead_letters()] == ["poison"]
    assert len(servers.executions("poison")) == RUNS
    for name, location in neighbours.items():
        assert result(gateway, location) == (200, name)
        assert len(servers.executions(name)) == 1


def test_a_task_that_still_runs_is_not_taken_for_lost(servers, gateway):
    servers.forget()
    worker = servers.worker(concurrency=6)
    location = accept(gateway, "until=go", "long")
    assert poll((servers.directory / BEGUN).exists, TIMEOUT)

    # Each time it begins once more, beside those that have begun before.
    before: set[bytes] = set()
    for _ in range(RUNS):
        servers.cut(worker)
        # Nothing is cut while it begins: then it would count as lost.
        assert poll(lambda old=before: _only(servers.noted()) - old, TIMEOUT)
        before = _only(servers.noted())
    (servers.directory / "go").touch()

    assert result(gateway, location) == (200, "long")
    assert poll(lambda: not servers.noted(), TIMEOUT)
    assert poll(lambda: len(servers.executions("long")) == 1 + RUNS, TIMEOUT)
    assert servers.dead_letters() == []


def _only(noted: dict[bytes, set[bytes]]) -> set[bytes]:
    """Return the beginning of the only task, once there is one."""
    (beginnings,) = noted.values() or [set()]
    return beginnings if len(beginnings) == 1 else set()


def test_without_a_store_a_worker_counts_its_own_losses(servers):
    servers.worker(results="")
    gateway = servers.gateway("--strategy=pika")

    status, problem, _ = ask(gateway, "/wait?die=always", "poison")

    assert status == 502
    assert "WorkerLostError" in problem
    assert len(servers.executions("poison")) == RUNS
    assert [body for _, body in servers.dead_letters()] == ["poison"]


def test_while_redis_is_away_a_message_is_run(servers, stack, start):
    store = start(stack.redis)
    servers.results = store.url
    gateway = servers.gateway()
    location = accept(gateway, "die=once", "B")

    store.freeze()
    worker = servers.worker()

    assert poll(lambda: len(servers.executions("B")) == 2, TIMEOUT)
    assert "Beginnings of tasks are not written for 10 s" in worker.output()
    store.thaw()
    assert result(gateway, location) == (200, "B")


def test_what_cannot_become_a_dead_letter_stays_in_its_queue(servers, gateway, broker):
    location = accept(gateway, "die=always", "poison")

    with broker.alarm():
        worker = servers.worker()
        assert poll(
            lambda: worker.output().count("cannot be published as a dead letter") > 1, TIMEOUT
        )
        assert sum(servers.messages()) == 1
        connections = broker.ctl("list_connections", "-q", "state")
        assert "blocked" in connections.split()

    assert result(gateway, location)[0] == 502
    # One that was published in the alarm is in the broker's hands, too.
    assert {body for _, body in servers.dead_letters()} == {"poison"}
    assert len(servers.executions("poison")) == RUNS
    assert poll(lambda: servers.messages() == (0, 0), TIMEOUT)


def test_a_worker_that_may_not_declare_dead_letters_works(servers, gateway, broker):
    broker.ctl("add_user", "limited", "limited")
    broker.ctl("set_permissions", "limited", r"^(?!gateway\.dead$).*", ".*", ".*")

    worker = servers.worker(url=broker.url.replace("guest:guest", "limited:limited"))

    assert ask(gateway, "/wait", "hello")[:2] == (200, "hello")
    assert worker.output().count("exchange and queue 'gateway.dead' cannot be declared") == 1


def test_a_worker_starts_while_no_quorum_queue_can_be_declared(stack, results):
    node, other = stack.rabbitmq_cluster(2)
    other.kill()

    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(stack.worker, node.url, results.url)
        # RabbitMQ 4.3 declares nothing at all without a majority of its nodes.
        nothing = node.ctl("eval", "catch rabbit_khepri:is_enabled().").strip() == "true"
        if nothing:
            other.restart()
        worker = starting.result()

    warnings = worker.output().count("exchange and queue 'gateway.dead' cannot be declared")
    assert warnings == 1 or nothing
