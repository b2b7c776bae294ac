"""Publish the further tasks of a delivery (`also`), before the route's own.

Which of them the broker has taken is written to Redis, beside the claims.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Collection, Sequence
from typing import Any

from gateway.celery_message import Message, TaskIds, derived_id
from gateway.clock import monotonic
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.delivery import Delivery, identity_digest
from gateway.errors import RequestError, StateUnavailable, StoreError
from gateway.stores.state_store import StateStore
from gateway.strategies.base import Strategy

log = logging.getLogger(__name__)


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

    def messages(self, route: Route, delivery: Delivery, identity: str) -> list[Message]:
        """Return the messages; raises `BadRequest` where a value is missing."""
        made = []
        for i, task in enumerate(route.also):
            # A task that was changed meanwhile is another one: it counts as not published.
            same = identity, str(i), task.written
            task_id = derived_id(self._prefix, *same) if identity else self._ids.new()
            made.append(task.message(delivery, task_id, store=True, persistent=True, expires=None))
        return made

    async def publish(
        self, messages: Sequence[Message], identity: str, deadline: float, looks: bool = True
    ) -> None:
        """Publish what the broker has not taken yet; return when all messages are confirmed.

        `deadline` is in monotonic seconds. Not `looks`: publish all, as if nothing were known of
        earlier tries. Raises the `RequestError` of the first message that was refused.
        """
        taken = self._taken if identity and looks else None
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


# In one step, so that no key is left without an expiry. Arguments: life (ms), task ids
_ADD = """
redis.call('SADD', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""


class TakenTasks:
    """Remembers the task ids for as long as the gateway recognizes a delivery's later tries."""

    def __init__(self, config: Config, redis: StateStore):
        self._redis = redis
        self._prefix = config.prefix
        self._window = int(config.idempotency_window * 1000)
        self._required = config.claims_required

    async def of(self, identity: str, deadline: float) -> set[str]:
        """Return the ids of the tasks that earlier tries published, and the broker confirmed.

        If Redis fails, raises `StateUnavailable`. With ``without_state = "relay"`` none is known
        then, and also if Redis has not answered after half of the time until `deadline` (monotonic
        seconds): the other half is left for publishing.
        """
        timeout = None if self._required else (deadline - monotonic()) / 2
        try:
            async with asyncio.timeout(timeout):
                found = await self._redis.run("SMEMBERS", self._key(identity))
        except (StoreError, TimeoutError) as exc:
            if self._required:
                raise StateUnavailable from exc
            reason = str(exc) or "no answer in time"
            log.warning("it is not known which further tasks were taken: %s", reason)
            return set()
        return {each.decode() for each in found}

    def add(self, identity: str, task_ids: Collection[str]) -> Future[Any]:
        """Write that the broker has taken these tasks; the future ends when Redis has them."""
        key = self._key(identity)
        reply = self._redis.run("EVAL", _ADD, 1, key, self._window, *task_ids)
        reply.add_done_callback(_written)
        return reply

    def _key(self, identity: str) -> bytes:
        return self._prefix.encode() + b"also:" + identity_digest(identity)


def _written(reply: Future[Any]) -> None:
    # The next try then publishes the tasks again, under the same ids.
    if not reply.cancelled() and (exc := reply.exception()) is not None:
        log.warning("it could not be written which further tasks were taken: %s", exc)
