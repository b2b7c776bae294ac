"""The worker's loop: it reacts to signals, and raises its prefetch limit in steps."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest
from kombu import Connection
from kombu.asynchronous.hub import Hub
from kombu.common import QoS

from appserver.bootsteps import PromptEvents, PromptHub
from appserver.consumer import PromptConsumer

SECONDS = 60  # for which the loop polls where nothing wakes it


@pytest.fixture
def worker():
    """A worker's loop, and a signal whose handler says nothing to it."""
    worker = SimpleNamespace(hub=Hub(), steps=[])
    handler = signal.signal(signal.SIGUSR2, lambda *_: None)
    step = PromptHub(worker)
    step.create(worker)
    step.register_with_event_loop(worker, worker.hub)
    yield worker
    step.stop(worker)
    signal.signal(signal.SIGUSR2, handler)
    worker.hub.close()


def poll(worker) -> list[int]:
    """Poll once, as the loop does; run what is read, and return its descriptors."""
    events = worker.hub.poller.poll(SECONDS)
    for descriptor, _ in events:
        callback, arguments = worker.hub.readers[descriptor]
        callback(*arguments)
    return [descriptor for descriptor, _ in events]


def test_a_signal_wakes_the_loop_each_time(worker):
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR2)
        assert len(poll(worker)) == 1
    assert worker.hub.poller.poll(0) in ([], None)


def test_a_fork_s_signals_do_not(worker):
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert worker.hub.poller.poll(0) in ([], None)


def test_all_timers_that_are_due_are_called_at_once(worker):
    called = []
    for number in range(50):
        worker.hub.call_later(0, called.append, number)
    worker.hub.fire_timers()
    assert sorted(called) == list(range(50))


def test_a_worker_without_a_loop_has_nothing_to_wake():
    worker = SimpleNamespace(hub=None, steps=[])
    step = PromptHub(worker)

    step.create(worker)
    step.register_with_event_loop(worker, None)
    step.stop(worker)

    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture
def consumer(celery):
    """A consumer that connects, and what its connection is asked to drain."""
    app = celery(broker="amqp://h//")
    app.conf.broker_transport_options = {"confirm_publish": True, "max_retries": 3}
    return SimpleNamespace(app=app, hub=None, steps=[], ensure_connected=lambda found: found)


@pytest.mark.parametrize(("hub", "timeouts"), [(None, [0, 0]), ("kombu's", [0.1, None])])
def test_events_are_not_confirmed_and_all_other_messages_are(consumer, hub, timeouts, monkeypatch):
    drained = []
    drain = lambda self, timeout=None: drained.append(timeout)  # noqa: E731
    monkeypatch.setattr(Connection, "drain_events", drain)
    consumer.hub = hub
    PromptEvents(consumer).create(consumer)

    connection = consumer.connection_for_write(heartbeat=30)
    connection.drain_events(timeout=0.1)
    connection.drain_events()

    assert connection.transport_options == {"confirm_publish": False, "max_retries": 3}
    assert connection.heartbeat == 30
    assert consumer.app.connection_for_write().transport_options["confirm_publish"] is True
    # Only a loop without a hub reads it, and never waits.
    assert drained == timeouts


# The prefetch limit after a lost connection -------------------------------------------------------


@pytest.fixture
def told() -> list[int]:
    return []


@pytest.fixture
def limited(told: list[int]) -> PromptConsumer:
    """A consumer of four processes with a limit of 12, which a lost connection has reduced to 3."""
    limited = object.__new__(PromptConsumer)
    limited.qos = QoS(lambda prefetch_count: told.append(prefetch_count), 3)
    limited.qos.update()
    limited.pool, limited.prefetch_multiplier = SimpleNamespace(num_processes=4), 3
    limited.initial_prefetch_count = 3
    limited._maximum_prefetch_restored = False
    return limited


def test_the_end_of_a_task_tells_the_broker_nothing(limited, told):
    limited._restore_prefetch_count_after_connection_restart("promise")
    assert told == [3]
    # The loop compares these, and calls `update`.
    assert (limited.qos.prev, limited.qos.value) == (3, 6)
    limited.qos.update()
    assert told == [3, 6]


def test_it_is_raised_up_to_its_maximum(limited, told):
    for _ in range(5):
        limited._restore_prefetch_count_after_connection_restart()
        limited.qos.update()
    assert told == [3, 6, 9, 12]
    assert (limited.initial_prefetch_count, limited._maximum_prefetch_restored) == (12, True)
