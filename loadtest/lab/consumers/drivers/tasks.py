"""aio-pika, on aiormq: all connections on one event loop, with an asyncio task for each message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import perf_counter

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from loadtest.lab.consumers.drivers import Broker, Ending, Run
from loadtest.lab.consumers.part import Part


def consume(broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None:
    """Consume with aio-pika on asyncio's loop."""
    asyncio.run(_consume(broker, parts, prefetch, run))


async def _consume(broker: Broker, parts: Sequence[Part], prefetch: int, run: Run) -> None:
    ending = Ending(parts)
    channels = [await _open(broker, prefetch, ending) for _ in parts]
    run.begin()
    await asyncio.gather(*map(partial(_subscribe, ending), parts, channels))
    await ending.wait()
    await asyncio.gather(*(channel.close() for channel in channels))
    run.end()


async def _open(broker: Broker, prefetch: int, ending: Ending) -> AbstractChannel:
    link = await aio_pika.connect(
        host=broker["hostname"],
        port=broker["port"],
        login=broker["userid"],
        password=broker["password"],
        virtualhost=broker["virtual_host"],
    )
    channel = await link.channel(publisher_confirms=False)
    channel.close_callbacks.add(ending.lost)
    await channel.set_qos(prefetch)
    return channel


async def _subscribe(ending: Ending, part: Part, channel: AbstractChannel) -> None:
    async def on_message(message: AbstractIncomingMessage) -> None:
        if part.due(message.body):
            begin = perf_counter()
            await message.ack(part.multiple)
            ending.acknowledged(part, begin)

    for name in part.queues:
        queue = await channel.get_queue(name, ensure=False)
        await queue.consume(on_message)
