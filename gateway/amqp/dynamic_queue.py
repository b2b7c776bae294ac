"""What a process knows of one dynamic queue, and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from gateway.config.dynamic import IDLE, RENEWED
from gateway.config.route import Route
from gateway.errors import RequestError

_WATCHED = 10.0  # seconds after a message in which its queue is checked each time


class DynamicQueue:
    """A dynamic queue that this process has declared, and that may still exist."""

    __slots__ = (
        "consumed", "consumers", "declared", "messages", "name", "route", "task", "told", "used",
        "waiting",
    )  # fmt: skip

    def __init__(self, name: str, route: Route):
        self.name = name
        self.route = route
        #: Monotonic seconds: declared, used, known to be consumed, and a worker told last.
        self.declared = self.used = self.consumed = self.told = -inf
        self.messages = self.consumers = 0
        #: What is done once it is declared; the argument is the error, if it could not be.
        self.waiting: list[Callable[[RequestError | None], None]] = []
        self.task: asyncio.Task[None] | None = None

    def ready(self, now: float) -> bool:
        """Was it declared so recently that a message cannot be in it when it expires?

        Without recent use it is not ready either, as workers may have cancelled its consumer.
        """
        recent = max(now - self.declared, now - self.used)
        return recent < RENEWED * self.route.queue_expires and not self.waiting

    def in_use(self, now: float) -> bool:
        """May it have messages, or get one soon?"""
        idle = now - self.used > IDLE * self.route.queue_expires
        return bool(self.waiting or self.messages) or not idle

    def due(self, now: float) -> bool:
        """Has its number of consumers to be asked for, and its expiry to be renewed?"""
        if not self.in_use(now) or self.declared == -inf:
            return False
        watched = self.messages or not self.consumers or now - self.used < _WATCHED
        return bool(watched) or now - self.declared > RENEWED / 4 * self.route.queue_expires

    def expired(self, now: float) -> bool:
        """Has it expired by now?"""
        unused = now - max(self.declared, self.consumed)
        return not self.waiting and unused > self.route.queue_expires
