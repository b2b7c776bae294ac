"""A stand-in for Celery workers: answers each task with its body when its time is over.

    python -m loadtest.servers.worker --seconds 10 [--announce N]

A task takes the ``seconds`` of its query, or else those of the option; any number of them run at
once. The stand-in speaks message protocol 2: where the gateway asks for a reply, it publishes one,
and else it stores the result in Redis and publishes it there, as Celery's Redis backend does.
``--announce``: print a line whenever so many tasks are waiting at once.
https://docs.celeryq.dev/en/stable/internals/protocol.html
"""

from __future__ import annotations

import argparse
import json
import os
from heapq import heappop, heappush
from time import monotonic

import amqp
import redis
from kombu import Connection

EXPIRES = 300  # seconds
REPLY_PREFIXES = ("gateway.reply.", "amq.rabbitmq.reply-to.")
_AT_ONCE = 100  # messages that are read before the clock is looked at again


class Worker:
    """Holds tasks until they are due."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        self._redis = redis.Redis.from_url(os.environ["GATEWAY_RESULT_BACKEND"])
        self._link = Connection(os.environ["GATEWAY_BROKER_URL"], heartbeat=0)
        self._link.connect()
        self._connection: amqp.Connection = self._link.connection
        self._channel: amqp.Channel = self._connection.channel()
        self._channel.queue_declare("celery", durable=True, auto_delete=False)
        self._channel.basic_consume("celery", no_ack=True, callback=self._take)
        #: When it is due, its id, where the reply goes, and the reply.
        self._held: list[tuple[float, str, str, bytes]] = []

    def run(self) -> None:
        while True:
            pause = self._held[0][0] - monotonic() if self._held else None
            if pause is None or pause > 0:
                self._read(pause)
            self._answer()

    def _read(self, pause: float | None) -> None:
        for _ in range(_AT_ONCE):
            try:
                self._connection.drain_events(timeout=pause)
            except TimeoutError:
                return
            pause = 0.0001  # 0 would be no timeout

    def _take(self, message: amqp.Message) -> None:
        properties = message.properties
        headers = properties["application_headers"]
        (query, _, body), *_ = json.loads(message.body)
        meta = {
            "status": "SUCCESS",
            "result": body,
            "traceback": None,
            "children": [],
            "date_done": "2025-01-01T00:00:00+00:00",
            "task_id": headers["id"],
        }
        due = monotonic() + float(query.get("seconds", self._options.seconds))
        reply_to = properties.get("reply_to", "")
        heappush(self._held, (due, headers["id"], reply_to, json.dumps(meta).encode()))
        if len(self._held) == self._options.announce:
            print(f"holding {len(self._held)}", flush=True)

    def _answer(self) -> None:
        now = monotonic()
        with self._redis.pipeline(transaction=False) as store:
            while self._held and self._held[0][0] <= now:
                _, task_id, reply_to, meta = heappop(self._held)
                if reply_to.startswith(REPLY_PREFIXES):
                    properties = {"correlation_id": task_id, "content_type": "application/json"}
                    reply = amqp.Message(meta, content_encoding="utf-8", **properties)
                    self._channel.basic_publish(reply, routing_key=reply_to)
                else:
                    key = f"celery-task-meta-{task_id}"
                    store.set(key, meta, ex=EXPIRES)
                    store.publish(key, meta)
            store.execute()


def main() -> None:
    parser = argparse.ArgumentParser(prog="worker", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--announce", type=int, default=0)
    worker = Worker(parser.parse_args())
    print("ready", flush=True)
    worker.run()


if __name__ == "__main__":
    main()
