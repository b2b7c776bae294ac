"""What brokers and workers tell when they are asked: at most every few seconds, for all pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pika.exceptions import ChannelClosedByBroker

from gateway.amqp import broker
from gateway.amqp.connection import TurnConnection
from gateway.amqp.reply_channel import ReplyChannel, blocked, connected
from gateway.amqp.workers import Worker, ask
from gateway.clock import monotonic, time
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.process.supervisor import Supervisor
from gateway.stores.result_store import without_password
from gateway.strategies.celery_client import ask_over_redis

T = TypeVar("T")
#: Seconds for which an answer is shown, and within which brokers and workers have to answer.
FRESH, _PATIENCE = 5.0, 2.5
_MOMENT = 0.3  # seconds that who only wants to know what is known waits for an answer
_KNOWN = 3600.0  # seconds for which a worker that does not answer any more is shown


@dataclass
class Broker:
    """A broker as it answers: ``problem`` says why not, ``alarm`` why it takes no messages."""

    url: str
    about: str = ""
    cluster: str = ""
    problem: str = ""
    alarm: str = ""


@dataclass
class Look:
    """What was told ``at`` a time (epoch).

    ``queues`` has messages that wait and consumers, where the broker tells them; ``missing`` those
    that are not there. ``unasked`` says why workers could not be asked; "": they were.
    """

    at: float
    brokers: list[Broker] = field(default_factory=list)
    queues: dict[str, tuple[int, int]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    workers: dict[str, Worker] = field(default_factory=dict)
    unasked: str = ""


class Recent(Generic[T]):
    """Asks a question at most every `FRESH` seconds, for all who want to know the answer."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]]):
        self._ask = ask
        self._asking: asyncio.Task[T] | None = None
        self._begun = 0.0

    async def get(self, fresh: bool = False) -> T:
        """Return the answer; a `fresh` one is of a question that is asked now."""
        task = self._asking
        old = monotonic() - self._begun > FRESH
        if fresh or task is None or (task.done() and (old or task.exception())):
            self._begun = monotonic()
            task = self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(task)


class Asked:
    """Asks when a page wants to know, and remembers which workers have answered before."""

    def __init__(self, supervisor: Supervisor):
        self._looks = Recent(lambda: _ask(supervisor.config))
        self._last: Look | None = None
        #: When each worker has answered last (epoch), and what, since the first page that asked.
        self.seen: dict[str, tuple[float, Worker]] = {}

    async def recent(self) -> Look | None:
        """Return what was told last, if anything was; wait for an answer for a moment only."""
        last = self._last
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT):
                return await self.look()
        return last

    async def look(self) -> Look:
        found = self._last = await self._looks.get()
        recent = {name: each for name, each in self.seen.items() if found.at - each[0] < _KNOWN}
        self.seen = recent | {name: (found.at, each) for name, each in found.workers.items()}
        return found


async def _ask(config: Config) -> Look:
    if not config.amqp:
        found = Look(time(), [Broker(without_password(config.brokers[0]))])
        try:
            async with asyncio.timeout(_PATIENCE):
                found.workers = (await ask_over_redis(config)).workers
        except (GatewayError, TimeoutError) as exc:
            found.unasked = found.brokers[0].problem = str(exc) or "no answer in time"
        return found
    looks = await asyncio.gather(*(_ask_broker(url, config) for url in config.brokers))
    found = next((each for each in looks if not each.brokers[0].problem), looks[0])
    found.brokers = [each.brokers[0] for each in looks]
    return found


async def _ask_broker(url: str, config: Config) -> Look:
    state = Broker(without_password(url))
    found = Look(time(), [state])
    try:
        async with asyncio.timeout(_PATIENCE), connected(url, config) as connection:
            about: Mapping[str, Any] = connection.server_properties or {}
            state.about = f"{about.get('product', '')} {about.get('version', '')}".strip()
            state.cluster = str(about.get("cluster_name", ""))
            state.alarm = await blocked(connection)
            if not state.alarm:  # it does not answer further questions
                await _inspect(connection, config, found)
    except TimeoutError:
        state.problem = "" if state.about else "no answer in time"
        found.unasked = found.unasked or "they have not answered in time"
    except broker.ERRORS as exc:
        state.problem = broker.describe(exc)
    return found


async def _inspect(connection: TurnConnection, config: Config, found: Look) -> None:
    for queue in config.queues:
        try:
            found.queues[queue] = await broker.declare_alone(connection, queue, None)
        except ChannelClosedByBroker as exc:
            if exc.reply_code == 404:
                found.missing.add(queue)
    try:
        channel = await ReplyChannel(await broker.open_channel(connection)).open()
        deadline = asyncio.get_running_loop().time() + _PATIENCE / 2
        consumers = {queue: many for queue, (_, many) in found.queues.items()}
        answers = await ask(channel, lambda so_far: (so_far.complete(consumers), False), deadline)
        found.workers = answers.workers
    except ChannelClosedByBroker as exc:
        found.unasked = f"the account may not ask them: {exc.reply_text}"
