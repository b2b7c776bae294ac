"""Row 32: replies that no worker would send."""

from __future__ import annotations

import json
from collections.abc import Callable

import amqp
from redis import Redis

from gateway.celery_message import RESULT_KEY
from gateway.stack.server import poll
from tests.faults.lane import Lane
from tests.faults.servers import channel
from tests.faults.trial import Trial, row
from tests.simulation.records import Try

GENUINE = {"status": "SUCCESS", "result": "genuine"}
#: What a reply may be, by name: none of them is an answer, or ends anything but its request.
FORGED = {
    "nothing": b"",
    "no JSON": b"\x00\xff{",
    "no object": b'[1, "SUCCESS"]',
    "no status": b"{}",
    "unknown status": b'{"status": "WHATEVER", "result": 1}',
    "not yet": b'{"status": "STARTED", "result": {"pid": 1}}',
    "bad UTF-8": b'{"status": "SUCCESS", "result": "\xc3\x28"}',
    "nested": b'{"status": "SUCCESS", "result": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "bad status line": b'{"status": "SUCCESS", "result": {"status": 99, "body": "x"}}',
    "bad header": b'{"status": "SUCCESS", "result": {"status": 200, "headers": {"etag": "\\n"},'
    b' "body": ""}}',
    "huge": json.dumps({"status": "SUCCESS", "result": "x" * 20_000_000}).encode(),
    "another's": json.dumps(GENUINE).encode(),
}

Reply = Callable[[str, bytes], object]


@row(32, "forged replies")
def forged(trial: Trial) -> None:
    """Published to the reply queue, or the channel, of a request that waits."""
    trial.open()
    with trial.load(), trial.fault():
        trial.each(lambda lane: _forge(trial, lane))


def _forge(trial: Trial, lane: Lane) -> None:
    with channel(trial.broker) as amqp_channel, Redis.from_url(trial.results.url) as redis:
        for name, payload in FORGED.items():
            asked = trial.client.start_soon(lane.sender.send("/forged"))
            message = _take(amqp_channel, lane)
            reply = _replier(message, amqp_channel, redis)
            task = message.properties["correlation_id"]
            # A foreign id first: nobody has asked for that.
            reply("nobody-asked", payload)
            reply(f"{task}x" if name == "another's" else task, payload)
            reply(task, json.dumps(GENUINE).encode())
            _expect_ignored_or_502(lane, name, asked())
            # What comes after the answer is late.
            reply(task, payload)


def _take(amqp_channel: amqp.Channel, lane: Lane) -> amqp.Message:
    """Take the request's message from the queue, in the worker's place."""
    found: list[amqp.Message] = []

    def get() -> bool:
        message = amqp_channel.basic_get(f"{lane.queue}-forged", no_ack=True)
        found.extend([message] if message else [])
        return bool(found)

    if not poll(get, 5):
        raise LookupError(f"no message in {lane.queue}-forged")
    return found[0]


def _replier(message: amqp.Message, amqp_channel: amqp.Channel, redis: Redis) -> Reply:
    reply_to = message.properties.get("reply_to")
    if reply_to is None:
        return lambda task, payload: redis.publish(f"{RESULT_KEY}{task}", payload)
    return lambda task, payload: amqp_channel.basic_publish(
        amqp.Message(payload, correlation_id=task), "", reply_to
    )


def _expect_ignored_or_502(lane: Lane, name: str, one: Try) -> None:
    lane.excused.add(one.delivery)
    ignored = (one.status, one.body) == (200, "genuine")
    lane.expect(ignored or one.status == 502, f"{name}: {one.status} {one.body[:100]}")
    lane.expect(ignored or name != "another's", f"another's reply ended it: {one.status}")
    lane.notes["refused"] = lane.notes.get("refused", 0) + (one.status == 502)
