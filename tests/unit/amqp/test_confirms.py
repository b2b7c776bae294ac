"""What acks, nacks, returns, time and loss make of messages that wait for their confirm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from types import SimpleNamespace

import pytest

from gateway.amqp.publishing_channel import Confirms
from gateway.celery_message import Message
from gateway.errors import BrokerUnavailable, NotConfirmed, Rejected, Unroutable
from gateway.metric_table import PUBLISHED
from gateway.pending_task import PendingTask
from tests.support.requests import counted


@pytest.fixture
def rejecting() -> list[str]:
    """The queues that have rejected a message and confirmed none yet."""
    return []


@pytest.fixture
def confirms(metrics, rejecting) -> Confirms:
    return Confirms(metrics, rejecting.append)


def publish(confirms: Confirms, count: int) -> list[PendingTask]:
    """Publish messages one second after the other; their tags are 1, 2, ..."""
    messages = []
    for n in range(1, count + 1):
        pending = PendingTask(Message(f"id-{n}", "task", "queue", b"", {}), deadline=100.0)
        pending.sent = float(n)
        confirms.add(pending)
        messages.append(pending)
    return messages


def give_back(confirms: Confirms, task_id: str, delivery_id: str = "") -> None:
    """Return a message; the moment of that is when it is called."""
    method = SimpleNamespace(reply_text="NO_ROUTE", routing_key="queue")
    headers = {"delivery": {"id": delivery_id} if delivery_id else {}}
    properties = SimpleNamespace(correlation_id=task_id, headers=headers)
    confirms.on_return(None, method, properties, b"")


def try_again(confirms: Confirms, task_id: str, delivery_id: str) -> PendingTask:
    """Publish under a task id for another delivery, as a sender's next try does."""
    pending = PendingTask(
        Message(task_id, "task", "queue", b"", {"id": delivery_id}), deadline=100.0
    )
    pending.sent = monotonic()
    confirms.add(pending)
    return pending


def confirmed(messages: list[PendingTask]) -> list[int]:
    return [n for n, pending in enumerate(messages, 1) if pending.confirmed]


def errors(messages: list[PendingTask]) -> dict[int, type]:
    return {n: type(p.error) for n, p in enumerate(messages, 1) if p.error is not None}


Step = Callable[[Confirms], None]


def ack(tag: int, multiple: bool = False, acked: bool = True) -> Step:
    return lambda confirms: confirms.confirm(tag, multiple=multiple, acked=acked)


def ack_all(tag: int, acked: bool = True) -> Step:
    return ack(tag, multiple=True, acked=acked)


RETURN = partial(give_back, task_id="id-2")
GIVE_UP = partial(Confirms.give_up, sent_before=2.0)
LOSE = partial(Confirms.fail, error=BrokerUnavailable())


@pytest.mark.parametrize(
    ("number", "steps", "taken", "failed"),
    [
        (3, [ack(2)], [2], {}),
        (3, [ack(2), ack(3), ack(1)], [1, 2, 3], {}),
        (6, [ack(2), ack_all(4)], [1, 2, 3, 4], {}),
        # The third is late, and for nobody.
        (6, [ack(2), ack_all(4), ack_all(3), ack_all(6)], [1, 2, 3, 4, 5, 6], {}),
        (3, [ack_all(2, acked=False)], [], {1: Rejected, 2: Rejected}),
        (3, [RETURN, ack_all(3)], [1, 3], {2: Unroutable}),
        (3, [GIVE_UP], [], {1: NotConfirmed, 2: NotConfirmed}),
        (3, [GIVE_UP, ack(1), ack_all(3)], [3], {1: NotConfirmed, 2: NotConfirmed}),
        (2, [ack(1), LOSE], [1], {2: BrokerUnavailable}),
        # Tags that were never given confirm no more than there is.
        (1, [ack_all(0)], [], {}),
        *((1, [ack_all(tag)], [1], {}) for tag in (2, 2**63)),
        *((1, [ack_all(tag), ack(1)], [1], {}) for tag in (0, 2, 2**63)),
    ],
)
def test_what_becomes_of_messages(confirms, metrics, number, steps, taken, failed):
    messages = publish(confirms, number)
    for step in steps:
        step(confirms)
    assert (confirmed(messages), errors(messages)) == (taken, failed)
    assert bool(confirms) == (len(taken) + len(failed) < number)
    assert counted(metrics, PUBLISHED, error_type="") == len(taken)
    rejected = [*failed.values()].count(Rejected)
    assert counted(metrics, PUBLISHED, error_type="rejected") == rejected


def test_an_ack_of_several_looks_only_at_what_waits(confirms):
    looked_at = []

    class Watched(dict):
        def pop(self, tag, *default):
            looked_at.append(tag)
            return super().pop(tag, *default)

    confirms._pending = Watched()
    messages = publish(confirms, 5)
    for tag in (1, 2, 4):
        confirms.confirm(tag, multiple=False, acked=True)
    looked_at.clear()

    confirms.confirm(5, multiple=True, acked=True)

    assert looked_at == [3, 5]
    assert confirmed(messages) == [1, 2, 3, 4, 5]


def test_a_queue_that_has_taken_nothing_yet_is_told(confirms, rejecting):
    publish(confirms, 3)
    confirms.confirm(1, multiple=False, acked=False)
    assert rejecting == ["queue"]
    confirms.confirm(2, multiple=False, acked=True)
    confirms.confirm(3, multiple=False, acked=False)
    assert rejecting == ["queue"]


def test_a_late_return_is_not_that_of_a_later_try_under_the_same_task_id(confirms):
    # Given a message that was given up, and a later one of the same task,
    first = try_again(confirms, "id", "first")
    confirms.give_up(sent_before=monotonic())
    assert isinstance(first.error, NotConfirmed)
    second = try_again(confirms, "id", "second")
    # when return and ack of the first are late,
    give_back(confirms, "id", "first")
    confirms.confirm(1, multiple=False, acked=True)
    # then they do not concern the second.
    assert not second.confirmed and not second.ended
    confirms.confirm(2, multiple=False, acked=True)
    assert second.confirmed


def test_each_of_two_tries_under_one_task_id_has_its_own_return(confirms):
    first, second = (try_again(confirms, "id", name) for name in ("first", "second"))
    give_back(confirms, "id", "second")
    confirms.confirm(2, multiple=True, acked=True)
    assert first.confirmed
    assert isinstance(second.error, Unroutable)


def test_returns_that_nobody_waits_for_any_more_are_forgotten(confirms):
    try_again(confirms, "id", "before")
    give_back(confirms, "id", "before")
    confirms.give_up(sent_before=monotonic())
    for n in range(100):
        try_again(confirms, "id", f"late-{n}")
    confirms.give_up(sent_before=monotonic())
    for n in range(100):
        give_back(confirms, "id", f"late-{n}")
    assert confirms  # whoever sweeps has to look once more

    confirms.give_up(sent_before=monotonic())

    assert not confirms


def test_a_return_is_kept_as_long_as_its_message(confirms):
    pending = try_again(confirms, "id", "mine")
    give_back(confirms, "id", "mine")
    confirms.give_up(sent_before=pending.sent - 1)
    confirms.confirm(1, multiple=False, acked=True)
    assert isinstance(pending.error, Unroutable)
    assert not confirms


def test_what_nobody_waits_for_has_a_tag_too(confirms):
    confirms.skip()
    messages = publish(confirms, 1)
    confirms.confirm(1, multiple=False, acked=True)
    assert confirmed(messages) == []
    confirms.confirm(2, multiple=False, acked=True)
    assert confirmed(messages) == [1]
