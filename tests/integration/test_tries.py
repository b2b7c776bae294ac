"""The way of a sender that hangs up after a few seconds and tries again, as WeChat does."""

from __future__ import annotations

import asyncio
import json
from time import monotonic

import kombu
import pytest

from tests.integration.deliveries import Servers, channels, run, send
from tests.support.requests import metric
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.waiting import eventually

GRACE = 0.5  # seconds that an answer may come after its deadline
TRIES = 3

CONFIG = """
[[routes]]
path = "/message"
task = "faults.run"
answer = "wait-then-accept"
idempotency = "json:/MsgId"
tries = 3
retry_after = {patience}
deadline = {deadline}
fallback = "success"
"""
#: Seconds: what the sender waits before it hangs up and tries again, and each try's deadline.
QUICK = (1.5, 1.25)
WECHAT = (5.0, 4.5)


@pytest.fixture(scope="module")
def servers(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> Servers:
    servers = Servers(stack, rabbitmq, redis_server)
    yield servers
    servers.stop()


class Deployment:
    """Two gateways of two processes each behind nginx, for one rhythm of a sender."""

    def __init__(self, servers: Servers, strategy: str, rhythm: tuple[float, float]):
        self.servers = servers
        self.patience, self.deadline = rhythm
        config = CONFIG.format(patience=self.patience, deadline=self.deadline)
        self.gateways = [servers.gateway(strategy, config, "--processes=2") for _ in range(2)]
        self.nginx = servers.nginx(*self.gateways)

    async def send(self, body: str, seconds: float) -> tuple[bytes | None, int, float]:
        """Send a message whose task takes `seconds` as the sender does.

        Returns the answer, the number of the try that got it, and its seconds.
        """
        for number in range(1, TRIES + 1):
            began = monotonic()
            answer = await send(
                self.nginx, f"/message?seconds={seconds}", body, patience=self.patience
            )
            if answer is not None:
                assert answer.status == 200
                return answer.body, number, monotonic() - began
        return None, TRIES, self.patience

    def stop(self) -> None:
        run(eventually(lambda: sum(metric(g, "gateway_in_flight") for g in self.gateways) == 0))
        run(eventually(lambda: channels(self.servers.results) == []))
        for server in (self.nginx, *self.gateways):
            server.stop()


def message(number: int) -> str:
    return json.dumps({"MsgId": number, "Content": "hello"}, separators=(",", ":"))


@pytest.fixture(scope="module", params=["redis", "pika"])
def quick(request: pytest.FixtureRequest, servers: Servers) -> Deployment:
    deployment = Deployment(servers, request.param, QUICK)
    deployment.number = 100 if request.param == "pika" else 200
    yield deployment
    deployment.stop()


@pytest.mark.parametrize(("seconds", "number"), [(0.1, 1), (2.1, 2), (3.6, 3)])
def test_the_try_that_is_connected_gets_the_answer(servers, quick, seconds, number):
    body = message(quick.number + number)

    answer, got, _ = run(quick.send(body, seconds))

    assert (answer, got) == (body.encode(), number)
    assert len(servers.executions(body)) == 1


def test_a_task_that_takes_longer_is_answered_by_the_last_try_s_fallback(servers, quick):
    body = message(quick.number + 10)

    answer, number, seconds = run(quick.send(body, 5.5))

    assert (answer, number) == (b"success", TRIES)
    assert quick.deadline - 0.1 <= seconds <= quick.deadline + GRACE
    # The task goes on, and who asks once more gets what it says.
    run(eventually(lambda: servers.executions(body)))
    later, _, _ = run(quick.send(body, 0))
    assert later == body.encode()
    assert len(servers.executions(body)) == 1


def test_a_sender_that_stays_connected_is_answered_when_the_last_try_would_be(servers, quick):
    body = message(quick.number + 20)
    end = 2 * quick.patience + quick.deadline

    async def stay() -> float:
        began = monotonic()
        answer = await send(quick.nginx, "/message?seconds=5.5", body)
        assert (answer.status, answer.body) == (200, b"success")
        return monotonic() - began

    assert end - 0.1 <= run(stay()) <= end + GRACE
    run(eventually(lambda: servers.executions(body)))


def test_all_tries_that_are_connected_get_the_answer(servers, quick):
    body = message(quick.number + 30)

    async def overlap() -> list[bytes]:
        some = []
        for _ in range(TRIES):
            some.append(asyncio.create_task(send(quick.nginx, "/message?seconds=0.8", body)))
            await asyncio.sleep(0.2)
        return [(await one).body for one in some]

    assert run(overlap()) == [body.encode()] * TRIES
    assert len(servers.executions(body)) == 1


def test_tries_go_on_counting_after_one_was_refused(servers):
    # The first comes to nothing, as the queue is missing. The third is the last all the same,
    # and has to have an answer in time.
    config = CONFIG.format(patience=1.0, deadline=0.75) + 'queue = "later"\ndeclare = false\n'
    gateway = servers.gateway("redis", config)
    body = message(300)

    async def tries() -> tuple[bytes, float]:
        refused = await send(gateway, "/message", body)
        assert refused.type == "unroutable"
        await asyncio.to_thread(declare, servers, "later")
        assert await send(gateway, "/message", body, patience=1.0) is None
        began = monotonic()
        answer = await send(gateway, "/message", body, patience=1.0)
        return answer and answer.body, monotonic() - began

    answer, seconds = run(tries())

    assert answer == b"success"
    assert seconds <= 0.75 + GRACE
    gateway.stop()


def declare(servers: Servers, queue: str) -> None:
    with kombu.Connection(servers.broker.url) as connection:
        connection.default_channel.queue_declare(queue, durable=True, auto_delete=False)


def test_in_wechat_s_own_time(servers):
    deployments = [Deployment(servers, strategy, WECHAT) for strategy in ("redis", "pika")]
    twelve, twenty = [message(401), message(402)], [message(411), message(412)]

    async def all_at_once() -> list[tuple[bytes | None, int, float]]:
        return await asyncio.gather(
            *(each.send(body, 12) for each, body in zip(deployments, twelve, strict=True)),
            *(each.send(body, 20) for each, body in zip(deployments, twenty, strict=True)),
        )

    answers = run(all_at_once())

    for body, (answer, number, _) in zip(twelve, answers[:2], strict=True):
        assert (answer, number) == (body.encode(), TRIES)
        assert len(servers.executions(body)) == 1
    for body, (answer, number, seconds) in zip(twenty, answers[2:], strict=True):
        assert (answer, number) == (b"success", TRIES)
        assert seconds <= WECHAT[1] + GRACE
        run(eventually(lambda body=body: len(servers.executions(body)) == 1))
    for deployment in deployments:
        deployment.stop()
