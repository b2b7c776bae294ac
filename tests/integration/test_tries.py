"""The way of a sender that hangs up after a few seconds and tries again, as WeChat does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Any

import kombu
import pytest

from tests.integration.deliveries import Servers, channels, run, send
from tests.support.config import route
from tests.support.requests import metric
from tests.support.waiting import eventually

GRACE = 0.5  # seconds that an answer may come after its deadline
TRIES = 3


@dataclass(frozen=True)
class Rhythm:
    """A sender's way: what it waits before it hangs up and tries again, in seconds."""

    path: str
    patience: float
    deadline: float  # of each try

    def route(self, **more: Any) -> str:
        times = {"tries": TRIES, "retry_after": self.patience, "deadline": self.deadline}
        key = "json:/MsgId"
        given = {"answer": "wait-then-accept", "idempotency": key, "fallback": "success"}
        return route(self.path, **given, **times, **more)


QUICK = Rhythm("/quick", 1.5, 1.25)
WECHAT = Rhythm("/wechat", 5.0, 4.5)
#: What the tasks of its messages take, in seconds: less than all tries together, and more.
WECHAT_SECONDS = (12, 17)
#: The queue is missing at first.
REFUSED = Rhythm("/refused", 1.0, 0.75)
CONFIG = QUICK.route() + WECHAT.route() + REFUSED.route(queue="later", declare=False)


class Deployment:
    """Two gateways behind nginx, of three processes in all."""

    def __init__(self, servers: Servers, strategy: str):
        self.strategy = strategy
        self.gateways = servers.gateways(strategy, CONFIG, 2, 1)
        self.nginx = servers.nginx(*self.gateways)

    def message(self, number: int) -> str:
        return json.dumps(
            {"MsgId": f"{self.strategy}-{number}", "Content": "hello"}, separators=(",", ":")
        )

    async def send(
        self, rhythm: Rhythm, body: str, seconds: float
    ) -> tuple[bytes | None, int, float]:
        """Send a message whose task takes `seconds` as the sender does.

        Returns the answer, the number of the try that got it, and its seconds.
        """
        target = f"{rhythm.path}?seconds={seconds}"
        for number in range(1, TRIES + 1):
            began = monotonic()
            answer = await send(self.nginx, target, body, patience=rhythm.patience)
            if answer is not None:
                assert answer.status == 200
                return answer.body, number, monotonic() - began
        return None, TRIES, rhythm.patience


# As many processes as there are tasks at once: none waits for another one.
WORKER = {"concurrency": 12}


@pytest.fixture(scope="module")
def deployments(servers: Servers) -> list[Deployment]:
    """One for each way in which the tries hear of the result; each test uses all at once."""
    return [Deployment(servers, strategy) for strategy in ("redis", "pika")]


@pytest.fixture(scope="module", autouse=True)
def under_way(deployments: list[Deployment]) -> Iterator[Future[list[Any]]]:
    """Begin what takes WeChat's own time; the other tests run meanwhile."""
    work = together(
        each.send(WECHAT, each.message(seconds), seconds)
        for seconds in WECHAT_SECONDS
        for each in deployments
    )
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(run, work)


async def together(work: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    return await asyncio.gather(*work)


def executed_once(servers: Servers, bodies: list[str]) -> bool:
    return all(len(servers.executions(body)) == 1 for body in bodies)


def test_the_try_that_is_connected_gets_the_answer(servers, deployments):
    # The try that is connected when the task ends, by the seconds that this takes.
    tries = [(0.1, 1), (2.1, 2), (3.6, 3)]
    cases = [(each, number, seconds) for each in deployments for seconds, number in tries]

    answers = run(
        together(each.send(QUICK, each.message(n), seconds) for each, n, seconds in cases)
    )

    bodies = [each.message(n) for each, n, _ in cases]
    expected = [(body.encode(), n) for body, (_, n, _) in zip(bodies, cases, strict=True)]
    assert [answer[:2] for answer in answers] == expected
    assert executed_once(servers, bodies)


def test_a_task_that_takes_longer_is_answered_by_the_last_try_s_fallback(servers, deployments):
    bodies = [each.message(10) for each in deployments]

    def ask(seconds: float) -> list[tuple[bytes | None, int, float]]:
        return run(together(each.send(QUICK, each.message(10), seconds) for each in deployments))

    for answer, number, seconds in ask(5.5):
        assert (answer, number) == (b"success", TRIES)
        assert QUICK.deadline - 0.1 <= seconds <= QUICK.deadline + GRACE
    # The task goes on, and who asks once more gets what it says.
    run(eventually(lambda: executed_once(servers, bodies)))
    assert [answer for answer, _, _ in ask(0)] == [body.encode() for body in bodies]
    assert executed_once(servers, bodies)


def test_a_sender_that_stays_connected_is_answered_when_the_last_try_would_be(servers, deployments):
    end = 2 * QUICK.patience + QUICK.deadline

    async def stay(deployment: Deployment) -> float:
        began = monotonic()
        answer = await send(deployment.nginx, "/quick?seconds=5.5", deployment.message(20))
        assert (answer.status, answer.body) == (200, b"success")
        return monotonic() - began

    for seconds in run(together(map(stay, deployments))):
        assert end - 0.1 <= seconds <= end + GRACE
    run(eventually(lambda: executed_once(servers, [each.message(20) for each in deployments])))


def test_all_tries_that_are_connected_get_the_answer(servers, deployments):
    async def overlap(deployment: Deployment) -> list[bytes]:
        some = []
        for _ in range(TRIES):
            answer = send(deployment.nginx, "/quick?seconds=0.8", deployment.message(30))
            some.append(asyncio.create_task(answer))
            await asyncio.sleep(0.2)
        return [(await one).body for one in some]

    bodies = [each.message(30) for each in deployments]
    assert run(together(map(overlap, deployments))) == [[body.encode()] * TRIES for body in bodies]
    assert executed_once(servers, bodies)


def test_in_wechat_s_own_time(servers, deployments, under_way):
    answers = under_way.result()

    twelve, longer = ([each.message(n) for each in deployments] for n in WECHAT_SECONDS)
    for body, (answer, number, _) in zip(twelve, answers[:2], strict=True):
        assert (answer, number) == (body.encode(), TRIES)
    assert executed_once(servers, twelve)
    for answer, number, seconds in answers[2:]:
        assert (answer, number) == (b"success", TRIES)
        assert seconds <= WECHAT.deadline + GRACE
    run(eventually(lambda: executed_once(servers, longer)))


def test_at_the_end_nobody_waits(servers, deployments):
    gateways = [gateway for each in deployments for gateway in each.gateways]
    run(eventually(lambda: sum(metric(g, "gateway_in_flight") for g in gateways) == 0))
    run(eventually(lambda: channels(servers.results) == []))


# The last one: its task never runs, so the gateway goes on listening for the result.
async def test_tries_go_on_counting_after_one_was_refused(servers, deployments):
    # The first comes to nothing, as the queue is missing. The third is the last all the same,
    # and has to have an answer in time.
    gateway, body = deployments[0].gateways[0], deployments[0].message(40)

    refused = await send(gateway, REFUSED.path, body)
    assert refused.type == "unroutable"
    await asyncio.to_thread(declare, servers, "later")
    assert await send(gateway, REFUSED.path, body, patience=REFUSED.patience) is None
    began = monotonic()
    answer = await send(gateway, REFUSED.path, body, patience=REFUSED.patience)
    answer, seconds = answer and answer.body, monotonic() - began

    assert answer == b"success"
    assert seconds <= REFUSED.deadline + GRACE


def declare(servers: Servers, queue: str) -> None:
    with kombu.Connection(servers.broker.url) as connection:
        connection.default_channel.queue_declare(queue, durable=True, auto_delete=False)
