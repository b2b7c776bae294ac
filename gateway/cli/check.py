"""Check config, broker, results, worker and task: one line each, with the fix."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import RedisError

from gateway import result_store
from gateway.cli.serve import configure
from gateway.cli.workers import Workers
from gateway.config import Config
from gateway.settings import described
from gateway.sources import find
from gateway.strategies.celery_client import CeleryClient

QUICK = 1.0  # seconds in which workers usually answer
TIMEOUT = 3.0  # seconds for one answer

_BROKER = "broker_url (GATEWAY_BROKER_URL, --broker)"
#: What RabbitMQ means by closing a connection that is being opened.
_REFUSALS = {
    403: f"correct user and password in {_BROKER}",
    530: f"make the virtual host (rabbitmqctl add_vhost, set_permissions), or correct {_BROKER}",
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="gateway.toml")
    parser.add_argument("--strategy", help="as for serve")
    parser.add_argument("--broker", metavar="URL", dest="broker_url", help="as for serve")
    parser.add_argument("--result-backend", metavar="URL", help="as for serve")


def run(arguments: argparse.Namespace) -> int:
    config = configure(arguments)
    print(f"ok    config: {described(config, os.environ, arguments.config)}")
    well = True
    for place, problem in _checks(config):
        print(f"{'FAIL' if problem else 'ok':<5} {place}{': ' + problem if problem else ''}")
        well = well and not problem
    return 0 if well else 1


def _checks(config: Config) -> Iterator[tuple[str, str]]:
    """Yield what was looked at, and what is wrong with it and how to mend it."""
    for name in config.sources:
        yield f"source {name}{_protection(config, name)}", ""
    client = CeleryClient(config)
    with closing(client.app.connection_for_write()) as connection:
        trouble = _broker(connection, config)
        yield f"broker {maybe_sanitize_url(config.brokers[0])}", trouble
        if config.results:
            url = result_store.without_password(config.results)
            yield f"results {url}", asyncio.run(_ping(config))
        if trouble:
            yield "workers and tasks", "not looked at without the broker"
            return
        if config.amqp:
            for queue in config.queues:
                yield f"worker on the queue {queue}", _consumers(connection, queue)
        for patience in (QUICK, TIMEOUT):
            workers = Workers(client.app, connection, patience)
            queues_by_task = sorted(config.queues_by_task.items())
            found = {task: workers.problem(task, queues) for task, queues in queues_by_task}
            if not any(found.values()):
                break
        for task, problem in found.items():
            yield f"task {task}", problem
        if config.strategy == "pika" and workers:
            settings = workers.settings()
            yield "replies over AMQP", _replies(settings)
            if any(config.joins(r) or r.answer != "wait" or r.prefer for r in config.routes):
                yield "results stored for later tries and looks", _stores(settings)


def _broker(connection: Connection, config: Config) -> str:
    try:
        connection.ensure_connection(max_retries=len(config.brokers) - 1, timeout=TIMEOUT)
    except (OperationalError, *connection.connection_errors, *connection.channel_errors) as exc:
        cause = exc.__cause__ or exc
        remedy = _REFUSALS.get(getattr(cause, "reply_code", 0), f"start it, or correct {_BROKER}")
        return f"{getattr(cause, 'reply_text', None) or exc}; {remedy}"
    return ""


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
    start = f"start a worker: celery -A APP worker -Q {queue} (APP: yours, or appserver)"
    with connection.channel() as channel:
        try:
            found = channel.queue_declare(queue, passive=True)
        except connection.channel_errors:
            return f"there is no such queue; {start}"
    return "" if found.consumer_count else f"nobody consumes; {start}"


def _replies(settings: dict[str, dict[str, object]]) -> str:
    """Say which workers would leave `pika` without an answer."""
    if not settings:
        return "no worker tells its settings"
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
