"""Test where results go, by running a task that has no effect.

It is one of Celery's own tasks, which every app has, and is sent once for each consumer. It is sent
only to empty queues, so that it does not wait behind other messages, nor removes one from a full
queue. (An expired message would not run at all, but ends a worker that cannot store its result.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

from pika import BasicProperties
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import NoPermissionError, RedisError

from gateway.amqp import broker
from gateway.amqp import workers as remote
from gateway.amqp.reply_channel import ReplyChannel
from gateway.amqp.workers import Answers
from gateway.celery_message import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    RESULT_KEY,
    Message,
    TaskIds,
    decode_result,
    encode_body,
)
from gateway.cli.checks.finding import counted
from gateway.cli.checks.queues import Seen
from gateway.config.settings import Config
from gateway.outcome import SUCCESS
from gateway.stores import result_store

TASK = "celery.accumulate"  # returns its arguments
LEAST = 1.5  # seconds that a trial needs
_MOST = 100  # messages for one queue
#: Seconds before the deadline at which stored results are read, and workers are asked for tasks.
_READING, _ASKING = 0.8, 0.6


def ready(
    seen: Mapping[str, Seen], answers: Answers, others: Collection[str]
) -> tuple[dict[str, int], str]:
    """Return the number of messages for each queue, and why none may be sent to some other.

    `others` are workers that may store in another Redis than the gateway's. A worker that runs
    tasks in its main process ends if its Redis refuses the result, which the gateway's does not.
    """
    fragile = {name for name in others if answers.workers[name].solo}
    chosen, why = {}, "" if seen else "there is no queue"
    for queue, it in seen.items():
        if not it.consumers:
            why = f"no worker consumes {queue}"
        elif it.messages:
            why = f"{counted(it.messages, 'message')} waiting on {queue}"
        elif len(answers.consuming(queue)) != it.consumers:
            why = f"not all consumers of {queue} are workers that answer"
        elif fragile & answers.consuming(queue):
            why = f"workers of the pool `solo` on {queue} name another Redis"
        else:
            chosen[queue] = min(it.consumers, _MOST)
    return chosen, why


class Trial:
    """Sends the messages, and collects their results by task id.

    `reads`: whether stored results are expected; `replies_expected`: whether replies over AMQP are.
    """

    def __init__(self, config: Config, channel: ReplyChannel, reads: bool, replies_expected: bool):
        self._config, self._channel = config, channel
        self._reads, self._replies_expected = reads, replies_expected
        self._ids = TaskIds()
        self.sent: set[str] = set()
        self.replied: set[str] = set()
        #: The ids of tasks whose results are stored where the gateway reads.
        self.stored: set[str] = set()
        #: The key prefixes of results that were published, in any database.
        self._prefixes: dict[str, str] = {}
        #: Are workers too busy to have run all of them?
        self.busy = False
        #: Why results could not be read; empty: they could.
        self.unreadable = ""
        #: Why a result that is there is none that the gateway can read; empty: it can.
        self.strange = ""

    @property
    def misplaced(self) -> set[str]:
        """The prefixes of results that are in the gateway's Redis, but not where it reads."""
        return {self._prefixes[each] for each in self.sent - self.stored if each in self._prefixes}

    async def run(self, numbers: Mapping[str, int], answers: Answers, deadline: float) -> None:
        """Send `numbers` messages to the queues; wait for results until `deadline` (loop time).

        Raises one of `broker.ERRORS`.
        """
        client = result_store.connect(self._config) if self._reads else None
        try:
            with suppress(TimeoutError):  # results that have not come by then are missing
                async with asyncio.timeout_at(deadline - _READING):
                    await self._try(client, numbers)
            if client:
                async with asyncio.timeout_at(deadline - _ASKING):
                    await self._read(client)
        except (RedisError, OSError) as exc:
            self.unreadable = f"{type(exc).__name__}: {exc}"
        finally:
            if client:
                await client.aclose()
        missing = (self.sent - self.stored if self._reads else set()) | (
            self.sent - self.replied if self._replies_expected else set()
        )
        if missing:
            self.busy = await self._is_busy(numbers, answers, missing, deadline)

    async def _try(self, client: Redis | None, numbers: Mapping[str, int]) -> None:
        if client is None:
            await self._send(numbers)
            await self._collect_replies()
            return
        key = result_store.key_prefix(self._config) + self._ids.new()
        with suppress(NoPermissionError):  # only workers need to write
            await client.set(key, "", ex=1)
            await client.delete(key)
        async with client.pubsub() as pubsub:
            await pubsub.psubscribe(f"*{self._ids.prefix}*")
            await pubsub.get_message(timeout=None)  # the confirmation, or a refusal
            await self._send(numbers)
            await asyncio.gather(self._collect_stored(pubsub), self._collect_replies())

    async def _send(self, numbers: Mapping[str, int]) -> None:
        body = encode_body({}, {}, b"")
        reply_to = self._channel.reply_to if self._replies_expected else None
        for queue, number in numbers.items():
            for _ in range(number):
                task_id = self._ids.new()
                delivery = {"id": task_id, "store": self._reads}
                headers = dict(Message(task_id, TASK, queue, body, delivery).headers())
                wanted = {"correlation_id": task_id, "reply_to": reply_to}
                about = BasicProperties(CONTENT_TYPE, CONTENT_ENCODING, headers, **wanted)
                await self._channel.publish("", queue, body, about)
                self.sent.add(task_id)

    async def _collect_replies(self) -> None:
        while self._replies_expected and self.sent - self.replied:
            properties, _ = await self._channel.replies.get()
            if properties.correlation_id in self.sent:  # others are late answers to questions
                self.replied.add(properties.correlation_id)

    async def _collect_stored(self, pubsub: PubSub) -> None:
        async for message in pubsub.listen():
            # The state STARTED may be published as well.
            if message["type"] == "pmessage" and decode_result(message["data"]) is not None:
                channel = message["channel"].decode(errors="replace")
                prefix, _, task_id = channel.rpartition(RESULT_KEY)
                self._prefixes[task_id] = prefix
                if self._prefixes.keys() >= self.sent:
                    return

    async def _read(self, client: Redis) -> None:
        ids = sorted(self.sent)
        if ids:
            keys = [result_store.key_prefix(self._config) + task_id for task_id in ids]
            values = await client.mget(keys)
            for task_id, value in zip(ids, values, strict=True):
                if not value:
                    continue
                self.stored.add(task_id)
                outcome = decode_result(value.encode() if isinstance(value, str) else value)
                if outcome is not None and outcome.state == SUCCESS and outcome.error:
                    self.strange = outcome.error
            await client.delete(*keys)

    async def _is_busy(
        self, numbers: Mapping[str, int], answers: Answers, missing: set[str], deadline: float
    ) -> bool:
        """Tell whether a task may still wait to be run."""
        for queue in numbers:
            messages, _ = await broker.declare_alone(self._channel.connection, queue, None)
            if messages:
                return True
        asked = set().union(*(answers.consuming(queue) for queue in numbers))
        holding = await remote.holding(self._channel, missing, asked, deadline)
        return holding.keys() < asked or any(holding.values())
