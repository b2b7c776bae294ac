"""Fill queues with numbered messages, and have a driver in a process of its own empty them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, Self, cast

import psutil
from amqp.exceptions import AMQPError
from kombu import Connection
from pika import BasicProperties
from pika.frame import Body, Header, Method
from pika.spec import Basic

from gateway.errors import GatewayError
from gateway.stack.server import poll
from loadtest.client import result
from loadtest.lab.consumers.part import QUEUES, queue_of
from loadtest.machine import python_path

LIMIT = 60  # seconds that a consumer has for all messages
_NOTICED = 10  # seconds in which the broker has taken all messages, or noticed a consumer's end


class ConsumerError(GatewayError):
    """A consumer ended without a result, or the broker did not do what it was asked for."""


class Messages:
    """The queues of all consumers, and `number` messages that are put into them again and again.

    They are transient, in durable classic queues, and each contains its number. All methods raise
    `ConsumerError`.
    """

    def __init__(self, url: str, number: int):
        self.number = number
        self._link = Connection(url, heartbeat=0)
        with _translated("connecting"):
            self._link.connect()
            self._channel = self._link.channel()
            for queue in QUEUES:
                self._channel.queue_declare(queue, durable=True, auto_delete=False)
        self._frames = self._encode(range(number))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with _translated("deleting queues"):
            for queue in QUEUES:
                self._channel.queue_delete(queue)
        self._link.release()

    def fill(self, numbers: Sequence[int] | None = None) -> None:
        """Publish all messages, or those with these numbers, and see that they are there."""
        frames = self._frames if numbers is None else self._encode(numbers)
        expected = self.number if numbers is None else len(numbers)
        with _translated("publishing"):
            self._link.connection.transport.sock.sendall(frames)
            # A queue may tell its length before it takes what was sent to it before the question.
            if not poll(lambda: self._look()[0] == expected, _NOTICED):
                raise ConsumerError(f"not all of {expected:,} messages are in their queues")

    def purge(self) -> int:
        """Remove what is left when nobody consumes any more, and return how many that were."""
        with _translated("purging"):
            if not poll(lambda: not self._look()[1], _NOTICED):
                raise ConsumerError("the broker still has consumers")
            return sum(self._channel.queue_purge(queue) for queue in QUEUES)

    def _look(self) -> tuple[int, int]:
        """Count the messages and the consumers of all queues."""
        found = [self._channel.queue_declare(queue, passive=True) for queue in QUEUES]
        return sum(ok.message_count for ok in found), sum(ok.consumer_count for ok in found)

    def _encode(self, numbers: Sequence[int]) -> bytes:
        channel = self._channel.channel_id
        properties = BasicProperties(delivery_mode=1)
        frames: list[Any] = []
        for number in numbers:
            body = b"%d" % number
            publish = Basic.Publish(exchange="", routing_key=queue_of(number))
            frames += (
                Method(channel, publish),
                Header(channel, len(body), properties),
                Body(channel, body),
            )
        return b"".join(frame.marshal() for frame in frames)


class Consumer:
    """A driver in a process of its own, whose connections are open; a context manager ends it.

    All methods raise `ConsumerError`, with the last line that the process has written.
    """

    def __init__(
        self, url: str, driver: str, connections: int, prefetch: int, messages: int, limit: int
    ):
        options = {
            "driver": driver,
            "url": url,
            "connections": connections,
            "prefetch": prefetch,
            "messages": messages,
            "limit": limit,
        }
        argv = [f"--{name}={value}" for name, value in options.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "loadtest.lab.consumers.consume", *argv],
            env={**os.environ, **python_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for who has started it
        )
        self._messages = messages
        #: What it has counted, with times in seconds.
        self.figures: dict[str, Any] = {}
        self._seen = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_ready(self) -> None:
        """Wait until its connections are open."""
        self._line()

    def run(self) -> dict[str, Any]:
        """Start it and wait for its figures; returns what `wrk.run` does."""
        with suppress(BrokenPipeError):  # it has ended, as the missing line says
            stdin = cast(IO[str], self._process.stdin)
            stdin.write("begin\n")
            stdin.flush()
        self.figures = figures = json.loads(self._line())
        missing = figures["missing"]
        seconds, wrong = figures["seconds"], figures["wrong"]
        return result(self._messages - missing, seconds, wrong=wrong, missing=missing)

    def end(self) -> None:
        """Let its connections end, and wait for that."""
        self._process.communicate()

    def cpu_seconds(self) -> float:
        used = self._seen.cpu_times()
        return float(used.user + used.system)

    def rss_bytes(self) -> int:
        return int(self._seen.memory_info().rss)

    def descriptors(self) -> int:
        return int(self._seen.num_fds())

    def output(self) -> str:
        return ""

    def _line(self) -> str:
        if line := cast(IO[str], self._process.stdout).readline():
            return line
        said = self._process.communicate()[1].strip().rpartition("\n")[2]
        raise ConsumerError(said or f"the consumer ended with {self._process.returncode}")


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except (AMQPError, OSError) as exc:
        raise ConsumerError(f"{doing}: {exc}") from exc
