"""However a request ends, its bytes are given back, and no reference cycle keeps its body.

The garbage collector is off: it must not be needed.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from gateway.answer import Answer
from gateway.celery_message import Message, TaskIds
from gateway.config.settings import Config
from gateway.delivery import Request
from gateway.errors import BrokerUnavailable, NotConfirmed, Rejected, StateUnavailable
from gateway.metrics import Metrics
from gateway.outcome import FAILURE, SUCCESS, Outcome
from gateway.pending_task import PendingTask
from gateway.relay.in_flight import InFlight
from gateway.relay.relay import Relay
from tests.support.in_memory import InMemory
from tests.support.waiting import eventually

BODY = b'{"id": 1}' + b" " * 1_000
ROUTES = [
    {"path": "/"},
    {"path": "/accept", "answer": "accept"},
    {"path": "/once", "idempotency": "json:/id"},
    {"path": "/once-accept", "idempotency": "json:/id", "answer": "accept"},
    {"path": "/also", "also": [{"task": "a"}, {"task": "b"}]},
]


class Unpublished(InMemory):
    """Further tasks, and what is accepted, wait for their confirm as all messages do."""

    def publish(self, message: Message, deadline: float) -> PendingTask:
        return self.send(message, deadline)


class Claimed:
    """A relay with a store of claims that does not answer until it is told to."""

    def __init__(self, metrics: Metrics):
        config = Config(broker_url="amqp://h//", routes=ROUTES, secret_key="s" * 16)
        self.strategy = Unpublished(None)
        self.relay = Relay(config, self.strategy, metrics, TaskIds())
        self.given: list[Answer] = []
        idempotency = self.relay.context.idempotency
        self.claims: list[asyncio.Future] = []

        async def take(identity: str, body: bytes, *args: object, **options: object) -> object:
            reply = asyncio.get_running_loop().create_future()
            self.claims.append(reply)
            try:
                return await reply
            except OSError as exc:
                raise StateUnavailable from exc

        idempotency._claims.take = take

    def send(self, path: str) -> InFlight | None:
        now = monotonic()
        headers = {"content-type": "application/json"}
        size = len(BODY) + 100
        request = Request("POST", path, "", headers, BODY, "127.0.0.1", now, 0.0, size)
        return self.relay.relay(request, self.given.append)


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics(routes=[route["path"] for route in ROUTES])
    yield metrics
    metrics.close()


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> int:
    """Return how many requests are still in memory."""
    return sum(isinstance(each, InFlight) for each in gc.get_objects())


async def taken(relayed: Claimed) -> PendingTask:
    return await asyncio.wait_for(relayed.strategy.sent.get(), 10)


async def succeeds(relayed: Claimed, sent: InFlight) -> None:
    pending = await taken(relayed)
    pending.confirm()
    pending.settle(Outcome(SUCCESS, "well"))


async def fails(relayed: Claimed, sent: InFlight) -> None:
    pending = await taken(relayed)
    pending.confirm()
    pending.settle(Outcome(FAILURE, None, "ValueError"))


async def is_not_confirmed(relayed: Claimed, sent: InFlight) -> None:
    (await taken(relayed)).fail(NotConfirmed())


async def is_rejected(relayed: Claimed, sent: InFlight) -> None:
    (await taken(relayed)).fail(Rejected())


async def is_late(relayed: Claimed, sent: InFlight) -> None:
    (await taken(relayed)).confirm()
    sent.expire()


async def is_late_unconfirmed(relayed: Claimed, sent: InFlight) -> None:
    await taken(relayed)
    sent.expire()


async def leaves(relayed: Claimed, sent: InFlight) -> None:
    pending = await taken(relayed)
    pending.confirm()
    sent.cancel()


async def leaves_unconfirmed(relayed: Claimed, sent: InFlight) -> None:
    pending = await taken(relayed)
    sent.cancel()
    if not pending.ended:
        pending.confirm()


async def loses_the_broker(relayed: Claimed, sent: InFlight) -> None:
    (await taken(relayed)).fail(BrokerUnavailable())


async def is_accepted(relayed: Claimed, sent: InFlight) -> None:
    (await taken(relayed)).confirm()


async def has_no_claim(relayed: Claimed, sent: InFlight) -> None:
    await eventually(lambda: relayed.claims)
    relayed.claims[0].set_exception(OSError("no answer in time"))
    await eventually(lambda: relayed.given)


async def is_late_without_a_claim(relayed: Claimed, sent: InFlight) -> None:
    await eventually(lambda: relayed.claims)
    sent.expire()
    relayed.claims[0].set_exception(OSError("no answer in time"))


async def leaves_without_a_claim(relayed: Claimed, sent: InFlight) -> None:
    await eventually(lambda: relayed.claims)
    sent.cancel()
    relayed.claims[0].set_exception(OSError("no answer in time"))


async def loses_a_further_task(relayed: Claimed, sent: InFlight) -> None:
    first, second = await taken(relayed), await taken(relayed)
    first.fail(Rejected())
    second.fail(NotConfirmed())
    await eventually(lambda: relayed.given)


Ends = Callable[[Claimed, InFlight], object]


@pytest.mark.parametrize(
    ("path", "ends"),
    [
        *(
            ("/", one)
            for one in (
                succeeds, fails, is_not_confirmed, is_rejected, is_late, is_late_unconfirmed,
                leaves, leaves_unconfirmed, loses_the_broker,
            )
        ),
        *(
            ("/accept", one)
            for one in (is_accepted, is_rejected, is_late_unconfirmed, leaves_unconfirmed)
        ),
        *(
            (path, one)
            for path in ("/once", "/once-accept")
            for one in (has_no_claim, is_late_without_a_claim, leaves_without_a_claim)
        ),
        ("/also", loses_a_further_task),
    ],
)  # fmt: skip
def test_nothing_stays(metrics, path, ends: Ends):
    async def work() -> None:
        relayed = Claimed(metrics)
        for _ in range(3):
            relayed.claims.clear()
            sent = relayed.send(path)
            assert relayed.relay.limits.bytes > len(BODY)
            await ends(relayed, sent)
            del sent
            while not relayed.strategy.freed.empty():
                relayed.strategy.freed.get_nowait()
            relayed.claims.clear()
            await eventually(lambda: not relayed.relay.context.steps._tasks)
            await asyncio.sleep(0)
            assert (relayed.relay.in_flight, relayed.relay.limits.bytes) == (0, 0)
            relayed.given.clear()
            assert alive() == 0

    asyncio.run(asyncio.wait_for(work(), 60))
