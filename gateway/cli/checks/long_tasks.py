"""Find tasks that take longer than RabbitMQ lets a worker hold a message: these begin again.

RabbitMQ closes the channel of a worker that has not acknowledged a message for `consumer_timeout`,
and sends all messages of that channel again. No client is told the value; it may be shorter or
longer than RabbitMQ's default, for a queue by its argument `x-consumer-timeout`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gateway.amqp.workers import CONSUMER_TIMEOUT, Answers
from gateway.cli.checks.finding import Finding, listed, warn
from gateway.clock import time
from gateway.config.settings import Config

LONG = "long tasks"
_AGAIN = (
    "where a task takes longer than RabbitMQ's consumer_timeout (30 minutes, unless it is set),"
    " its message is delivered again and the task begins once more"
)
_REMEDY = (
    "limit the task (task_time_limit), or set consumer_timeout above the longest task: "
    "docs/appserver.md#long-tasks"
)


def judge(config: Config, answers: Answers) -> list[Finding]:
    """Return warnings about tasks that may run longer, that do so, or that have done so."""
    problems = [
        *_routes(config),
        *_limits(config, answers),
        *_timeouts(answers),
        *_overlapping(answers),
        *_running(config, answers),
    ]
    return [warn(LONG, f"{problem}; {_AGAIN}", _REMEDY) for problem in problems]


def _routes(config: Config) -> Iterator[str]:
    """Yield each task whose limit in the configuration is as long as the timeout, or longer."""
    for task in config.tasks:
        # A worker holds a message back for its countdown, and then for its task.
        times = {"countdown": task.countdown or 0, "time_limit": task.time_limit or 0}
        if sum(times.values()) >= _timeout(config, task.queue_names):
            has = " and ".join(
                f"{name} = {seconds:g}" for name, seconds in times.items() if seconds
            )
            yield f"task {task.task} has {has} in its route"


def _limits(config: Config, answers: Answers) -> Iterator[str]:
    for name, worker in sorted(answers.workers.items()):
        settings = worker.settings or {}
        limit = settings.get("task_time_limit")
        if (
            settings.get("task_acks_late")
            and isinstance(limit, int | float)
            and limit >= _timeout(config, worker.queues or ())
        ):
            yield f"{name} has task_acks_late and task_time_limit = {limit:g}"


def _timeouts(answers: Answers) -> Iterator[str]:
    for name, worker in sorted(answers.workers.items()):
        if worker.consumer_timeouts:
            yield f"{name} has lost its messages {worker.consumer_timeouts} times since its start"


def _overlapping(answers: Answers) -> Iterator[str]:
    """Yield each task that runs more than once at this moment."""
    holders: dict[str, list[str]] = {}
    for name, worker in sorted(answers.workers.items()):
        for one in worker.running or ():
            holders.setdefault(f"{one.task} {one.id}", []).append(name)
    for task, names in holders.items():
        if len(names) > 1:
            yield f"{task} runs {len(names)} times at once ({listed(sorted(set(names)))})"


def _running(config: Config, answers: Answers) -> Iterator[str]:
    """Yield each task that has run for half the timeout, and is not acknowledged."""
    now = time()
    for name, worker in sorted(answers.workers.items()):
        half = _timeout(config, worker.queues or ()) / 2
        for one in worker.running or ():
            if not one.acknowledged and (seconds := now - one.began) >= half:
                yield f"{name} has run {one.task} {one.id} for {seconds:.0f} s"


def _timeout(config: Config, queues: Collection[str]) -> float:
    """Return the shortest timeout of the `queues` that is known, in seconds."""
    timeouts = {
        queue: task.queue_arguments.get("x-consumer-timeout")
        for task in config.tasks
        for queue in task.queue_names
    }
    values = [timeouts.get(queue) for queue in queues]
    seconds = (v / 1000 if isinstance(v, int) else CONSUMER_TIMEOUT for v in values)
    return min(seconds, default=CONSUMER_TIMEOUT)
