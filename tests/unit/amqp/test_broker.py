"""Queues are checked at the same time, but not all at once."""

from __future__ import annotations

import asyncio
import gc
from itertools import islice
from types import SimpleNamespace

import pika.exceptions
import pytest

from gateway.amqp import broker, publisher
from gateway.amqp.publisher import Publisher
from gateway.amqp.reply_channel import connected_to_any
from gateway.config.settings import Config
from gateway.errors import GatewayError


@pytest.mark.parametrize("count", [1, 5, 3 * broker.AT_ONCE])
async def test_some_queues_are_checked_at_the_same_time(monkeypatch, count):
    under_way, most, checked = 0, 0, []

    async def declare(_connection, queue, arguments):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        checked.append(queue)
        return arguments is None

    monkeypatch.setattr(broker, "_declare", declare)
    queues = [f"queue-{number}" for number in range(count)]
    config = Config(routes=[{"path": f"/{q}", "queue": q} for q in queues])

    await broker.ensure_queues(None, config.tasks_by_queue)

    assert sorted(checked) == sorted(queues)
    assert most == min(count, broker.AT_ONCE)


async def test_a_queue_of_which_nothing_is_told_holds_up_no_other(monkeypatch, caplog):
    answers = {}

    async def declare(_connection, queue, arguments):
        answers[queue] = asyncio.get_running_loop().create_future()
        return True if queue == "quick" else await answers[queue]

    monkeypatch.setattr(broker, "_declare", declare)
    monkeypatch.setattr(broker, "QUEUES_PATIENCE", 0.01)
    queues = ["quick", *(f"frozen-{number}" for number in range(6))]
    config = Config(routes=[{"path": f"/{q}", "queue": q} for q in queues])

    await broker.ensure_queues(None, config.tasks_by_queue)
    answers["frozen-0"].set_result(True)
    answers["frozen-1"].set_exception(pika.exceptions.ConnectionClosed(320, "lost"))
    await asyncio.sleep(0)
    (told,) = caplog.messages
    assert told.endswith("exist: frozen-0, frozen-1, frozen-2, frozen-3, frozen-4 and 1 more")


async def test_a_call_that_fails_at_once_leaves_nothing_that_nobody_awaits():
    closing = []
    channel = SimpleNamespace(add_on_close_callback=closing.append)

    def call(callback: object) -> None:
        raise pika.exceptions.ChannelWrongStateError("it is closing")

    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, about: errors.append(about))
    with pytest.raises(pika.exceptions.ChannelWrongStateError):
        await broker.rpc(channel, call)
    closing.pop()(channel, pika.exceptions.ChannelClosedByClient(200, "closed"))
    gc.collect()
    assert errors == []


def test_processes_begin_with_different_nodes_and_go_on_in_turn(metrics):
    urls = ["amqp://a", "amqp://b", "amqp://c"]
    orders = set()
    for _ in range(100):
        publisher = Publisher(Config(broker_url=urls), metrics)
        order = tuple(islice(publisher._brokers, 4))
        assert publisher.url == order[0] == order[3]
        orders.add("".join(url[-1] for url in order[:3]))
    assert orders == {"abc", "bca", "cab"}


async def test_a_connection_is_given_up_that_is_silent_at_two_looks_in_a_row(
    metrics, monkeypatch, caplog
):
    """On which no heartbeats come."""
    monkeypatch.setattr(publisher, "_LOOK_AGAIN", 0.0)
    looks, ends = [True, False, True, True], asyncio.Event()
    own = Publisher(Config(result_backend="redis://127.0.0.1:1"), metrics)
    own._lost = ends

    class Silent(SimpleNamespace):
        @property
        def silent(self) -> bool:
            return looks.pop(0)

        def abort(self, _: str) -> None:
            ends.set()

    own._connection = Silent()
    async with asyncio.timeout(30):
        await own._until_lost()
    assert not looks and "no heartbeats have come" in caplog.text


async def test_a_redis_is_no_broker_for_commands():
    url = "redis://127.0.0.1:1/0"
    with pytest.raises(GatewayError, match="broker_url leads to no AMQP broker"):
        async with connected_to_any(Config(broker_url=url, result_backend=url)):
            raise AssertionError
