"""Send the commands of many requests to one Redis, on one connection.

redis-py opens a connection for each command in progress, and refuses more than a hundred.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import redis.asyncio
from redis.exceptions import ResponseError

from gateway import background
from gateway.stores import result_store
from gateway.stores.result_store import LOST

#: Seconds that a batch may take, and that a command may wait for its batch.
PATIENCE = 1.0
_MOST = 500  # commands in one batch

#: An argument of a command.
Arg = bytes | str | int


class Pipeline:
    """Sends commands in the order in which they were given.

    Commands that are given while a batch is in progress are sent together in the next one.
    """

    def __init__(self, connect: Callable[[], redis.asyncio.Redis], name: str):
        self._connect = connect
        self._name = name
        self._waiting: list[tuple[asyncio.Future[Any], float, tuple[Any, ...]]] = []
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = background.start(self._keep_sending(), self._name)

    async def stop(self) -> None:
        """Stop when all commands are executed, or after `PATIENCE`."""
        if self._task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), PATIENCE)
            await background.stop(self._task)

    def run(self, *command: Arg) -> asyncio.Future[Any]:
        """Send `command`; return a future of the reply.

        The future fails with `redis.exceptions.ResponseError`, or with OSError where Redis does not
        answer; in that case it is not known whether the command was executed.
        """
        reply = asyncio.get_running_loop().create_future()
        self._waiting.append((reply, monotonic() + PATIENCE, result_store.encoded(command)))
        self._idle.clear()
        self._some.set()
        return reply

    async def _keep_sending(self) -> None:
        client = self._connect()
        try:
            while True:
                self._idle.set()
                await self._some.wait()
                while self._waiting:
                    batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                    await self._send(client, batch)
                self._some.clear()
        finally:
            await client.aclose()

    async def _send(self, client: redis.asyncio.Redis, batch: list[Any]) -> None:
        now = monotonic()
        # A future that is done already was cancelled: its command need not be sent.
        due = [(reply, command) for reply, end, command in batch if now < end and not reply.done()]
        pipeline = client.pipeline(transaction=False)
        for _, command in due:
            pipeline.execute_command(*command)
        error = "no answer in time"
        answers: list[Any] = []
        try:
            async with asyncio.timeout(PATIENCE):
                answers = await pipeline.execute(raise_on_error=False)
        except LOST as exc:
            error = f"{type(exc).__name__}: {exc}"
        for (reply, _), answer in zip(due, answers, strict=False):
            if reply.done():
                continue
            if isinstance(answer, ResponseError):
                reply.set_exception(answer)
            else:
                reply.set_result(answer)
        for reply, _, _ in batch:
            if not reply.done():
                reply.set_exception(OSError(error))
