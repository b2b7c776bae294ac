"""List what this deployment has left in Redis and RabbitMQ, and with --yes remove it."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from pika.exceptions import ChannelClosedByBroker

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.amqp.remote_control import GATEWAYS
from gateway.amqp.reply_channel import connected_to_any
from gateway.amqp.workers import DYNAMIC
from gateway.claims.claim import CLAIM_KEY, FAILURE_KEY, HANDED_OVER, TAGGED_KEY
from gateway.cli import add_settings, configuration
from gateway.cli.checks import queues
from gateway.cli.checks.finding import OK, counted
from gateway.config.settings import Config
from gateway.errors import GatewayError, StoreError
from gateway.history.gateways import SILENT, running
from gateway.stores import result_store
from gateway.stores.state_store import StateStore

#: What follows the prefix in the names of the keys, and what such keys are.
_KEYS = {
    CLAIM_KEY: "claims",
    TAGGED_KEY: "claims",
    HANDED_OVER: "claims",
    FAILURE_KEY: "failures of tasks",
    "also:": "further tasks",
    "{late}:": "late answers",
    "{journal}:": "the journal",
}
#: The exchanges of gateways and of the app server, and Celery's own queue.
_EXCHANGES, _CELERYS = (GATEWAYS, DYNAMIC, "gateway.dead"), "celery"
_RUNS = (
    "nothing is removed while a gateway runs: {}; stop it, and type this again after "
    f"{SILENT:g} s"
)
_AT_ONCE = 500  # keys that are removed together


class Left(NamedTuple):
    """What is left: a text, and what removes it, which returns why it could not; None: it stays."""

    what: str
    remove: Callable[[], Awaitable[str]] | None = None


def options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, "config", "broker", "result_backend")
    parser.add_argument("--yes", action="store_true", help="remove it; otherwise it is only listed")


def run(arguments: argparse.Namespace) -> int:
    asyncio.run(_run(configuration.configure(arguments), arguments.yes))
    return 0


async def _run(config: Config, yes: bool) -> None:
    async for left in _left(config):
        problem = await left.remove() if left.remove and yes else ""
        word = "keep" if left.remove is None or problem else "removed" if yes else "remove"
        print(f"{word:<8}{left.what}{': ' if problem else ''}{problem}")
    if not yes:
        print("Nothing was removed. `gateway uninstall --yes` removes what `remove` stands before.")


async def _left(config: Config) -> AsyncIterator[Left]:
    """Yield all that is left. Raises `GatewayError` while a gateway of the deployment runs."""
    if config.state:
        try:
            async with StateStore.opened(config) as store:
                if found := await running(config, store.run):
                    raise GatewayError(_RUNS.format("; ".join(found)))
                for kind, keys in (await _keys(config, store)).items():
                    server = result_store.without_password(config.state)
                    what = f"{counted(len(keys), 'key')} of {server}: {kind}"
                    yield Left(what, partial(_forget, store, keys))
        except StoreError as exc:
            raise result_store.no_answer(config, config.state, exc) from exc
    if config.amqp:
        async with connected_to_any(config) as connection:
            for name in config.queues:
                if (left := await _queue(connection, config, name)) is not None:
                    yield left
            for name in _EXCHANGES:
                if await broker.exists(connection, name):
                    remove = partial(_delete_exchange, connection, name)
                    yield Left(f"exchange {name}, unless something is bound to it", remove)
    if config.archive:
        url = result_store.without_password(config.archive)
        yield Left(f"archive {url}: your record; remove the file, or the tables in its schema")
    if config.uds and os.path.exists(config.uds):
        yield Left(f"file {config.uds}: the gateway makes it anew")
    results = f"keys {result_store.key_prefix(config)}*: results"
    yield Left(f"{results}, which end by themselves after the workers' result_expires")


async def _keys(config: Config, store: StateStore) -> dict[str, list[bytes]]:
    """Return the keys of the deployment, by what they are."""
    found: dict[str, list[bytes]] = {}
    others = tuple(each.encode() for each in _KEYS)
    for name, kind in _KEYS.items():
        begin = config.prefix + name
        async for key in store.keys(begin):
            # Of a deployment whose own prefix is `begin`, or so it looks: a claim ends by itself.
            if not key.removeprefix(begin.encode()).startswith(others):
                found.setdefault(kind, []).append(key)
    return found


async def _forget(store: StateStore, keys: list[bytes]) -> str:
    for first in range(0, len(keys), _AT_ONCE):
        batch = keys[first : first + _AT_ONCE]
        try:
            await asyncio.gather(*(store.run("UNLINK", key) for key in batch))
        except StoreError as exc:
            return str(exc)
    return ""


async def _queue(connection: TurnConnection, config: Config, name: str) -> Left | None:
    with suppress(ChannelClosedByBroker):
        messages, consumers = await broker.declare_alone(connection, name, None)
        what = f"queue {name}: {counted(messages, 'message')}, {counted(consumers, 'consumer')}"
        if name == _CELERYS:
            return Left(f"{what}; any Celery client may use it")
        if not all(task.declare for task in config.tasks if name in task.queue_names):
            return Left(f"{what}; not declared by the gateway (`declare = false`)")
        if messages or consumers:
            return Left(f"{what}; stop its workers when it is empty, and then begin again")

        async def remove() -> str:
            # On a connection of its own: the broker ends it if this is a quorum queue, of which it
            # cannot delete only an empty one.
            async with connected_to_any(config) as own:
                finding = await queues.remove(own, name)
            return "" if finding.status == OK else f"{finding.problem}; {finding.remedy}"

        return Left(what, remove)
    return None


async def _delete_exchange(connection: TurnConnection, name: str) -> str:
    channel = await broker.open_channel(connection)
    try:
        await broker.rpc(channel, partial(channel.exchange_delete, name, if_unused=True))
    except ChannelClosedByBroker as exc:
        return str(exc.reply_text)
    channel.close()
    return ""
