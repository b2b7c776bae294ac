"""Nodes of a broker that do not answer are left, and queues of nodes that are down left out."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from kombu import Queue

from appserver import refused_queues
from appserver.frozen_nodes import UNANSWERED, LeaveFrozenNode, Silence, begin_elsewhere, node_of
from appserver.refused_queues import PAUSE, RefusedQueues, leave_out, look

NODES = [("a", 1), ("b", 2), ("c", 3)]


class Broker:
    """The connection, its channel and its socket; notes what is asked, and answers or not."""

    def __init__(self) -> None:
        self.bytes_recv, self.asked, self.ended, self.answers = 0, 0, False, True
        self.transport = SimpleNamespace(sock=self)

    def send_method(self, *_: object) -> None:
        self.asked += 1
        self.bytes_recv += self.answers

    def shutdown(self, _how: int) -> None:
        self.ended = True


def timing() -> tuple[SimpleNamespace, list[object]]:
    """Return a timer, and its entries."""
    entries: list[object] = []
    timer = SimpleNamespace(
        call_repeatedly=lambda *call: entries.append(call) or call, cancel=entries.remove
    )
    return timer, entries


def test_a_silent_broker_is_asked_until_it_does_not_answer():
    broker = Broker()
    silence = Silence(broker, broker)

    for _ in range(20):
        silence.look()
    assert (broker.asked, broker.ended) == (10, False)
    broker.answers = False
    for _ in range(UNANSWERED + 1):
        silence.look()
        assert not broker.ended
    silence.look()
    assert (broker.asked, broker.ended) == (11, True)


def test_one_that_sends_by_itself_is_not_asked():
    broker = Broker()
    silence = Silence(broker, broker)
    for _ in range(20):
        broker.bytes_recv += 1
        silence.look()
    assert not broker.asked


def test_one_that_has_blocked_the_connection_is_not_left():
    broker: Any = Broker()
    silence = Silence(broker, broker)
    broker.answers = False
    silence.look()
    broker.on_blocked("low on memory")
    for _ in range(20):
        silence.look()
    assert (broker.asked, broker.ended) == (0, False)
    broker.on_unblocked()
    for _ in range(UNANSWERED + 1):
        silence.look()
    assert (broker.asked, broker.ended) == (1, True)


@pytest.mark.parametrize(
    ("connection", "hub", "green", "looks"),
    [
        (object.__new__(amqp.Connection), "kombu's", False, True),
        (object.__new__(amqp.Connection), None, True, True),
        # Another thread would use the connection at the same time.
        (object.__new__(amqp.Connection), None, False, False),
        (SimpleNamespace(), "kombu's", False, False),  # Redis
    ],
)
def test_it_looks_where_the_loop_itself_has_the_timer(connection, hub, green, looks):
    timer, entries = timing()
    consumer = SimpleNamespace(
        hub=hub, pool=SimpleNamespace(is_green=green), timer=timer, steps=[],
        connection=SimpleNamespace(connection=connection),
        task_consumer=SimpleNamespace(channel=None),
    )  # fmt: skip
    step = LeaveFrozenNode(consumer)
    step.start(consumer)
    assert bool(entries) is looks
    step.stop(consumer)
    step.stop(consumer)
    assert not entries


@pytest.mark.parametrize(
    ("nodes", "left", "first"),
    [
        (NODES, None, ("a", 1)),
        (NODES, ("a", 1), ("b", 2)),
        (NODES, ("b", 2), ("a", 1)),
        (NODES, ("d", 4), ("a", 1)),
        (NODES[:1], ("a", 1), ("a", 1)),  # the only one is tried all the same
    ],
)
def test_the_node_that_was_left_is_not_the_first(celery, nodes, left, first):
    urls = ";".join(f"amqp://guest:guest@{host}:{port}//" for host, port in nodes)
    link = celery(broker=urls).connection_for_read()
    begin_elsewhere(link, left)
    assert node_of(link) == first


# Queues that the broker refuses -------------------------------------------------------------------


AWAY = "NOT_FOUND - home node 'rabbit@a' of durable queue '{}' in vhost '/' is down or inaccessible"
DIFFERS = (
    "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue '{}' in vhost '/':"
    " received the value 'gateway.dead' of type 'longstr' but current is none"
)
INVALID = (
    "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue '{}' in vhost '/' of queue type"
    " rabbit_quorum_queue"
)


@pytest.fixture
def consumer(celery):
    app, added = celery(broker="amqp://h//"), []
    app.conf.task_queues = [Queue("celery"), Queue("orders")]
    return SimpleNamespace(app=app, refused=frozenset(), added=added, add_task_queue=added.append)


@pytest.mark.parametrize("error", [AWAY, DIFFERS, INVALID])
def test_only_the_queue_that_is_refused_is_left_out(consumer, error):
    leave_out(consumer, "NOT_FOUND - no queue 'orders' in vhost '/'")
    leave_out(consumer, error.format("another"))
    assert set(consumer.app.amqp.queues.consume_from) == {"celery", "orders"}
    leave_out(consumer, error.format("celery"))
    assert set(consumer.app.amqp.queues.consume_from) == {"orders"}
    assert consumer.refused == {"celery"}
    assert {*consumer.app.amqp.queues} == {"celery", "orders"}


def test_it_is_consumed_again_when_the_broker_takes_it(consumer, monkeypatch):
    missing = {"celery"}

    class Channel:
        def queue_declare(self, queue: str, passive: bool, **_: object) -> object:
            assert not passive
            if queue in missing:
                raise amqp.NotFound(AWAY.format(queue))
            return SimpleNamespace(queue=queue)

        def __getattr__(self, name: str) -> object:  # of exchanges and bindings
            return lambda *_args, **_options: None

    connection = SimpleNamespace(channel=lambda: nullcontext(Channel()))
    monkeypatch.setattr(refused_queues, "reply_connection", lambda _app: connection)
    consumer.refused = frozenset({"celery", "orders"})
    look(consumer)
    assert (consumer.refused, consumer.added) == ({"celery"}, ["orders"])
    missing.clear()
    consumer.app.amqp.queues.deselect("celery")
    look(consumer)
    assert (consumer.refused, consumer.added) == (set(), ["orders", "celery"])
    # On the next connection as well.
    assert {"celery", "orders"} <= set(consumer.app.amqp.queues.consume_from)


@pytest.mark.parametrize("refused", [frozenset(), frozenset({"celery"})])
def test_it_is_looked_for_only_where_one_is_refused(refused):
    timer, entries = timing()
    consumer = SimpleNamespace(refused=refused, timer=timer, steps=[])
    step = RefusedQueues(consumer)
    step.start(consumer)
    assert entries == ([(PAUSE, look, (consumer,))] if refused else [])
    step.stop(consumer)
    step.stop(consumer)
    assert entries == []
