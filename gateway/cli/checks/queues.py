"""Check whether the routes' queues exist, are consumed, and are as the routes declare them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.amqp.reply_channel import connected_to_any
from gateway.cli.checks.finding import (
    LIMIT,
    Finding,
    counted,
    fail,
    listed,
    ok,
    ranged,
    skipped,
    warn,
)
from gateway.config.settings import Config
from gateway.config.task import TaskSettings, fair_name_of, worker_command
from gateway.errors import GatewayError
from gateway.similar import similar

#: The option of `gateway check` that deletes a queue.
DELETE = "--delete-queue"
#: RabbitMQ's refusal of a declaration: the queue's present value is `none`, or a text with a type.
_INEQUIVALENT = re.compile(
    r"inequivalent arg '([^']+)' for queue .*: received .* but current is "
    r"(?:the value )?(.*?)(?: of type '(\w+)')?$"
)
_IN_VHOST = re.compile(r"in vhost '([^']*)'")

#: The remedy for workers that do not know that a queue is a quorum queue.
_STOCK = (
    "; it is a quorum queue by the default of its virtual host or node, and a stock worker cannot "
    "begin to consume it (540, global qos): call appserver.setup(app) in its app, or set "
    "task_default_queue_type and task_create_missing_queue_type to 'quorum' there (from Celery 5.6)"
)
_COUNTDOWN = (
    "it is a quorum queue by the default of its virtual host or node: a worker that holds as many "
    "messages with a countdown as its prefetch limit takes no more"
)
_CLASSIC = "leave countdown out of the route, or use a virtual host whose default type is classic"


class Seen(NamedTuple):
    """The broker's counts for a queue: its consumers, and the messages that wait for them."""

    consumers: int
    messages: int


class Inspected(NamedTuple):
    """What the broker has told of a queue.

    ``refusal``: why it has not told of the queue, or why it refuses the route's declaration.
    ``quorum``: whether it is a quorum queue although the route does not say so.
    """

    seen: Seen | None
    refusal: ChannelClosedByBroker | None = None
    quorum: bool = False


async def inspect(connection: TurnConnection, config: Config) -> dict[str, Inspected]:
    """Return what the broker tells of each queue of the routes.

    Raises one of `broker.ERRORS` where the connection is lost.
    """
    room = asyncio.Semaphore(broker.AT_ONCE)

    async def one(queue: str, task: TaskSettings) -> Inspected:
        async with room:
            return await _inspect(connection, queue, task)

    tasks = config.tasks_by_queue
    inspected = await asyncio.gather(*(one(*each) for each in tasks.items()))
    return dict(zip(tasks, inspected, strict=True))


def grouped(config: Config) -> list[tuple[TaskSettings, list[str]]]:
    """Return the queues that share a line, with their task.

    All fair queues of a route share one. Each other queue has its own.
    """
    tasks: dict[tuple[str, ...], TaskSettings] = {}
    for queue, task in config.tasks_by_queue.items():
        tasks[(queue,) if task.fair_by is None else tuple(task.queue_names)] = task
    return [(task, list(names)) for names, task in tasks.items()]


def judge(
    config: Config, inspected: Mapping[str, Inspected], consumed: Collection[str] = ()
) -> list[Finding]:
    """Return the findings about the queues that need exist now.

    Where a queue has no worker, one with a similar name is named: of those that the routes name and
    that exist, and of those `consumed` by workers. The broker does not list its queues over AMQP.
    """
    existing = {queue for queue, it in inspected.items() if it.seen} | set(consumed)
    return [
        finding
        for task, names in grouped(config)
        for finding in _judge(config, task, {name: inspected[name] for name in names}, existing)
    ]


def dynamic(config: Config) -> list[Finding]:
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


async def exchanges(connection: TurnConnection, config: Config) -> list[Finding]:
    """Return the findings about the routes' exchanges; their bindings cannot be seen over AMQP.

    Raises one of `broker.ERRORS` where the connection is lost.
    """
    missing = await broker.missing_exchanges(connection, config.tasks)
    named = sorted({task.exchange for task in config.tasks if task.exchange is not None})
    remedy = "create it with its bindings, for example in the app that consumes from them"
    return [
        fail(f"exchange {name}", "there is no such exchange", remedy)
        if name in missing
        else ok(f"exchange {name}", "it exists; its bindings are not checked")
        for name in named
    ]


async def _inspect(connection: TurnConnection, queue: str, task: TaskSettings) -> Inspected:
    try:
        messages, consumers = await broker.declare_alone(connection, queue, None)
    except ChannelClosedByBroker as exc:
        return Inspected(None, exc)
    seen = Seen(consumers, messages)
    if task.dynamic:
        return Inspected(seen)
    try:
        # Only if the queue exists, because a check must not create it.
        await broker.declare_alone(connection, queue, task.arguments())
    except ChannelClosedByBroker as exc:
        return Inspected(seen, exc)
    return Inspected(seen, quorum=await _is_quorum(connection, queue, task))


async def _is_quorum(connection: TurnConnection, queue: str, task: TaskSettings) -> bool:
    """Tell whether a queue is one by default: only a declaration with another type shows that."""
    classic = {"x-queue-type": "classic"}
    if "x-queue-type" in task.arguments():
        return False
    try:
        await broker.declare_alone(connection, queue, {**task.arguments(), **classic})
        return False
    except ChannelClosedByBroker as exc:
        differs = _INEQUIVALENT.search(exc.reply_text)
        return differs is not None and differs[2].strip("'") == "quorum"


def _judge(
    config: Config, task: TaskSettings, inspected: dict[str, Inspected], existing: set[str]
) -> list[Finding]:
    """Return the findings about queues of `task`: one for all queues that have the same problem."""
    routes, start = _routes(config, inspected), _start(task, list(inspected), existing)
    seen = {queue: it.seen for queue, it in inspected.items() if it.seen}
    idle = {queue: it for queue, it in seen.items() if not it.consumers}
    found = []
    refused: dict[tuple[bool, int], dict[str, ChannelClosedByBroker]] = {}
    for queue, it in inspected.items():
        if it.refusal:
            refused.setdefault((queue in seen, it.refusal.reply_code), {})[queue] = it.refusal
    for (exists, _), alike in refused.items():
        if exists:
            found += _other(task, alike)
        else:
            found.append(_refused(start, alike, routes))
    if idle:
        these = "them" if len(idle) > 1 else "it"
        waiting = f", with {_waiting(idle)}" if any(it.messages for it in idle.values()) else ""
        problem = f"no worker consumes {these}{waiting}; {routes} {these}"
        quorum = any(inspected[queue].quorum for queue in idle)
        start = _start(task, list(inspected), existing, f", and type: gateway check {DELETE} {{}}")
        found.insert(0, fail(f"queue {ranged(idle)}", problem, start + _STOCK * quorum))
    well = {queue: it for queue, it in seen.items() if queue not in idle}
    if task.countdown and (by_default := [queue for queue in well if inspected[queue].quorum]):
        found.append(fail(f"queue {ranged(by_default)}", _COUNTDOWN, _CLASSIC))
    if well and not found:
        consumers = counted(sum(it.consumers for it in well.values()), "consumer")
        found.append(ok(f"queue {ranged(well)}", f"{consumers}, {_waiting(well)}"))
    return found


def _routes(config: Config, queues: Iterable[str]) -> str:
    """Return "the route /a names", or its plural; empty: none names one of these queues."""
    by_queue = config.paths_by_queue
    paths = sorted({path for queue in queues for path in by_queue.get(queue, ())})
    if not paths:
        return ""
    return f"the route{'s' * (len(paths) > 1)} {listed(paths)} name{'s' * (len(paths) == 1)}"


def _waiting(seen: Mapping[str, Seen]) -> str:
    return f"{counted(sum(it.messages for it in seen.values()), 'message')} waiting"


def how_to_start(queues: Iterable[str], fair: str) -> str:
    """Return how a worker of these queues is started; `fair` is its GATEWAY_FAIR_QUEUES."""
    text = f"{worker_command(queues)} (APP: yours, or appserver)"
    return f"{text}, with GATEWAY_FAIR_QUEUES={fair}" if fair else text


def _start(task: TaskSettings, names: list[str], existing: set[str], remove: str = "") -> str:
    """Return the remedy for queues without a worker; `existing` are queues that exist.

    `remove` says how to remove a queue that was created by a typing error.
    """
    own, fair = task.consumed_as if task.fair_by else names, task.fair_setting
    text = how_to_start(own, fair)
    if fair and not task.queues:
        text += f" or appserver.setup(app, fair={{{task.queue!r}: {task.fair_queues}}})"
    others = {fair_name_of(name) for name in existing - set(task.queue_names)} - set(own)
    near = similar(own[0], sorted(others))
    text = f"start a worker: {text}"
    if near:
        remedy = f"Then correct `queue` there{remove.format(names[0])}"
        text = f"did you mean {near}? {remedy}. Otherwise {text}"
    return text


async def delete(config: Config, name: str) -> Finding:
    """Delete the queue `name`, if no route names it, no worker consumes it, and it is empty."""
    check = f"queue {name}"
    if routes := _routes(config, [name]):
        remedy = "correct `queue` there, and reload the gateway (SIGHUP) first"
        return fail(check, f"not deleted: {routes} it, so it would be declared again", remedy)
    if not config.amqp:
        problem = "not deleted: the broker is not an AMQP one, and has no queues"
        return fail(check, problem, "correct broker_url (GATEWAY_BROKER_URL, --broker)")
    try:
        async with connected_to_any(config) as connection, asyncio.timeout(LIMIT):
            return await remove(connection, name)
    except GatewayError as exc:
        return fail(check, f"not deleted: {exc}", "")


async def remove(connection: TurnConnection, name: str) -> Finding:
    """Delete the queue `name`, if it is empty and no worker consumes it."""
    check = f"queue {name}"
    try:
        messages, consumers = await broker.declare_alone(connection, name, None)
        if messages or consumers:
            has = f"{counted(consumers, 'consumer')}, {counted(messages, 'message')} waiting"
            remedy = f"let a worker run what waits: {worker_command([name])}"
            remedy = "stop what consumes it" if consumers else remedy
            return fail(check, f"not deleted: it has {has}", remedy)
        channel = await broker.open_channel(connection)
        # The broker looks again, as messages and consumers may have come since.
        await broker.rpc(channel, partial(channel.queue_delete, name, True, True))
    except ChannelClosedByBroker as exc:
        return fail(check, f"not deleted: {exc.reply_text}", "")
    except ConnectionClosedByBroker as exc:
        if exc.reply_code != 540:
            raise
        # RabbitMQ has no such condition for quorum queues, and without a leader it counts nothing.
        remedy = f"it was empty, and nothing consumed it: {_delete(name, exc)}"
        return fail(check, f"not deleted: {exc.reply_text}", remedy)
    return ok(check, "deleted: it was empty, and no worker consumed it")


def _refused(start: str, refused: Mapping[str, ChannelClosedByBroker], routes: str) -> Finding:
    """Return the finding about queues of which the broker told nothing, for the same reason."""
    name, exc = f"queue {ranged(refused)}", next(iter(refused.values()))
    if exc.reply_code == 404:
        there, them = "is no such queue", "it"
        if len(refused) > 1:
            there, them = "are no such queues", "them"
        return fail(name, f"there {there}; {routes} {them}", start)
    if exc.reply_code == 405:
        remedy = "name another queue in the route; only one connection can use this one"
        return fail(name, f"it is exclusive to another connection: {exc.reply_text}", remedy)
    return skipped(name, f"not checked: {exc.reply_text}")


def _other(task: TaskSettings, refused: Mapping[str, ChannelClosedByBroker]) -> list[Finding]:
    """Return findings about differences between queues and the route's declaration.

    Of several queues, the difference is that of the first one.
    """
    name, exc = f"queue {ranged(refused)}", next(iter(refused.values()))
    if exc.reply_code != 406:
        why = "its type and arguments were not compared, as the account may not declare it"
        return [skipped(name, f"{why}: {exc.reply_text}")]
    differs = _INEQUIVALENT.search(exc.reply_text)
    argument, current, kind = differs.groups("") if differs else ("", "", "")
    if not task.declare and argument not in ("x-queue-type", "durable", "auto_delete"):
        return []  # with `declare = false` the route need not know the other arguments
    problem = f"it is not what the route declares: {exc.reply_text}"
    if not task.declare and argument != "x-queue-type":
        return [warn(name, problem, "what was accepted is lost with it; declare it durable")]
    delete = _delete(next(iter(refused)), exc)
    return [fail(name, problem, _adapt(list(refused), argument, current.strip("'"), kind, delete))]


def _delete(name: str, exc: ChannelClosedByBroker | ConnectionClosedByBroker) -> str:
    """Return the command that deletes a queue, of which the broker says in which vhost it is."""
    vhost = _IN_VHOST.search(exc.reply_text)
    where = f" -p '{vhost[1]}'" if vhost and vhost[1] != "/" else ""
    return f"rabbitmqctl delete_queue{where} {name}"


def _adapt(names: list[str], argument: str, current: str, kind: str, delete: str) -> str:
    """Return the remedy for a difference, where the queues' argument has the value `current`."""
    delete = f"stop its workers, and delete it when it is empty: {delete} --if-empty"
    if len(names) > 1:
        delete += f" (and so each of {ranged(names)})"
    if not argument.startswith("x-"):
        return f"name another queue in the route, or {delete}"
    if names == ["celery"]:
        kind = ' and queue_type = "quorum"' if current == "quorum" else ""
        return f"set declare = false{kind} in the route: the app of its workers declares it"
    if argument == "x-queue-type":
        own = "classic" if current == "none" else current
        return f'set queue_type = "{own}" in the route, or {delete}'
    if current == "none":
        return f"take {argument} out of queue_arguments in the route, or {delete}"
    value = f'"{current}"' if kind == "longstr" else current
    return f"add {argument} = {value} to queue_arguments in the route, or {delete}"
