"""Try where results go, by a task that does nothing.

It is one of Celery's own, which every app has, and runs once for each consumer. It is sent only to
queues that are empty: it neither waits behind other messages nor can push one out of a full queue.
(An expired message would run nothing at all, but ends a worker that cannot store its result.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import NoPermissionError, RedisError

from gateway.celery_message import RESULT_KEY, Message, TaskIds, decode_result, encode_body
from gateway.cli.checks import amqp, remote
from gateway.cli.checks.finding import counted
from gateway.cli.checks.queues import Seen
from gateway.cli.checks.remote import Answers
from gateway.config.settings import Config
from gateway.stores import result_store

TASK = "celery.accumulate"  # returns its arguments
LEAST = 1.5  # seconds that a trial needs
_MOST = 100  # messages a queue
#: Seconds of the time that are left to read what is stored, and to ask who has a task still.
_READING, _ASKING = 0.8, 0.6


def ready(
    seen: Mapping[str, Seen], answers: Answers, others: Collection[str]
) -> tuple[dict[str, int], str]:
    """Return how many messages may be sent to which queue; and why none to some other.

    `others` are workers that may store in another Redis. One that runs tasks in its main process
    ends where a Redis refuses the result, and the gateway's own is known not to.
    """
    fragile = {name for name in others if answers.workers[name].solo}
    chosen, why = {}, "" if seen else "there is no queue"
    for queue, it in seen.items():
        if not it.consumers:
            why = f"nobody consumes {queue}"
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
    """Sends the messages, and knows what has become of each by its task id.

    `reads`: is what workers store looked for; `hears`: is what they reply?
    """

    def __init__(self, config: Config, exchange: amqp.Exchange, reads: bool, hears: bool):
        self._config, self._exchange = config, exchange
        self._reads, self._hears = reads, hears
        self._ids = TaskIds()
        self.sent: set[str] = set()
        self.replied: set[str] = set()
        #: Stored where the gateway reads.
        self.stored: set[str] = set()
        #: What stands before the keys of results that were published, in whatever database.
        self._prefixes: dict[str, str] = {}
        #: Are workers too busy to have run all of them?
        self.busy = False
        #: Why results could not be read.
        self.unreadable = ""

    @property
    def misplaced(self) -> set[str]:
        """The prefixes of results that are in our Redis, and not where the gateway reads."""
        return {self._prefixes[each] for each in self.sent - self.stored if each in self._prefixes}

    async def run(self, numbers: Mapping[str, int], answers: Answers, deadline: float) -> None:
        """Send each queue so many messages, and wait for what comes until `deadline` (loop time).

        Raises one of `broker.ERRORS`.
        """
        client = result_store.connect(self._config) if self._reads else None
        try:
            with suppress(TimeoutError):  # what has not come by then is missed
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
            self.sent - self.replied if self._hears else set()
        )
        if missing:
            self.busy = await self._is_busy(numbers, answers, missing, deadline)

    async def _try(self, client: Redis | None, numbers: Mapping[str, int]) -> None:
        if client is None:
            await self._send(numbers)
            await self._collect_replies()
            return
        key = result_store.key_prefix(self._config) + self._ids.new()
        with suppress(NoPermissionError):  # the gateway need not write, only workers
            await client.set(key, "", ex=1)
            await client.delete(key)
        async with client.pubsub() as pubsub:
            await pubsub.psubscribe(f"*{self._ids.prefix}*")
            await pubsub.get_message(timeout=None)  # that it is subscribed, or may not
            await self._send(numbers)
            await asyncio.gather(self._collect_stored(pubsub), self._collect_replies())

    async def _send(self, numbers: Mapping[str, int]) -> None:
        body = encode_body({}, {}, b"")
        reply_to = self._exchange.reply_to if self._hears else None
        for queue, number in numbers.items():
            for _ in range(number):
                task_id = self._ids.new()
                about = {"id": task_id, "store": self._reads}
                headers = Message(task_id, TASK, queue, body, about).headers()
                options = {"correlation_id": task_id, "reply_to": reply_to}
                await self._exchange.publish("", queue, body, headers, **options)
                self.sent.add(task_id)

    async def _collect_replies(self) -> None:
        while self._hears and self.sent - self.replied:
            properties, _ = await self._exchange.replies.get()
            if properties.correlation_id in self.sent:  # and no late answer to a question
                self.replied.add(properties.correlation_id)

    async def _collect_stored(self, pubsub: PubSub) -> None:
        async for message in pubsub.listen():
            # That a task has begun may be stored, too.
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
            self.stored = {task_id for task_id, value in zip(ids, values, strict=True) if value}
            await client.delete(*keys)

    async def _is_busy(
        self, numbers: Mapping[str, int], answers: Answers, missing: set[str], deadline: float
    ) -> bool:
        """Tell whether a task may still wait for its turn."""
        for queue in numbers:
            declared = await amqp.declare(self._exchange.connection, queue, passive=True)
            if declared.message_count:
                return True
        asked = set().union(*(answers.consuming(queue) for queue in numbers))
        holding = await remote.holding(self._exchange, missing, asked, deadline)
        return holding.keys() < asked or any(holding.values())
