"""pika: all connections on one event loop, with callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from loadtest.lab.consumers.drivers import Broker, Ending, Run
from loadtest.lab.consumers.part import Part


def consume(broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None:
    """Consume with pika on asyncio's loop."""
    asyncio.run(_consume(broker, parts, prefetch, run))


async def _consume(broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None:
    ending = Ending(parts)
    channels = [
        await open_limited(await connect(broker, ending.lost), prefetch, ending) for _ in parts
    ]
    run.begin()
    for channel, part in zip(channels, parts, strict=True):
        on_message = partial(_on_message, ending, part)
        for queue in part.queues:
            channel.basic_consume(queue, on_message)
    await ending.wait()
    await close(channels)
    run.end()


def _on_message(
    ending: Ending, part: Part, channel: Channel, method: Any, _properties: Any, body: bytes
) -> None:
    if part.due(body):
        begin = perf_counter()
        channel.basic_ack(method.delivery_tag, part.multiple)
        ending.acknowledged(part, begin)


async def connect(broker: Broker, lost: Callable[[Any, Any], object]) -> AsyncioConnection:
    """Open a connection, whose end `lost` is told."""
    opened = asyncio.get_running_loop().create_future()
    AsyncioConnection(
        pika.ConnectionParameters(
            host=broker["hostname"],
            port=broker["port"],
            virtual_host=broker["virtual_host"],
            credentials=pika.PlainCredentials(broker["userid"], broker["password"]),
        ),
        on_open_callback=opened.set_result,
        on_open_error_callback=lambda _, error: opened.set_exception(error),
        on_close_callback=lost,
    )
    return await opened


async def open_limited(connection: Any, prefetch: int, ending: Ending) -> Channel:
    """Open a channel of `connection` whose consumers have a limit."""
    channel = await called(lambda done: connection.channel(on_open_callback=done))
    channel.add_on_close_callback(ending.lost)
    await called(lambda done: channel.basic_qos(prefetch_count=prefetch, callback=done))
    return channel


async def called(call: Callable[[Callable[[Any], None]], object]) -> Any:
    """Return what a callback gets, with which `call` is called."""
    done = asyncio.get_running_loop().create_future()
    call(done.set_result)
    return await done


async def close(channels: Sequence[Channel]) -> None:
    """Close `channels` and wait until the broker has closed them as well."""
    closed = []
    for channel in channels:
        done = asyncio.get_running_loop().create_future()
        channel.add_on_close_callback(lambda *_, done=done: done.set_result(None))
        channel.close()
        closed.append(done)
    await asyncio.gather(*closed)
