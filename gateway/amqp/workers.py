"""Ask Celery's workers about their queues, tasks and settings, by remote control.

Over AMQP all questions are sent at the same time, and answered to a queue of ours. Celery's own
client asks one after the other, cannot be interrupted, and fails at an answer that is not JSON.
https://docs.celeryq.dev/en/stable/userguide/workers.html#remote-control
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.amqp.reply_channel import ANSWERS, ReplyChannel

#: Seconds for which RabbitMQ waits for an acknowledgement, unless it is configured otherwise:
#: https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout
CONSUMER_TIMEOUT = 1_800.0
#: The attribute of tasks in which a worker with the app server has their parameters.
PARAMETERS = "gateway_parameters"
#: The exchange to which workers bind dynamic queues, as Celery binds each queue to one. Nothing is
#: published to it, so that its many changes disturb no publisher. `appserver.queues` knows it, too.
DYNAMIC = "gateway.dynamic"
#: Seconds since the epoch, or how many there are: numbers of workers below this can be written.
FAR = 1e11
QUESTIONS: dict[str, dict[str, Any]] = {
    "active_queues": {},
    "registered": {"taskinfoitems": [PARAMETERS]},
    "active": {"safe": True},  # without the arguments
    "conf": {"with_defaults": True},
    "stats": {},
}


class Lost(NamedTuple):
    """The results that a worker has lost since its start; `last`: seconds since the epoch."""

    number: int
    last: float


class Running(NamedTuple):
    """A task that runs; `began`: seconds since the epoch, by the worker's clock."""

    id: str
    task: str
    began: float
    acknowledged: bool


@dataclass(slots=True)
class Worker:
    """One worker's answers; None: there is no answer, or not in the expected form."""

    queues: set[str] | None = None
    tasks: set[str] | None = None
    #: The parameters of tasks that it tells, as ``(order, currency=...)``.
    parameters: dict[str, str] = field(default_factory=dict)
    #: Empty: they are no settings of Celery's, for example an error in their place.
    settings: dict[str, Any] | None = None
    #: Does it run tasks in its main process?
    solo: bool | None = None
    #: The name of its pool's module in Celery, as ``thread``.
    pool: str = ""
    #: How many tasks it runs at once, how many messages it holds at most, how many tasks it has
    #: begun, and for how many seconds it has run; None: it does not tell.
    concurrency: int | None = None
    prefetch: int | None = None
    begun: int | None = None
    uptime: int | None = None
    #: How many results it has lost, and when it lost the last; None: it does not count them.
    lost: Lost | None = None
    #: How often RabbitMQ has taken its messages from it, because a task took too long.
    consumer_timeouts: int = 0
    running: list[Running] | None = None
    #: Of the task ids in the question, those of tasks that it has and that have not ended.
    held: set[str] | None = None
    #: Those of its queues that are dynamic.
    dynamic: set[str] = field(default_factory=set)

    def take(self, question: str, answer: Any) -> None:
        """Store the `answer` to one of the questions; an error is a dict, too."""
        known = answer if isinstance(answer, dict) else {}
        if question == "conf":
            settings = _by_new_names(known)
            self.settings = settings if "result_backend" in settings else {}
        elif question == "stats":
            pool = known.get("pool")
            name = str(pool.get("implementation")) if isinstance(pool, dict) else ""
            self.pool = name.partition(":")[0].rpartition(".")[2]
            self.solo = "pool" not in known or "solo" in str(pool)
            if isinstance(pool, dict):
                self.concurrency = _whole(pool.get("max-concurrency"))
            self.prefetch = _whole(known.get("prefetch_count"))
            self.uptime = _whole(known.get("uptime"))
            if isinstance(total := known.get("total"), dict):
                self.begun = sum(_whole(each) or 0 for each in total.values())
            if lost := _lost(known.get("lost_results")):  # several workers may have one name
                number, last = self.lost or (0, 0.0)
                self.lost = Lost(number + lost.number, max(last, lost.last))
            self.consumer_timeouts = _whole(known.get("consumer_timeouts")) or 0
        elif question == "query_task":
            self.held = set(known)
        elif not isinstance(answer, list):
            return
        elif question == "active_queues":
            queues = [each for each in answer if isinstance(each, dict)]
            self.queues = {str(each.get("name")) for each in queues}
            self.dynamic = {str(each.get("name")) for each in queues if _is_dynamic(each)}
        elif question == "active":
            self.running = [one for each in answer if (one := _running(each))]
        else:  # Celery adds attributes after a task's name
            parameters = dict(_with_parameters(str(task)) for task in answer)
            self.tasks = set(parameters)
            self.parameters = {name: text for name, text in parameters.items() if text}

    @property
    def backend(self) -> str:
        """The setting `result_backend`; empty: it is not known."""
        return str((self.settings or {}).get("result_backend", ""))

    @property
    def only_replies(self) -> bool:
        """Does it reply, and store only results that it is asked to store?

        `appserver.setup` does both, counting and replying. Without it, the setting may name the
        backend.
        """
        return self.lost is not None or "reply_backend" in self.backend

    @property
    def complete(self) -> bool:
        """Has it answered everything?"""
        return None not in (self.queues, self.tasks, self.settings, self.solo)


@dataclass(slots=True)
class Answers:
    """The workers that have answered, by name.

    ``reachable``: whether any worker received the questions.
    """

    workers: dict[str, Worker] = field(default_factory=dict)
    reachable: bool = True

    def take(self, question: str, answer: Any) -> None:
        """Store an answer ``{worker: answer}``; others are ignored, as any client may send them."""
        if isinstance(answer, dict):
            for name, said in answer.items():
                self.workers.setdefault(name, Worker()).take(question, said)

    def complete(self, consumers: Mapping[str, int]) -> bool:
        """Has each worker answered everything, and one for each of the queues' `consumers`?"""
        silent = any(self.silent(*each) for each in consumers.items())
        return not silent and all(worker.complete for worker in self.workers.values())

    def silent(self, queue: str, consumers: int) -> int:
        """Return how many of the `consumers` of a queue have not answered."""
        return max(0, consumers - len(self.consuming(queue)))

    @property
    def consumed(self) -> set[str]:
        """The queues that workers consume, by their answers."""
        return set().union(*(worker.queues or () for worker in self.workers.values()))

    def consuming(self, queue: str) -> set[str]:
        """Return the names of the workers that consume `queue`, by their answers."""
        return {name for name, worker in self.workers.items() if queue in (worker.queues or ())}


#: Tells from the answers so far whether all required ones have come, and whether further ones
#: could still be useful.
Sufficient = Callable[[Answers], tuple[bool, bool]]


async def ask(channel: ReplyChannel, sufficient: Sufficient, deadline: float) -> Answers:
    """Ask all workers, and return their answers when no more are needed.

    It returns at `deadline` (loop time) at the latest. Raises pika's AMQPError, with 403 where the
    account may not ask.
    """
    return await _ask(channel, QUESTIONS, sufficient, deadline)


async def ask_one(connection: TurnConnection, question: str, settled: float = ANSWERS) -> Answers:
    """Ask all workers one question on a channel of its own, and wait as `ReplyChannel.answers`.

    Raises pika's AMQPError, with 403 where the account may not ask.
    """
    answers = Answers()
    async with broker.own_channel(connection) as own:
        channel = await ReplyChannel(own).open()
        if await channel.ask(question, QUESTIONS[question]):
            for answer in await channel.answers(settled):
                answers.take(question, answer)
    return answers


async def holding(
    channel: ReplyChannel, task_ids: set[str], workers: set[str], deadline: float
) -> dict[str, set[str]]:
    """Return for each of the `workers` that answers which of the tasks it has not ended."""

    def sufficient(answers: Answers) -> tuple[bool, bool]:
        return answers.workers.keys() >= workers, False

    question = {"query_task": {"ids": sorted(task_ids)}}
    answers = await _ask(channel, question, sufficient, deadline)
    return {name: answers.workers[name].held or set() for name in answers.workers.keys() & workers}


async def _ask(
    channel: ReplyChannel, questions: dict[str, Any], sufficient: Sufficient, deadline: float
) -> Answers:
    soon = min(asyncio.get_running_loop().time() + ANSWERS, deadline)
    answers = Answers()

    def take(question: str = "", answer: Any = None) -> float:
        if question in questions:
            answers.take(question, answer)
        enough, curious = sufficient(answers)
        return (soon if curious else 0.0) if enough else deadline

    for question, arguments in questions.items():
        answers.reachable = answers.reachable and await channel.ask(question, arguments)
    if answers.reachable:
        await channel.collect(take, take())
    return answers


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < FAR else None


def _by_new_names(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings by the names of Celery 4 and later; an app may have those before."""
    from celery.app import defaults  # here: only `gateway check` asks for settings

    names = getattr(defaults, "_TO_NEW_KEY", {})
    return {names.get(name, name): value for name, value in settings.items()}


def _is_dynamic(queue: Mapping[str, Any]) -> bool:
    exchange = queue.get("exchange")
    return isinstance(exchange, dict) and exchange.get("name") == DYNAMIC


def _lost(lost: Any) -> Lost | None:
    """Read what a worker tells of its lost results; None: it does not count them."""
    if not isinstance(lost, dict):
        return None
    number, last = lost.get("number"), lost.get("last") or 0
    if not isinstance(number, int) or not isinstance(last, int | float):
        return None
    return Lost(number, last) if 0 <= number < FAR and 0 <= last < FAR else None


def _with_parameters(text: str) -> tuple[str, str]:
    """Return a task's name and its parameters; empty: they are not told."""
    name, _, attributes = text.partition(" ")
    return name, attributes.partition(f"[{PARAMETERS}=")[2].removesuffix("]")


def _running(task: Any) -> Running | None:
    """Read what a worker says of a task that runs; None: it is not in the expected form."""
    began = task.get("time_start") if isinstance(task, dict) else None
    if not isinstance(began, int | float) or not 0 <= began < FAR:
        return None
    task_id, name = str(task.get("id")), str(task.get("name"))
    return Running(task_id, name, began, task.get("acknowledged") is not False)
