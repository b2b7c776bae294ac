"""Publish the further tasks of a delivery (`also`), before the route's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.celery_message import Message, TaskIds, derived_id
from gateway.claims.taken_tasks import TakenTasks
from gateway.config.route import Route
from gateway.delivery import Delivery
from gateway.errors import RequestError
from gateway.strategies.base import Strategy


class FurtherTasks:
    """Makes and publishes the messages of further tasks.

    Each try of a delivery with an identity has the same task ids for them, so that the next try
    publishes only those that the broker has not taken; `taken` remembers these.
    """

    def __init__(self, prefix: str, strategy: Strategy, ids: TaskIds, taken: TakenTasks | None):
        self._prefix = prefix
        self._strategy = strategy
        self._ids = ids
        self._taken = taken

    def task_id(self, identity: str, *parts: str) -> str:
        """Return the task id that all tries of the delivery with `identity` have."""
        return derived_id(self._prefix, identity, *parts)

    def messages(self, route: Route, delivery: Delivery, identity: str) -> list[Message]:
        """Return the messages; raises `BadRequest` where a value is missing."""
        return [
            task.message(
                delivery,
                # A task that was changed meanwhile is another one: it counts as not published.
                self.task_id(identity, str(i), task.written) if identity else self._ids.new(),
                store=True,
                persistent=True,
                expires=None,
            )
            for i, task in enumerate(route.also)
        ]

    async def publish(
        self, messages: Sequence[Message], identity: str, deadline: float, recorded: bool = True
    ) -> None:
        """Publish what the broker has not taken yet; return when all messages are confirmed.

        `deadline` is in monotonic seconds. Not `recorded`: publish all, as nothing is known of
        earlier tries. Raises the `RequestError` of the first message that was refused.
        """
        taken = self._taken if identity and recorded else None
        confirmed_before = await taken.of(identity, deadline) if taken is not None else set()
        sent = [message for message in messages if message.task_id not in confirmed_before]
        errors = await asyncio.gather(*(self._publish(each, deadline) for each in sent))
        confirmed = [each.task_id for each, error in zip(sent, errors, strict=True) if not error]
        error = next((each for each in errors if each is not None), None)
        if taken is not None and confirmed:
            written = taken.add(identity, confirmed)
            if error is not None:  # the sender's next try may come as soon as it has its answer
                await asyncio.wait((written,))
        if error is not None:
            raise error

    async def _publish(self, message: Message, deadline: float) -> RequestError | None:
        try:
            pending = self._strategy.publish(message, deadline)
        except RequestError as error:
            return error
        return await pending.until_confirmed()
