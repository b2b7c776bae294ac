"""Which of a publisher's two queues is the shorter one."""

from __future__ import annotations

import pytest

from gateway.celery_message import Message
from gateway.outcome import SUCCESS, Outcome
from gateway.pending_task import PendingTask
from gateway.relay.fairness import Fairness

PAIR = ("a", "b")


@pytest.fixture
def fairness() -> Fairness:
    return Fairness((), None)


def pending(queue: str, on_release=None) -> PendingTask:
    return PendingTask(Message("id", "task", queue, b"", {}), 0.0, on_release)


def test_queues_of_the_same_length_take_turns(fairness):
    assert [fairness.shorter(PAIR) for _ in range(6)].count("a") == 3


def test_the_shorter_queue_gets_the_message(fairness):
    fairness.lengths["a"] = 5
    assert [fairness.shorter(PAIR) for _ in range(5)] == ["b"] * 5
    assert {fairness.shorter(PAIR), fairness.shorter(PAIR)} == {"a", "b"}


def test_one_publishers_queues_say_nothing_of_others(fairness):
    for _ in range(10):
        fairness.shorter(("a", "c"))
    assert fairness.shorter(PAIR) == "b"


def test_messages_that_workers_hold_count_until_they_are_answered(fairness):
    held = [pending("a") for _ in range(3)]
    for each in held:
        fairness.follow(each)
    assert [fairness.shorter(PAIR) for _ in range(3)] == ["b"] * 3
    held[0].settle(Outcome(SUCCESS))
    held[1].abandon()
    held[1].abandon()
    held[2].settle(None)  # has not ended
    assert fairness.shorter(PAIR) == "a"


def test_a_message_that_has_ended_at_once_is_not_counted(fairness):
    ended = pending("a")
    ended.settle(Outcome(SUCCESS))
    fairness.follow(ended)
    assert {fairness.shorter(PAIR), fairness.shorter(PAIR)} == {"a", "b"}


def test_what_the_strategy_keeps_is_freed_as_before(fairness):
    freed = []
    task = pending("a", freed.append)
    fairness.follow(task)
    task.abandon()
    assert freed == [task]
