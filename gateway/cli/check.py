"""Check config, broker, results, worker and task: one line each, with the fix."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import RedisError

from gateway import result_store
from gateway.cli.serve import configure
from gateway.config import Config
from gateway.sources import find
from gateway.strategies.celery_client import CeleryClient

TIMEOUT = 3.0  # seconds for one answer


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="gateway.toml")
    parser.add_argument("--strategy", help="as for serve")
    parser.add_argument("--broker", metavar="URL", dest="broker_url", help="as for serve")
    parser.add_argument("--result-backend", metavar="URL", help="as for serve")


def run(arguments: argparse.Namespace) -> int:
    config = configure(arguments)
    print(f"ok    config: {len(config.routes)} route(s), strategy {config.strategy}")
    well = True
    for place, problem in _checks(config):
        print(f"{'FAIL' if problem else 'ok':<5} {place}{': ' + problem if problem else ''}")
        well = well and not problem
    return 0 if well else 1


def _checks(config: Config) -> Iterator[tuple[str, str]]:
    """Yield what was looked at, and what is wrong with it and how to mend it."""
    for name in config.sources:
        yield f"source {name}{_protection(config, name)}", ""
    url = config.brokers[0]
    client = CeleryClient(config)
    connection = client.app.connection_for_write()
    try:
        connection.ensure_connection(max_retries=len(config.brokers) - 1, timeout=TIMEOUT)
    except (OperationalError, *connection.connection_errors, *connection.channel_errors) as exc:
        yield (
            f"broker {maybe_sanitize_url(url)}",
            f"{exc}; start it, or set GATEWAY_BROKER_URL",
        )
        return
    yield f"broker {maybe_sanitize_url(url)}", ""
    if config.results:
        yield f"results {result_store.without_password(config.results)}", asyncio.run(_ping(config))
    if config.amqp:
        for queue in config.queues:
            yield f"worker on the queue {queue}", _consumers(connection, queue)
    workers = client.app.control.inspect(timeout=TIMEOUT, connection=connection)
    registered = workers.registered()
    for task in sorted({route.task for route in config.routes}):
        yield f"task {task}", _registered(registered, task)
    if config.strategy == "pika" and registered:
        settings = workers.conf() or {}
        yield "replies over AMQP", _replies(settings)
        if any(config.joins(r) or r.answer != "wait" or r.prefer for r in config.routes):
            yield "results stored beside", _stores(settings)
    connection.release()


def _protection(config: Config, name: str) -> str:
    """Say what the source's signature leaves open, where it is less than usual."""
    options = config.sources[name]
    source = find(options.scheme)(options, config.public_url or "")
    notes = []
    if not source.covers_body:
        notes.append("the body is not signed: who sees a request can send another with its proof")
    if options.tolerance == 0:
        notes.append("tolerance 0: a recorded request stays good until the secret is changed")
    return "".join(f"; {note}" for note in notes).replace(";", ":", 1)


async def _ping(config: Config) -> str:
    client = result_store.connect(config)
    try:
        async with asyncio.timeout(TIMEOUT):
            await client.ping()
        return ""
    except (RedisError, OSError) as exc:
        return f"{type(exc).__name__}: {exc}; start it, or set GATEWAY_RESULT_BACKEND"
    finally:
        await client.aclose()


def _consumers(connection: Connection, queue: str) -> str:
    with connection.channel() as channel:
        try:
            found = channel.queue_declare(queue, passive=True)
        except connection.channel_errors as exc:
            return f"{exc}; the gateway declares it when it starts, unless declare = false"
    if found.consumer_count:
        return ""
    return f"nobody consumes: celery -A appserver worker -Q {queue}"


def _replies(settings: dict[str, dict[str, object]]) -> str:
    """Say which workers would leave `pika` without an answer."""
    silent = [
        worker
        for worker, conf in settings.items()
        if not re.search(r"reply_backend|^rpc", str(conf.get("result_backend")))
    ]
    if not silent:
        return ""
    return f"{', '.join(silent)}: needs result_backend appserver.reply_backend or rpc://"


def _stores(settings: dict[str, dict[str, object]]) -> str:
    """Say which workers keep nothing for who joins, or asks later."""
    keepers = re.compile(r"^(?!rpc|disabled)(?!.*Storeless)").match
    forgetful = [
        worker for worker, conf in settings.items() if not keepers(str(conf.get("result_backend")))
    ]
    if not forgetful:
        return ""
    return (
        f"{', '.join(forgetful)}: stores nothing, and routes with an identity or a later answer "
        "need it; set result_backend appserver.reply_backend:ReplyBackend+redis://..."
    )


def _registered(registered: dict[str, list[str]] | None, task: str) -> str:
    if not registered:
        return "no worker answers: start one, or give it its remote control back"
    if any(task in name.split() for names in registered.values() for name in names):
        return ""
    others = sorted({name for names in registered.values() for name in names})
    return f"no worker has it; they have {', '.join(others)}"
