"""Which fair queues a worker consumes, and what is said where it cannot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from celery.signals import celeryd_init
from celery.worker.worker import WorkController
from kombu import Queue

import appserver
from appserver.fair import FairNames, FairPrefetch, FairQueue, fair_names

ORDERS = fair_names("orders", 4)


@pytest.fixture
def shop(celery):
    """Make apps as projects make theirs."""

    def make(**options):
        app = celery("shop", broker="memory://", backend="disabled://")
        appserver.setup(app, **options)
        return app

    return make


def consumed(app: Celery, queues: str | None = None, exclude: str | None = None) -> list[str]:
    """Return what a worker with these options ``-Q`` and ``-X`` consumes."""
    worker = SimpleNamespace(app=app, hostname="worker@host")
    celeryd_init.send(sender=worker.hostname, instance=worker, conf=app.conf)
    WorkController.setup_queues(worker, queues, exclude)
    FairNames(worker).create(worker)
    return sorted(app.amqp.queues.consume_from)


@pytest.mark.parametrize(
    ("fair", "environment", "options", "found"),
    [
        ({"orders": 4}, "", {}, ["celery", *ORDERS]),
        # The queue of that name is consumed, too: it may have messages from before.
        ({"orders": 4, "mail": 4}, "", {"queues": "orders"}, ["orders", *ORDERS]),
        ({"orders": 4}, "", {"queues": "celery"}, ["celery"]),
        ({"orders": 4}, "", {"exclude": "celery"}, ORDERS),
        ({}, "", {}, ["celery"]),
        ({}, " orders:4 ,", {}, ["celery", *ORDERS]),
        # The app takes precedence over the environment.
        ({"orders": 4}, "mail:4", {}, ["celery", *ORDERS]),
    ],
)
def test_a_worker_consumes_the_fair_queues_of_its_queues(
    shop, monkeypatch, fair, environment, options, found
):
    monkeypatch.setenv("GATEWAY_FAIR_QUEUES", environment)
    assert consumed(shop(**{"fair": fair} if fair else {}), **options) == sorted(found)


def test_queues_that_a_route_lists_are_named_by_themselves(shop, monkeypatch):
    monkeypatch.setenv("GATEWAY_FAIR_QUEUES", "a,b")
    app = shop()
    assert consumed(app) == ["a", "b", "celery"]
    assert type(app.amqp.queues["a"]).__name__ == "FairQueue"


def test_quorum_queues_are_declared_as_named_ones_are(shop, monkeypatch):
    monkeypatch.setenv("GATEWAY_FAIR_TYPE", "quorum")
    app = shop(fair={"orders": 4})
    consumed(app)
    arguments = app.amqp.queues["orders.fair.0"].queue_arguments
    assert arguments["x-queue-type"] == "quorum"
    assert arguments["x-dead-letter-exchange"] == "gateway.dead"


@pytest.mark.parametrize("number", [3, 129, "16", True])
def test_the_app_gets_the_same_refusal(shop, number):
    with pytest.raises(ImproperlyConfigured, match="4 to 128"):
        shop(fair={"orders": number})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        *(("QUEUES", text, "fair_queues of its route")
          for text in ("orders:", ":4", "orders:x", "orders:3", "orders:129")),
        ("TYPE", "stream", "classic or quorum"),
        ("PREFETCH", "0", "has to be"),
    ],
)  # fmt: skip
def test_a_wrong_variable_ends_the_worker_without_a_traceback(shop, monkeypatch, name, value, told):
    monkeypatch.setenv(f"GATEWAY_FAIR_{name}", value)
    worker = SimpleNamespace(app=shop())
    with pytest.raises(SystemExit, match=f"^appserver: .*{told}"):
        FairNames(worker).create(worker)


class Channel:
    """Records what a consumer is started with."""

    def __init__(self):
        self.calls = []

    def basic_qos(self, size, count, for_all):
        self.calls.append(("qos", count, for_all))

    def basic_consume(self, queue, **_options):
        self.calls.append(("consume", queue))


def prefetched(processes: int, driver: str = "amqp") -> list[tuple]:
    """Return the calls with which a worker with so many processes begins to consume."""
    channel = Channel()
    queues = [FairQueue("fair.0"), Queue("celery"), FairQueue("fair.1")]
    for queue in queues:
        queue._channel, queue._is_bound = channel, True
    transport = SimpleNamespace(driver_type=driver)
    consumer = SimpleNamespace(
        task_consumer=SimpleNamespace(queues=queues, channel=channel),
        connection=SimpleNamespace(transport=transport, qos_semantics_matches_spec=False),
        pool=SimpleNamespace(num_processes=processes),
        initial_prefetch_count=64,
    )
    FairPrefetch(consumer).start(consumer)
    for queue in queues:
        queue.consume()
    return channel.calls


def test_each_fair_queue_has_a_limit_of_its_own():
    assert prefetched(processes=16) == [
        ("qos", 0, True), ("qos", 64, False),
        ("qos", 2, False), ("consume", "fair.0"), ("qos", 64, False),
        ("consume", "celery"),
        ("qos", 2, False), ("consume", "fair.1"), ("qos", 64, False),
    ]  # fmt: skip


@pytest.mark.parametrize(("limit", "number"), [(None, 1), ("1", 1), ("1000", 1000)])
def test_a_small_pool_gets_one_message_of_each_queue_or_what_is_set(monkeypatch, limit, number):
    if limit:
        monkeypatch.setenv("GATEWAY_FAIR_PREFETCH", limit)
    assert ("qos", number, False) in prefetched(processes=1)


@pytest.mark.parametrize("text", ["0", "-1", "x", "1001"])
def test_a_limit_that_cannot_be_is_refused(monkeypatch, text):
    monkeypatch.setenv("GATEWAY_FAIR_PREFETCH", text)
    with pytest.raises(ImproperlyConfigured, match="1 to 1000"):
        prefetched(processes=1)


def test_another_broker_has_no_such_limits():
    assert prefetched(16, "redis") == [("consume", n) for n in ("fair.0", "celery", "fair.1")]


def test_the_steps_are_added_once(shop):
    app = shop()
    appserver.setup(app, fair={"orders": 4})
    assert FairNames in app.steps["worker"] and FairPrefetch in app.steps["consumer"]
    assert consumed(app) == ["celery"]
