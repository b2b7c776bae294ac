"""The journal in Redis: the last deliveries and their answers, to be listed and replayed.

An entry is written after the answer: a request never waits for the journal, nor fails with it.
"""

from __future__ import annotations

import json
import logging
from asyncio import Future
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from gateway.celery_message import DEFAULTS, Message, Options
from gateway.config.settings import Config
from gateway.metrics import Metrics
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline

log = logging.getLogger(__name__)

GONE = 0  # the status where the sender had left before the answer
_DEFAULTS = asdict(DEFAULTS)
_PAGE = 20  # entries a query: with large bodies more would delay the other clients of Redis


@dataclass(slots=True, frozen=True)
class Entry:
    """A delivery and its answer.

    ``delivery`` is the message's header of that name, ``call`` the message's body. ``seconds``
    is the time from the request to the answer with ``status``; ``error`` is empty where there was
    none. If the delivery joined an earlier try, ``task_id`` is the task of that try. The message
    may never have been published. If the delivery lacked a value for it, there was no message:
    ``queue`` is empty, and ``call`` is what a route without `args` gives.
    """

    delivery: dict[str, Any]
    task: str
    task_id: str
    queue: str
    status: int
    seconds: float
    call: bytes
    error: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.delivery["id"])

    @property
    def sendable(self) -> bool:
        """Was there a message, which can be published again?"""
        # With an exchange `queue` is the routing key, which may be empty.
        return bool(self.queue or self.options.get("exchange"))

    def message(self, task_id: str) -> Message:
        """Return a persistent message for the same call, as another task with a stored result."""
        own = dict(self.options)
        priority, extra = own.pop("priority", None), own.pop("extra", None)
        return Message(
            task_id,
            self.task,
            self.queue,
            self.call,
            {**self.delivery, "store": True},
            persistent=True,
            priority=priority,
            extra=extra,
            # Whoever replays a delivery wants to see what becomes of it, and now.
            options=Options(**{**own, "ignore_result": False, "delayed": False}),
        )

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword arguments that the task is called with."""
        args, kwargs, _ = json.loads(self.call)
        return args, kwargs


class Journal:
    """Writes the last `Config.journal` deliveries."""

    def __init__(self, config: Config, metrics: Metrics):
        self._redis = Pipeline(lambda: result_store.connect(config, config.state), "journal")
        self._key = key(config)
        self._length = config.journal
        self._metrics = metrics
        self._most_bytes = config.max_in_flight_bytes
        self._bytes = 0  # of bodies that wait for Redis
        self._error = ""

    async def start(self) -> None:
        await self._redis.start()

    async def stop(self) -> None:
        await self._redis.stop()

    def write(
        self, message: Message, task_id: str, status: int, seconds: float, error: str
    ) -> None:
        """Write how the delivery of `message` was answered; `task_id` is the task that runs it."""
        size = len(message.body)
        if self._bytes + size > self._most_bytes:
            self._lose("more bytes wait for Redis than max_in_flight_bytes")
            return
        self._bytes += size
        about = {
            "delivery": message.delivery,
            "task": message.task,
            "task_id": task_id,
            "queue": message.queue,
            "status": status,
            "seconds": round(seconds, 6),
            "error": error,
            "options": _options(message),
        }
        # "~": Redis may keep a few entries more, which is much cheaper for it.
        bound = ("MAXLEN", "~", self._length)
        fields = ("about", json.dumps(about), "call", message.body)
        reply = self._redis.run("XADD", self._key, *bound, "*", *fields)
        reply.add_done_callback(partial(self._written, size))

    def _written(self, size: int, reply: Future[Any]) -> None:
        self._bytes -= size
        if not reply.cancelled():
            exc = reply.exception()
            if exc is not None:
                self._lose(str(exc))
            else:
                self._error = ""

    def _lose(self, error: str) -> None:
        self._metrics.add("gateway_journal_lost_total")
        if error != self._error:
            log.warning("deliveries cannot be written to the journal: %s", error)
            self._error = error


def _options(message: Message) -> dict[str, Any]:
    """Return what a replayed message needs beside its task, queue, call and delivery."""
    own = {"priority": message.priority, "extra": message.extra, **asdict(message.options)}
    return {name: value for name, value in own.items() if value != _DEFAULTS.get(name)}


def key(config: Config) -> str:
    """Return the name of the stream."""
    return f"{config.prefix}journal"


async def entries(config: Config) -> AsyncGenerator[Entry, None]:
    """Yield the journal's entries, the newest first.

    Raises `gateway.errors.GatewayError` where Redis does not answer, or is older than 6.2.
    """
    newest = "+"
    async with result_store.asking(config, config.state) as ask:
        while page := await ask("XREVRANGE", key(config), newest, "-", "COUNT", _PAGE):
            for _, fields in page:
                yield Entry(**json.loads(fields[b"about"]), call=fields[b"call"])
            newest = f"({page[-1][0].decode()}"
