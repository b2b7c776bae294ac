"""Deliveries with the same key keep their order."""

from __future__ import annotations

import asyncio
import json

import kombu

from tests.integration.deliveries import URLS, run, send
from tests.support.config import route
from tests.support.stack import RabbitMQ
from tests.support.waiting import eventually

QUEUES = ["order-0", "order-1", "order-2"]
KEYS = [f"account-{n}" for n in range(24)]
EACH = 10


def ordered(*queues: str) -> str:
    return URLS + route("/ordered", answer="accept", queues=queues, ordering_key="json:/account")


WORKER = {"concurrency": 1}


def event(key: str, number: int) -> str:
    return json.dumps({"account": key, "number": number}, separators=(",", ":"))


def lying_in(broker: RabbitMQ, queue: str) -> list[str]:
    """Take what lies in `queue`: return the bodies in their order, and put the messages back."""
    bodies = []
    with kombu.Connection(broker.url) as connection:
        channel = connection.default_channel
        while message := channel.basic_get(queue, no_ack=False):
            bodies.append(json.loads(message.body)[0][2])
        channel.close()  # what was not acknowledged returns to its place
    return bodies


async def test_one_key_one_queue_one_order(servers):
    gateway = servers.gateway("redis", ordered(*QUEUES), "--processes", "2")

    async def deliver_in_order(key: str) -> None:
        for number in range(EACH):
            assert (await send(gateway, "/ordered", event(key, number))).status == 202

    await asyncio.gather(*(deliver_in_order(key) for key in KEYS))
    queue_of = {}
    for queue in QUEUES:
        bodies = lying_in(servers.broker, queue)
        keys = {json.loads(body)["account"] for body in bodies}
        assert not keys & queue_of.keys()
        queue_of |= dict.fromkeys(keys, queue)
        for key in keys:
            expected = [event(key, number) for number in range(EACH)]
            assert [body for body in bodies if body in expected] == expected
    assert queue_of.keys() == set(KEYS)
    assert set(queue_of.values()) == set(QUEUES)

    workers = [servers.start_worker([queue], concurrency=1) for queue in QUEUES]
    await eventually(lambda: len(servers.executions("{")) == EACH * len(KEYS))
    done = [one.id for one in servers.executions("{")]
    for key in KEYS:
        expected = [event(key, number) for number in range(EACH)]
        assert [body for body in done if body in expected] == expected

    # One queue more takes its share from all of them, and moves nothing else.
    for worker in workers:
        worker.stop()
    more = servers.gateway("redis", ordered(*QUEUES, "order-3"))

    async def deliver_once_more() -> None:
        answers = [await send(more, "/ordered", event(key, EACH)) for key in KEYS]
        assert {a.status for a in answers} == {202}

    await deliver_once_more()
    moved = {json.loads(body)["account"] for body in lying_in(servers.broker, "order-3")}
    assert 0 < len(moved) < len(KEYS) / 2
    for queue in QUEUES:
        keys = {json.loads(body)["account"] for body in lying_in(servers.broker, queue)}
        assert {queue_of[key] for key in keys} <= {queue}
    for queue in [*QUEUES, "order-3"]:
        servers.broker.ctl("delete_queue", queue)


def test_a_delivery_without_its_key_is_malformed(servers):
    gateway = servers.gateway("redis", ordered(*QUEUES))
    assert run(send(gateway, "/ordered", "{}")).type == "bad-request"
