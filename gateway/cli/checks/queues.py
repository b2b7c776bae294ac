"""Check whether the routes' queues exist, are consumed, and are as the routes declare them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from pika.exceptions import ChannelClosedByBroker

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.cli.checks import amqp
from gateway.cli.checks.finding import Finding, counted, fail, ok, skipped
from gateway.config.settings import Config
from gateway.config.task import TaskSettings

_AT_ONCE = 16  # channels at the same time; some brokers allow only few
_START = "start a worker: celery -A APP worker -Q {} (APP: yours, or appserver)"
#: RabbitMQ's refusal of a declaration: the queue's present value is `none`, or a text with a type.
_INEQUIVALENT = re.compile(
    r"inequivalent arg '([^']+)' for queue .*: received .* but current is "
    r"(?:the value )?(.*?)(?: of type '(\w+)')?$"
)


@dataclass(slots=True, frozen=True)
class Seen:
    """The broker's counts for a queue: its consumers, and the messages that wait for them."""

    consumers: int
    messages: int


async def inspect(
    connection: TurnConnection, config: Config
) -> tuple[dict[str, Seen], list[Finding]]:
    """Return the routes' queues that exist, and the findings about all of them.

    Raises one of `broker.ERRORS` where the connection is lost.
    """
    room = asyncio.Semaphore(_AT_ONCE)
    # A route knows the arguments of its queues, but not those of a static one beside dynamic ones.
    ordered = sorted(config.tasks, key=lambda task: not task.dynamic)
    tasks = {queue: task for task in ordered for queue in task.queue_names}

    async def one(queue: str, task: TaskSettings) -> tuple[Seen | None, list[Finding]]:
        async with room:
            return await _inspect(connection, queue, task)

    looked = await asyncio.gather(*(one(*each) for each in sorted(tasks.items())))
    seen = {queue: it for queue, (it, _) in zip(sorted(tasks), looked, strict=True) if it}
    found = [finding for _, found in looked for finding in found]
    return seen, [*found, *_dynamic(config), *await _exchanges(connection, config)]


def _dynamic(config: Config) -> list[Finding]:
    """Return the findings about dynamic queues, of which none need exist now."""
    routes = {route.queue: route for route in config.routes if route.dynamic}
    return [
        ok(
            f"queue {name}",
            f"at most {counted(config.processes * route.queue_limit, 'queue')}, on first use; "
            f"the workers on {route.static_queue} are told to consume them",
        )
        for name, route in sorted(routes.items())
    ]


async def _exchanges(connection: TurnConnection, config: Config) -> list[Finding]:
    """Return the findings about the routes' exchanges; their bindings cannot be seen over AMQP."""
    missing = await broker.missing_exchanges(connection, config.tasks)
    named = sorted({task.exchange for task in config.tasks if task.exchange is not None})
    remedy = "create it with its bindings, for example in the app that consumes from them"
    return [
        fail(f"exchange {name}", "there is no such exchange", remedy)
        if name in missing
        else ok(f"exchange {name}", "it exists; its bindings are not checked")
        for name in named
    ]


async def _inspect(
    connection: TurnConnection, queue: str, task: TaskSettings
) -> tuple[Seen | None, list[Finding]]:
    name = f"queue {queue}"
    try:
        declared = await amqp.declare(connection, queue, passive=True)
    except ChannelClosedByBroker as exc:
        return None, [_refused(name, queue, task, exc)]
    seen = Seen(declared.consumer_count, declared.message_count)
    found = []
    if not seen.consumers:
        waiting = f" of its {counted(seen.messages, 'message')}" if seen.messages else ""
        found.append(fail(name, f"no worker consumes it{waiting}", _start(queue, task)))
    if task.dynamic:
        return seen, found or [_counts(name, seen)]
    try:
        # Only if the queue exists, because a check must not create it.
        await amqp.declare(connection, queue, durable=True, arguments=task.arguments())
    except ChannelClosedByBroker as exc:
        found += _other(name, queue, task, exc)
    return seen, found or [_counts(name, seen)]


def _counts(name: str, seen: Seen) -> Finding:
    detail = f"{counted(seen.consumers, 'consumer')}, {counted(seen.messages, 'message')} waiting"
    return ok(name, detail)


def _start(queue: str, task: TaskSettings) -> str:
    """Return the remedy for a queue without a worker."""
    if task.fair_by is None:
        return _START.format(queue)
    if task.queues:
        return f"{_START.format(queue)}, with GATEWAY_FAIR_QUEUES={','.join(task.queues)}"
    return (
        f"{_START.format(task.queue)}, with GATEWAY_FAIR_QUEUES={task.queue}:{task.fair_queues} "
        f"or appserver.setup(app, fair={{{task.queue!r}: {task.fair_queues}}})"
    )


def _refused(name: str, queue: str, task: TaskSettings, exc: ChannelClosedByBroker) -> Finding:
    if exc.reply_code == 404:
        return fail(name, "there is no such queue", _start(queue, task))
    if exc.reply_code == 405:
        remedy = "name another queue in the route; only one connection can use this one"
        return fail(name, f"it is exclusive to another connection: {exc.reply_text}", remedy)
    return skipped(name, f"not checked: {exc.reply_text}")


def _other(name: str, queue: str, task: TaskSettings, exc: ChannelClosedByBroker) -> list[Finding]:
    """Return findings about differences between the queue and the route's declaration."""
    if exc.reply_code != 406:
        why = "its type and arguments were not compared, as the account may not declare it"
        return [skipped(name, f"{why}: {exc.reply_text}")]
    differs = _INEQUIVALENT.search(exc.reply_text)
    argument, current, kind = differs.groups("") if differs else ("", "", "")
    if not task.declare and argument != "x-queue-type":
        return []  # with `declare = false` the route need not know the other arguments
    problem = f"it is not what the route declares: {exc.reply_text}"
    return [fail(name, problem, _adapt(queue, argument, current.strip("'"), kind))]


def _adapt(queue: str, argument: str, current: str, kind: str) -> str:
    """Return the remedy for a difference, where the queue's argument has the value `current`."""
    delete = f"delete it once it is empty: rabbitmqctl delete_queue {queue} --if-empty"
    if queue == "celery" or not argument.startswith("x-"):
        return f"name another queue in the route, or {delete}"
    if argument == "x-queue-type":
        own = "classic" if current == "none" else current
        return f'set queue_type = "{own}" in the route, or {delete}'
    if current == "none":
        return f"take {argument} out of queue_arguments in the route, or {delete}"
    value = f'"{current}"' if kind == "longstr" else current
    return f"add {argument} = {value} to queue_arguments in the route, or {delete}"
