"""Check whether the brokers answer and take messages; then check queues and workers."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pika
from kombu.utils.url import maybe_sanitize_url, parse_url

from gateway.amqp import broker
from gateway.amqp import workers as remote
from gateway.amqp.connection import TurnConnection
from gateway.amqp.reply_channel import ReplyChannel, blocked, connected
from gateway.cli.checks import long_tasks, queues, results, stores, worker_settings, workers
from gateway.cli.checks.finding import LIMIT, Finding, fail, ok, skipped, warn
from gateway.config.settings import Config
from gateway.stores import result_store
from gateway.strategies.celery_client import ask_over_redis

_SETTING = "broker_url (GATEWAY_BROKER_URL, --broker)"
_AWAY = f"start it, or correct {_SETTING}"
_REST = "queues, workers and tasks"
_LAST = 0.3  # seconds before the limit in which workers' answers are not waited for any more


async def check(config: Config) -> list[Finding]:
    """Return the findings about brokers, queues, workers and tasks."""
    return await (_check_amqp(config) if config.amqp else _check_redis(config))


async def _check_amqp(config: Config) -> list[Finding]:
    deadline = asyncio.get_running_loop().time() + LIMIT
    found = await asyncio.gather(*(_try_broker(url, config, deadline) for url in config.brokers))
    well = [url for url, it in zip(config.brokers, found, strict=True) if it.status == "ok"]
    if not well:
        return [*found, skipped(_REST, "not checked without a broker that takes messages")]
    # With a list of brokers it is no failure if some of them do not answer.
    lines = [warn(it.check, it.problem, it.remedy) if it.problem else it for it in found]
    alarms: list[str] = []

    def end_early(_: Any, frame: Any) -> None:
        alarms.append(frame.method.reason)
        limit.reschedule(asyncio.get_running_loop().time())

    at = config.brokers.index(well[0])
    try:
        async with asyncio.timeout_at(deadline) as limit:
            async with connected(well[0], config) as connection:
                connection.add_on_connection_blocked_callback(end_early)
                await _inspect(connection, config, deadline, lines)
    except TimeoutError:
        if not alarms:
            again = "run it again, when this machine and the broker are less busy"
            return [*lines, fail(_REST, f"not all could be checked within {LIMIT:g} s", again)]
        lines[at] = _alarm(lines[at].check, *alarms)
        lines.append(skipped(_REST, "not checked any further"))
    except broker.ERRORS as exc:
        lines[at] = fail(lines[at].check, broker.describe(exc), _AWAY)
        lines.append(skipped(_REST, "not checked any further"))
    return lines


async def _try_broker(url: str, config: Config, deadline: float) -> Finding:
    """Connect to the broker at `url`, and publish a message that no queue gets."""
    name = f"broker {maybe_sanitize_url(url)}"
    try:
        async with asyncio.timeout_at(deadline), connected(url, config) as connection:
            alarm = await blocked(connection)
            about: dict[str, Any] = connection.server_properties or {}
    except TimeoutError:
        return fail(name, f"no answer within {LIMIT:g} s{await stores.what_answers(url)}", _AWAY)
    except broker.ERRORS as exc:
        problem = f"{broker.describe(exc)}{await stores.what_answers(url)}"
        return fail(name, problem, _remedy(url, exc))
    if alarm:
        return _alarm(name, alarm)
    return ok(name, f"{about.get('product', 'Unknown')} {about.get('version', '')}")


def _alarm(name: str, reason: str) -> Finding:
    remedy = (
        "free space on its disk, or rabbitmqctl set_disk_free_limit 50MB"
        if "disk" in reason
        else "give it more memory, or rabbitmqctl set_vm_memory_high_watermark 0.6"
    )
    problem = f"it takes no messages: {reason}"
    return fail(name, problem, f"{remedy}; rabbitmq-diagnostics alarms names the node")


def _remedy(url: str, exc: BaseException) -> str:
    """Return the remedy for an error, by RabbitMQ's reply code."""
    parts = parse_url(url)
    user, vhost = parts["userid"] or "guest", parts["virtual_host"] or "/"
    grant = f"rabbitmqctl set_permissions -p '{vhost}' '{user}' '.*' '.*' '.*'"
    text = broker.describe(exc)
    found = re.search(r"\b(403|530)\b", text)
    code = int(found[1]) if found else 0
    if code == 530 and "not found" in text:
        return f"rabbitmqctl add_vhost '{vhost}' and {grant}, or correct {_SETTING}"
    if code == 530 or (code == 403 and "exchange" in text):
        return (
            f"{grant}, or more narrowly: docs/configuration.md#permissions; or correct {_SETTING}"
        )
    if code == 403:
        return f"correct user and password in {_SETTING}"
    return _AWAY


async def _inspect(
    connection: TurnConnection, config: Config, deadline: float, lines: list[Finding]
) -> None:
    """Check the queues, ask the workers, and test whether results come back; add to `lines`."""
    inspected = await queues.inspect(connection, config)
    about_queues = slice(len(lines), None)
    lines += queues.judge(config, inspected)
    others = [*queues.dynamic(config), *await queues.exchanges(connection, config)]
    seen = {queue: it.seen for queue, it in inspected.items() if it.seen}
    try:
        channel = await ReplyChannel(await broker.open_channel(connection)).open()
        sufficient = workers.sufficient(config, seen)
        answers = await remote.ask(channel, sufficient, deadline - _LAST)
    except pika.exceptions.ChannelClosedByBroker as exc:
        lines += [*others, *workers.unseen(config, exc.reply_text)]
        return
    # Once more, as the workers have told which queues they consume.
    lines[about_queues] = [*queues.judge(config, inspected, answers.consumed), *others]
    lines += workers.judge(config, seen, answers)
    lines += [*long_tasks.judge(config, answers), *worker_settings.early(config, answers)]
    lines += await results.check(config, channel, seen, answers, deadline)


async def _check_redis(config: Config) -> list[Finding]:
    """Check the embedded server of `gateway dev`, of which less can be found out."""
    url = config.brokers[0]
    name = f"broker {result_store.without_password(url)}"
    found: list[Finding] = []
    async with stores.asking(config, url, name, _SETTING, found) as client:
        about = ok(name, stores.described(await client.info()))
        answers = await ask_over_redis(config)
    if found:
        return [*found, skipped(_REST, "no broker")]
    return [about, *workers.judge_unseen(config, answers), *await results.judge(config, answers)]
