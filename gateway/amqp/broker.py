"""Open a connection and channels to the broker, and declare missing queues.

It makes pika's callbacks awaitable.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pika
from kombu.utils.url import parse_url
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.channel import Channel

from gateway.amqp.connection import TurnConnection
from gateway.config.task import TaskSettings
from gateway.config.urls import TLS
from gateway.errors import BrokerUnavailable
from gateway.read_throttling import ReadThrottling

log = logging.getLogger(__name__)

#: The names of queues for replies begin with this; `appserver.reply_backend` replies only to these.
REPLY_PREFIX = "gateway.reply."
#: Seconds, unless the URL has a `heartbeat`; a broker that is silent for twice that is given up.
HEARTBEAT = 10
CONNECT_TIMEOUT = 5  # seconds for TCP, TLS, AMQP and the queues together
QUEUES_PATIENCE = 2  # seconds of that until what the broker says of queues is not waited for
_NAMED = 5  # queues in a line of the log
AT_ONCE = 16  # queues at the same time: each needs a channel, and some brokers allow only few
#: Errors of a connection and of opening it; a connector's error is not an AMQPError, and a
#: TimeoutError is an OSError.
ERRORS = (OSError, pika.exceptions.AMQPError, AMQPConnectorException)


async def open_connection(
    url: str, tls: TLS, on_closed: Callable[[Any, BaseException], None], throttling: ReadThrottling
) -> TurnConnection:
    """Connect to the broker at `url`; `on_closed` is called when the opened connection ends.

    Raises one of `ERRORS`.
    """
    opened: asyncio.Future[TurnConnection] = asyncio.get_running_loop().create_future()
    connection = TurnConnection(
        _parameters(url, tls),
        throttling,
        on_open_callback=lambda c: _resolve(opened, c),
        on_open_error_callback=lambda c, exc: _reject(opened, exc),
        on_close_callback=on_closed,
    )
    try:
        return await opened
    except BaseException:
        close(connection)
        raise


async def guarded(tell: Callable[[str, str], object], problem: str, step: Awaitable[None]) -> None:
    """Await `step`, which takes place again later; where the broker fails, `tell` the `problem`."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await step
    except (*ERRORS, BrokerUnavailable) as exc:
        tell(f"{problem}: %s", describe(exc))


def close(connection: TurnConnection, why: str = "Normal shutdown") -> None:
    """Begin to close `connection`, unless it is closing or closed already."""
    if not (connection.is_closing or connection.is_closed):
        connection.close(reply_text=why)


def _parameters(url: str, tls: TLS) -> pika.ConnectionParameters:
    # As kombu reads it: in `amqp://host//` and `amqp://host` the virtual host is `/`.
    parts = parse_url(url)
    secure = parts["transport"] == "amqps"
    return pika.ConnectionParameters(
        host=parts["hostname"] or "localhost",
        port=parts["port"] or (5671 if secure else 5672),
        virtual_host=parts["virtual_host"] or "/",
        credentials=pika.PlainCredentials(
            parts["userid"] or "guest", parts["password"] or "guest", erase_on_connect=True
        ),
        heartbeat=int(parts.get("heartbeat", HEARTBEAT)),
        socket_timeout=CONNECT_TIMEOUT / 3,  # for TCP to one address: a name may have several
        stack_timeout=CONNECT_TIMEOUT,
        ssl_options=pika.SSLOptions(tls.context(), parts["hostname"]) if secure else None,
        client_properties={"connection_name": "gateway"},
    )


async def open_channel(connection: TurnConnection) -> Channel:
    """Open a channel; raises pika's AMQPError where the connection is lost meanwhile."""
    opened = asyncio.get_running_loop().create_future()
    channel = connection.channel(on_open_callback=lambda c: _resolve(opened, c))
    channel.add_on_close_callback(lambda c, exc: _reject(opened, exc))
    try:
        return await opened
    except asyncio.CancelledError:
        # The caller, which waits no longer, cannot close it, and channels are limited in number.
        if not (channel.is_closing or channel.is_closed):
            channel.close()
        raise


@asynccontextmanager
async def own_channel(connection: TurnConnection) -> AsyncIterator[Channel]:
    """Yield a new channel, which is closed at the end; a refusal closes it before."""
    channel = await open_channel(connection)
    try:
        yield channel
    finally:
        if channel.is_open:
            channel.close()


async def rpc(channel: Channel, call: Callable[..., object]) -> Any:
    """Make a `call` on `channel` that takes a `callback`, and wait for the callback.

    Returns the callback's first argument, the broker's answer; None: it has none. Raises pika's
    AMQPError where the channel closes first.
    """
    done = asyncio.get_running_loop().create_future()
    channel.add_on_close_callback(lambda c, exc: _reject(done, exc))
    try:
        call(callback=lambda *frames: _resolve(done, frames[0] if frames else None))
    except pika.exceptions.AMQPError:
        done.cancel()  # nobody awaits it when the channel closes
        raise
    return await done


async def declare(
    channel: Channel, queue: str, arguments: dict[str, Any] | None
) -> tuple[int, int]:
    """Declare `queue` durable; None: only look at it. Either renews the expiry of a classic queue.

    Returns how many messages wait in it, and how many consumers it has. Raises pika's AMQPError; a
    refusal also closes the channel.
    """
    call = partial(
        channel.queue_declare, queue, passive=arguments is None, durable=True, arguments=arguments
    )
    found = (await rpc(channel, call)).method
    return found.message_count, found.consumer_count


async def declare_alone(
    connection: TurnConnection, queue: str, arguments: dict[str, Any] | None
) -> tuple[int, int]:
    """Do what `declare` does on a channel of its own, because a refusal closes the channel."""
    async with own_channel(connection) as channel:
        return await declare(channel, queue, arguments)


@asynccontextmanager
async def looking(
    connection: TurnConnection,
) -> AsyncIterator[Callable[[str], Awaitable[tuple[int, int]]]]:
    """Yield a function that looks at a queue as `declare` does, for many queues in turn.

    It has a channel of its own, and another one after each refusal.
    """
    channel = await open_channel(connection)

    async def look(queue: str) -> tuple[int, int]:
        nonlocal channel
        if not channel.is_open:
            channel = await open_channel(connection)
        return await declare(channel, queue, None)

    try:
        yield look
    finally:
        if channel.is_open:
            channel.close()


async def consume_replies(
    channel: Channel, on_message: Callable[..., None], tag: str | None = None
) -> str:
    """Declare a queue for replies, which ends with its connection, and consume it on `channel`.

    If somebody deletes the queue, the channel is closed. `tag` is the consumer's. Returns the
    queue's name. Raises pika's AMQPError, with 403 where the account may not do that.
    """
    name = f"{REPLY_PREFIX}{secrets.token_hex(8)}"
    await rpc(channel, partial(channel.queue_declare, name, exclusive=True, auto_delete=True))
    # Called if the queue is deleted: every reply would be lost without an error.
    gone = partial(channel.close, reply_text="the queue for replies is gone")
    channel.add_on_cancel_callback(lambda _frame: channel.is_open and gone())
    options = {"auto_ack": True, "exclusive": True, "consumer_tag": tag}
    await rpc(channel, partial(channel.basic_consume, name, on_message, **options))
    return name


async def ensure_queues(connection: TurnConnection, queues: dict[str, TaskSettings]) -> None:
    """Declare those of `queues` that are missing, unless their route says ``declare = false``.

    What takes longer than `QUEUES_PATIENCE` goes on beside what follows: one classic queue whose
    node is frozen would hold up all others.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def ensure(queue: str, task: TaskSettings) -> None:
        async with room:
            if await _declare(connection, queue, None):
                pass
            elif not task.declare:
                log.warning(
                    "the queue %s is missing; its route has `declare = false`: create it", queue
                )
            elif await _declare(connection, queue, task.arguments()):
                log.info("declared the queue %s, which no worker consumes yet", queue)
        unknown.remove(queue)

    unknown = {*queues}
    ensuring = asyncio.gather(*(ensure(queue, task) for queue, task in queues.items()))
    # It ends with the connection, whose loss is told by others.
    ensuring.add_done_callback(lambda future: future.cancelled() or future.exception())
    await asyncio.wait({ensuring}, timeout=QUEUES_PATIENCE)
    if ensuring.done():
        ensuring.result()
    else:
        log.warning("the broker does not tell yet whether these queues exist: %s", _some(unknown))


def _some(queues: Collection[str]) -> str:
    more = f" and {len(queues) - _NAMED} more" if len(queues) > _NAMED else ""
    return ", ".join(sorted(queues)[:_NAMED]) + more


async def missing_exchanges(connection: TurnConnection, tasks: Sequence[TaskSettings]) -> set[str]:
    """Return the exchanges of tasks that the broker does not have; the gateway declares none.

    A message to a missing exchange would close the channel of all messages. Raises one of `ERRORS`.
    """
    names = {task.exchange for task in tasks if task.exchange is not None}
    found = {name: await exists(connection, name) for name in sorted(names)}
    return {name for name, exists in found.items() if not exists}


async def exists(connection: TurnConnection, exchange: str) -> bool:
    """Tell whether the broker has an exchange. Raises one of `ERRORS`."""
    try:
        async with own_channel(connection) as channel:
            await rpc(channel, partial(channel.exchange_declare, exchange, passive=True))
    except pika.exceptions.ChannelClosedByBroker as exc:
        if exc.reply_code != 404:
            log.warning("the broker refuses the exchange %s: %s", exchange, exc.reply_text)
        return False
    return True


async def _declare(
    connection: TurnConnection, queue: str, arguments: dict[str, Any] | None
) -> bool:
    """Return whether the queue exists as declared.

    A refusal is logged, except that of a passive declaration of a missing queue.
    """
    try:
        await declare_alone(connection, queue, arguments)
    except pika.exceptions.ChannelClosedByBroker as exc:
        if not (arguments is None and exc.reply_code == 404):
            log.warning("the broker refuses the queue %s: %s", queue, exc.reply_text)
        return False
    return True


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any], exc: BaseException) -> None:
    if not future.done():
        future.set_exception(exc)


def _parts(exc: BaseException) -> list[Any]:
    return [*exc.args, *getattr(exc, "exceptions", ()), getattr(exc, "exception", None)]


def describe(exc: BaseException) -> str:
    """Describe `exc` by its innermost error, because pika wraps the useful one in others."""
    while inner := [e for e in _parts(exc) if isinstance(e, BaseException)]:
        exc = inner[-1]
    text = str(exc)
    if isinstance(exc, ssl.SSLError) and exc.reason == "WRONG_VERSION_NUMBER":
        text = "this port has no TLS: use amqp:// instead of amqps://, or TLS's port, often 5671"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
