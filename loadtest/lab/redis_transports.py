"""Transports by a Redis server and redis-py: lists and streams."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any

import redis

from loadtest.lab.transport import WINDOW, Counts, Run, Settings, Transport

_GROUP, _FIELD = "receivers", b"message"


class _Redis(Transport):
    """The connection, and a key that nothing else has."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.key = f"transport-{os.getpid()}"

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        # A receiver waits as long as it takes; the answers' form is that of every server.
        with redis.Redis.from_url(self.settings.url, socket_timeout=None, protocol=2) as client:
            client.ping()
            yield client

    @contextmanager
    def sending(self) -> Iterator[Run]:
        with self.client() as client:
            yield partial(self.give_all, client)

    @contextmanager
    def receiving(self, index: int) -> Iterator[Run]:
        with self.client() as client:
            yield partial(self.take_all, client)
            client.delete(self.key)

    @abstractmethod
    def give_all(self, client: redis.Redis) -> Counts:
        """Send all messages."""

    @abstractmethod
    def take_all(self, client: redis.Redis) -> Counts:
        """Receive all messages."""

    def give_together(self, client: redis.Redis, command: str, value: Any, end: Any) -> Counts:
        """Send `WINDOW` commands at once, each with one message."""
        with client.pipeline(transaction=False) as pipeline:
            add = partial(getattr(pipeline, command), self.key)
            for left in range(self.settings.number, 0, -WINDOW):
                for _ in repeat(None, min(left, WINDOW)):
                    add(value)
                pipeline.execute()
            add(end)
            pipeline.execute()
        return Counts()


class RedisList(_Redis):
    """LPUSH and BRPOP, one after the other."""

    def give_all(self, client: redis.Redis) -> Counts:
        return self.give(partial(client.lpush, self.key))

    def take_all(self, client: redis.Redis) -> Counts:
        return self.take(partial(self._pop, client))

    def _pop(self, client: redis.Redis) -> Any:
        popped: Any = client.brpop([self.key], timeout=0)
        return popped[1]


class PipelinedRedisList(RedisList):
    """LPUSH and BRPOP, as many at once as there may be."""

    def give_all(self, client: redis.Redis) -> Counts:
        return self.give_together(client, "lpush", self.settings.message, self.settings.end)

    def take_all(self, client: redis.Redis) -> Counts:
        counts, message = Counts(), self.settings.message
        with client.pipeline(transaction=False) as pipeline:
            for left in range(self.settings.number, 0, -WINDOW):
                for _ in repeat(None, min(left, WINDOW)):
                    pipeline.brpop([self.key], timeout=0)
                for _, got in pipeline.execute():
                    counts.add(got, message)
        behind = self.take(partial(self._pop, client))
        return Counts(counts.right + behind.right, counts.wrong + behind.wrong)


class RedisStream(_Redis):
    """XADD, one after the other, and XREAD of all that is there."""

    def give_all(self, client: redis.Redis) -> Counts:
        return self.give(lambda message: client.xadd(self.key, {_FIELD: message}))

    def take_all(self, client: redis.Redis) -> Counts:
        return self.take(self.read(client).__next__)

    def read(self, client: redis.Redis) -> Iterator[Any]:
        last: Any = 0
        while True:
            found: Any = client.xread({self.key: last}, count=WINDOW, block=0)
            ((_, entries),) = found
            for entry, fields in entries:
                last = entry
                yield fields[_FIELD]


class PipelinedRedisStream(RedisStream):
    """XADD, as many at once as there may be, and XREAD."""

    def give_all(self, client: redis.Redis) -> Counts:
        message, end = ({_FIELD: each} for each in (self.settings.message, self.settings.end))
        return self.give_together(client, "xadd", message, end)


class RedisGroup(PipelinedRedisStream):
    """The same with a consumer group, XREADGROUP and XACK: what was read and not acknowledged is
    given to another."""

    def read(self, client: redis.Redis) -> Iterator[Any]:
        while True:
            found: Any = client.xreadgroup(
                _GROUP, "receiver", {self.key: ">"}, count=WINDOW, block=0
            )
            ((_, entries),) = found
            client.xack(self.key, _GROUP, *(entry for entry, _ in entries))
            for _, fields in entries:
                yield fields[_FIELD]

    @contextmanager
    def receiving(self, index: int) -> Iterator[Run]:
        with self.client() as client:
            client.xgroup_create(self.key, _GROUP, id=0, mkstream=True)
        with super().receiving(index) as run:
            yield run


TRANSPORTS: dict[str, type[Transport]] = {
    "list": RedisList,
    "pipelined-list": PipelinedRedisList,
    "stream": RedisStream,
    "pipelined-stream": PipelinedRedisStream,
    "group": RedisGroup,
}
