"""The prefetch limit after a lost connection: raised in steps, and told by the worker's loop."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kombu.common import QoS

from appserver.worker import PromptConsumer


@pytest.fixture
def told() -> list[int]:
    return []


@pytest.fixture
def consumer(told: list[int]) -> PromptConsumer:
    """A consumer of four processes with a limit of 12, which a lost connection has reduced to 3."""
    consumer = object.__new__(PromptConsumer)
    consumer.qos = QoS(lambda prefetch_count: told.append(prefetch_count), 3)
    consumer.qos.update()
    consumer.pool, consumer.prefetch_multiplier = SimpleNamespace(num_processes=4), 3
    consumer.initial_prefetch_count = 3
    consumer._maximum_prefetch_restored = False
    return consumer


def test_the_end_of_a_task_tells_the_broker_nothing(consumer, told):
    consumer._restore_prefetch_count_after_connection_restart("promise")
    assert told == [3]
    # The loop compares these, and calls `update`.
    assert (consumer.qos.prev, consumer.qos.value) == (3, 6)
    consumer.qos.update()
    assert told == [3, 6]


def test_it_is_raised_up_to_its_maximum(consumer, told):
    for _ in range(5):
        consumer._restore_prefetch_count_after_connection_restart()
        consumer.qos.update()
    assert told == [3, 6, 9, 12]
    assert (consumer.initial_prefetch_count, consumer._maximum_prefetch_restored) == (12, True)
