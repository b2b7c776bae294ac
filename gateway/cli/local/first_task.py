"""Run a task on the worker before `gateway dev` says that it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from gateway.celery_message import TaskIds, encode_body
from gateway.config.settings import Config
from gateway.errors import RequestError
from gateway.journal.entry import Entry
from gateway.journal.replay import outcomes, publishing
from gateway.outcome import SUCCESS, Outcome
from gateway.stack import StackError
from gateway.stack.stack import DESCRIBE

SECONDS = 15.0  # seconds within which a ready worker has to run a task


class Described(NamedTuple):
    """An app's tasks with their parameters, and whether it replies over AMQP by itself."""

    tasks: dict[str, str]
    replies: bool


def run(config: Config, queues: Sequence[str]) -> Described:
    """Run a task on each of the `queues`, and read its result as the gateway will.

    Returns the description of the worker's app. Raises `StackError` where a task has no result.
    """
    return asyncio.run(_run(config, queues))


async def _run(config: Config, queues: Sequence[str]) -> Described:
    ids = TaskIds()
    call = encode_body({}, {}, b"")
    waiting = {ids.new(): queue for queue in queues}
    found = Described({}, False)
    async with publishing(config) as publish:
        for task_id, queue in waiting.items():
            entry = Entry({"id": task_id}, DESCRIBE, task_id, queue, 0, 0.0, call)
            try:
                await publish(entry, task_id)
            except RequestError as exc:
                raise StackError(f"no task can be sent to the queue {queue}: {exc}") from exc
        async with aclosing(outcomes(config, list(waiting), SECONDS)) as ended:
            async for task_id, outcome in ended:
                found = _described(outcome, waiting.pop(task_id))
    if waiting:
        raise StackError(
            f"the worker has run no task from the queue {', '.join(waiting.values())} in "
            f"{SECONDS:g} s, or has stored no result in the result store; see its lines above"
        )
    return found


def _described(outcome: Outcome, queue: str) -> Described:
    if outcome.state != SUCCESS:
        raise StackError(f"the worker cannot run a task from {queue}: {outcome.error}")
    if not isinstance(outcome.value, dict):
        why = f" ({outcome.error})" if outcome.error else ""
        raise StackError(
            f"the worker's results cannot be read{why}: the gateway reads JSON; set "
            "result_serializer = 'json' and no result_compression in the app"
        )
    return Described(**outcome.value)
