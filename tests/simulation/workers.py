"""Workers: they consume tasks, run them, store or reply their results, acknowledge.

Two orders are modelled. Stock Celery looks for a stored success, stores and publishes the result in
a transaction, and acknowledges. The app server stores and publishes in one script, or replies over
AMQP first, and stores what the delivery's header says.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from datetime import datetime
from hashlib import sha1
from random import Random
from typing import TYPE_CHECKING, Any

import hiredis
import pika

from appserver.queues import DEAD_LETTER_EXCHANGE, DEAD_LETTER_QUEUE
from appserver.result_script import _STORE
from gateway.amqp.connection import LoopServices
from tests.simulation import seams
from tests.simulation.loop import DEAD, Party
from tests.simulation.records import Execution
from tests.simulation.scenes import FAILED, RESULT

if TYPE_CHECKING:
    from tests.simulation.world import World

QUEUES = ("main", "further")
STOCK, APP = "stock", "app"
_SHA = sha1(_STORE.encode()).hexdigest()
_ERRORS = (OSError, pika.exceptions.AMQPError)


class RedisClient(asyncio.Protocol):
    """A connection to Redis on which commands are answered in their order."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self.transport: Any = None
        self.lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            future = self._waiting.popleft()
            if future.done():
                continue
            if isinstance(reply, Exception):
                future.set_exception(RedisRefused(str(reply)))
            else:
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        for future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionResetError("Redis"))

    async def run(self, *commands: tuple[Any, ...]) -> Any:
        """Send commands in one write; return the reply of the last."""
        if self.lost:
            raise ConnectionResetError("Redis")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in commands]
        self._waiting += futures
        self.transport.write(b"".join(map(hiredis.pack_command, commands)))
        replies = await asyncio.gather(*futures, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
            if isinstance(reply, list):  # an EXEC's
                for error in (each for each in reply if isinstance(each, Exception)):
                    raise RedisRefused(str(error))
        return replies[-1]


class RedisRefused(Exception):
    """Redis answers with an error."""


async def redis_client() -> RedisClient:
    _, client = await asyncio.get_running_loop().create_connection(RedisClient, "redis", 6379)
    return client


async def amqp_connection() -> tuple[Any, asyncio.Future[BaseException]]:
    """Open a connection to the broker; the future has the reason of its end."""
    loop = asyncio.get_running_loop()
    opened, lost = loop.create_future(), loop.create_future()

    def failed(_: Any, exc: BaseException) -> None:
        if not opened.done():
            opened.set_exception(OSError(str(exc)))

    parameters = pika.ConnectionParameters(
        host="broker", port=5672, heartbeat=10, socket_timeout=4, stack_timeout=4,
        client_properties={"connection_name": "worker"},
    )  # fmt: skip
    connection = pika.adapters.asyncio_connection.AsyncioConnection(
        parameters,
        on_open_callback=lambda c: opened.done() or opened.set_result(c),
        on_open_error_callback=failed,
        on_close_callback=lambda c, exc: lost.done() or lost.set_result(exc),
        custom_ioloop=LoopServices(loop, lambda sock: None),
    )
    try:
        await opened
    except BaseException:
        if not (connection.is_closing or connection.is_closed):
            connection.close()
        raise
    return connection, lost


async def channel_of(connection: Any) -> Any:
    """Open a channel."""
    opened = asyncio.get_running_loop().create_future()
    channel = connection.channel(on_open_callback=lambda c: opened.done() or opened.set_result(c))
    channel.add_on_close_callback(
        lambda c, exc: opened.done() or opened.set_exception(OSError(str(exc)))
    )
    return await opened


async def call(channel: Any, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a method of a channel, and wait for its answer."""
    done = asyncio.get_running_loop().create_future()
    channel.add_on_close_callback(
        lambda c, exc: done.done() or done.set_exception(OSError(str(exc)))
    )
    method(*args, callback=lambda frame: done.done() or done.set_result(frame), **options)
    return await done


async def _declare_dead_letters(channel: Any) -> None:
    """Declare what the app server declares for dead letters."""
    await call(channel, channel.exchange_declare, DEAD_LETTER_EXCHANGE, "fanout", durable=True)
    arguments = DEAD_LETTER_QUEUE.queue_arguments
    await call(
        channel, channel.queue_declare, DEAD_LETTER_EXCHANGE, durable=True, arguments=arguments
    )
    await call(channel, channel.queue_bind, DEAD_LETTER_EXCHANGE, DEAD_LETTER_EXCHANGE)


class Worker:
    """A worker, which is started again after its death; ``early`` acknowledges before it runs."""

    def __init__(self, world: World, name: str, order: str, early: bool, prefetch: int = 16):
        self.world, self.name = world, name
        self.order, self.early, self.prefetch = order, early, prefetch
        self.random = Random(f"{world.seed} {name}")
        self.party = Party(name)
        self.party.state = DEAD  # not started yet
        self.running: dict[str, Execution] = {}
        #: Dies at the next of these steps: "begun", "ran", "stored"; "": it does not.
        self.dies_at = ""

    def start(self) -> None:
        """Start, unless it runs: a kill may come between a death and its start."""
        if self.party.state != DEAD:
            return
        self.party = Party(self.name)
        self.running = {}
        self._redis: RedisClient | None = None
        self._replies: Any = None
        self._replies_not_before = 0.0
        self._locks = asyncio.Lock()
        self.world.loop.start(self.party, self._consume_for_ever())

    def kill(self) -> None:
        for execution in self.running.values():
            if self.early:
                execution.lost = True
                if not execution.nonce:
                    self.world.evidence.executions.append(execution)
        self.running = {}
        self.world.loop.kill(self.party)

    async def _consume_for_ever(self) -> None:
        while True:
            try:
                await self._consume()
            except (TimeoutError, *_ERRORS) as exc:
                self.world.trace(self.name, f"cannot consume: {exc!r}")
            await asyncio.sleep(self.random.uniform(0.2, 1.5))

    async def _consume(self) -> None:
        """Consume until the connection or the channel is lost."""
        async with asyncio.timeout(5):
            connection, lost = await amqp_connection()
            channel = await channel_of(connection)
            await call(channel, channel.basic_qos, prefetch_count=self.prefetch)
            arguments = self.world.plan.queue
            if "x-dead-letter-exchange" in arguments:
                await _declare_dead_letters(channel)
            for queue in QUEUES:
                await call(channel, channel.queue_declare, queue, durable=True, arguments=arguments)
                await call(channel, channel.basic_consume, queue, self._on_message)
        channel.add_on_close_callback(lambda c, exc: lost.done() or lost.set_result(exc))
        await lost
        if not (connection.is_closing or connection.is_closed):
            connection.close()

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        asyncio.get_running_loop().create_task(self._handle(channel, method, properties, body))

    def _step(self, name: str) -> None:
        if self.dies_at == name or (name == FAILED and self.world.played(FAILED)):
            self.dies_at = ""
            self.world.worker_died(self, name)

    async def _handle(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        world, loop = self.world, self.world.loop
        headers = properties.headers
        (query, sent, content), _, _ = json.loads(body)
        execution = Execution(
            content.split(" ")[0], headers["id"], sent.get("x-try", ""), "", False,
            bool(method.redelivered), loop.time(), self.name, headers["task"],
        )  # fmt: skip
        key = f"{headers['id']} {method.delivery_tag} {id(channel)}"
        self.running[key] = execution
        if self.early and channel.is_open:
            channel.basic_ack(method.delivery_tag)
        self._step("begun")
        expires = headers.get("expires")
        if expires and datetime.fromisoformat(expires).timestamp() < seams.now():
            world.trace(self.name, f"{execution.attempt} has expired")
            meta: dict[str, Any] = {"status": "REVOKED", "result": {"exc_type": "TaskRevokedError"}}
        else:
            seconds = float(query.get("seconds", 0))
            await asyncio.sleep(seconds)
            execution.failed = self.random.random() < float(query.get("fail", 0))
            execution.nonce = f"{self.random.getrandbits(64):016x}"
            execution.at = loop.time()
            world.executed(execution)
            if 2 < seconds < 3.9:
                world.played(RESULT)
            if execution.failed:
                error = {"exc_type": "TaskFailure", "exc_message": ["as asked"], "exc_module": "t"}
                meta = {"status": "FAILURE", "result": error, "retries": 0}
            else:
                meta = {"status": "SUCCESS", "result": f"{execution.delivery} {execution.nonce}"}
        self._step("ran")
        meta |= {"traceback": None, "children": [], "task_id": headers["id"]}
        result = json.dumps(meta)
        if self.order == APP:
            await self._answer(properties, headers, result)
        else:
            await self._store(headers["id"], result)
        execution.stored = loop.time()
        if execution.failed and not self.early and world.is_left(execution.attempt):
            self._step(FAILED)
        self._step("stored")
        self.running.pop(key, None)
        if not self.early and channel.is_open:
            channel.basic_ack(method.delivery_tag)

    async def _answer(self, properties: Any, headers: dict[str, Any], result: str) -> None:
        """Reply if that is asked for, and store what must be stored, or was not replied."""
        reply_to = properties.reply_to
        if reply_to and reply_to.startswith("gateway.reply."):
            replied = await self._reply(reply_to, headers["id"], result)
            if replied and not (headers.get("delivery") or {}).get("store"):
                return
        if not headers.get("ignore_result"):
            await self._store(headers["id"], result)

    async def _reply(self, reply_to: str, task_id: str, result: str) -> bool:
        loop = asyncio.get_running_loop()
        async with self._locks:
            channel = self._replies
            if channel is None or not channel.is_open:
                if loop.time() < self._replies_not_before:
                    return False
                try:
                    async with asyncio.timeout(2):
                        connection, _ = await amqp_connection()
                        self._replies = channel = await channel_of(connection)
                    connection.blocked = False
                    connection.add_on_connection_blocked_callback(
                        lambda c, _: setattr(c, "blocked", True)
                    )
                    connection.add_on_connection_unblocked_callback(
                        lambda c, _: setattr(c, "blocked", False)
                    )
                except (TimeoutError, *_ERRORS):
                    self._replies_not_before = loop.time() + 1
                    return False
        if channel.connection.blocked:
            return False
        properties = pika.BasicProperties(
            content_type="application/json", content_encoding="utf-8", delivery_mode=1,
            correlation_id=task_id,
        )  # fmt: skip
        channel.basic_publish("", reply_to, result.encode(), properties)
        return True

    async def _store(self, task_id: str, result: str) -> None:
        """Store a result, as often as it takes; Celery tries for a long time, too."""
        key = f"celery-task-meta-{task_id}"
        while self.party.state != DEAD:
            try:
                async with self._locks:
                    if self._redis is None or self._redis.lost:
                        async with asyncio.timeout(4):
                            self._redis = await redis_client()
                redis = self._redis
                if self.order == APP:
                    try:
                        await redis.run(("EVALSHA", _SHA, 1, key, result, self.world.expires))
                    except RedisRefused as exc:
                        if not str(exc).startswith("NOSCRIPT"):
                            raise
                        await redis.run(("EVAL", _STORE, 1, key, result, self.world.expires))
                    return
                there = await redis.run(("GET", key))
                if there is not None and json.loads(there)["status"] == "SUCCESS":
                    return
                await redis.run(
                    ("MULTI",),
                    ("SETEX", key, self.world.expires, result),
                    ("PUBLISH", key, result),
                    ("EXEC",),
                )
                return
            except (TimeoutError, OSError, RedisRefused) as exc:
                if "READONLY" in str(exc):  # redis-py disconnects, too
                    self._redis = None
                self.world.trace(self.name, f"cannot store {task_id}: {exc!r}")
                await asyncio.sleep(self.random.uniform(0.1, 1.0))
