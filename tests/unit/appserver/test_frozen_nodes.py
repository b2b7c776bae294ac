"""A broker that does not answer is asked, and left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import amqp
import pytest

from appserver.frozen_nodes import (
    UNANSWERED,
    LeaveFrozenNode,
    Silence,
    begin_elsewhere,
    node_of,
)

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
    entries: list[object] = []
    timer = SimpleNamespace(
        call_repeatedly=lambda *call: entries.append(call) or call, cancel=entries.remove
    )
    consumer = SimpleNamespace(
        hub=hub,
        pool=SimpleNamespace(is_green=green),
        connection=SimpleNamespace(connection=connection),
        task_consumer=SimpleNamespace(channel=None),
        timer=timer,
        steps=[],
    )
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
