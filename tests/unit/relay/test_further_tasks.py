"""What becomes of the further tasks of a delivery where the broker takes none."""

from __future__ import annotations

from time import monotonic

import pytest

from gateway.celery_message import Message, TaskIds
from gateway.errors import BrokerBlocked
from gateway.pending_task import PendingTask
from gateway.relay.further_tasks import FurtherTasks


class Blocked:
    """A strategy that takes the first message and refuses the others at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def publish(self, message: Message, deadline: float) -> PendingTask:
        self.asked.append(message.task_id)
        if len(self.asked) > 1:
            raise BrokerBlocked
        pending = PendingTask(message, deadline)
        pending.confirm()
        return pending


async def test_one_that_is_refused_at_once_refuses_the_delivery():
    strategy = Blocked()
    further = FurtherTasks("gateway:", strategy, TaskIds(), None)
    messages = [Message(name, "task", "queue", b"[]", {}) for name in ("a", "b", "c")]

    with pytest.raises(BrokerBlocked):
        await further.publish(messages, "", monotonic() + 60)

    assert strategy.asked == ["a", "b", "c"]  # each is tried, as the next try has to know
