"""What goes wrong with one request's answer is no other request's concern, whoever waits for it."""

from __future__ import annotations

import asyncio
import logging

import pytest
import uvloop

from gateway import answer
from gateway.http import server
from gateway.relay import delivery
from tests.support.http_client import Answer, request
from tests.support.in_memory import Gateway, InMemory, connected
from tests.support.stack import RabbitMQ, Server

WORKER = {"app": "tests.integration.tasks"}
NEIGHBOURS = 20
LOG = "a request could not be answered (route {})"


@pytest.fixture(params=["pika", "redis", "ioloop", "threadpool"])
def serve(request, rabbitmq: RabbitMQ, redis_server: Server, worker: Server):
    """Have a gateway do `work(gateway)`, in this process, with a real strategy and servers."""

    def run(work) -> None:
        settings = {"broker_url": rabbitmq.url, "result_backend": redis_server.url}
        settings["routes"] = [{"path": "/", "deadline": 3}, {"path": "/late", "deadline": 1}]

        async def serving() -> None:
            async with connected(request.param, settings) as gateway:
                await work(gateway)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serving())

    return run


async def ask(gateway: Gateway, *bodies: bytes, path: str = "/") -> list[Answer]:
    """Send all at once, each on a connection of its own."""
    return await asyncio.gather(*(gateway.ask(request(body, path)) for body in bodies))


def check(caplog, told: Answer, others: list[Answer], gateway: Gateway, path: str = "/") -> None:
    assert (told.status, told.type) == (500, "internal")
    assert told.problem["delivery_id"] and told.problem["task_id"]
    assert {(each.status, each.body) for each in others} == {(200, b"fine")}
    (record,) = [one for one in caplog.records if one.exc_info]
    assert (record.levelno, record.getMessage()) == (logging.ERROR, LOG.format(path))
    assert record.exc_info[0] is ZeroDivisionError
    assert gateway.metrics.get("gateway_broker_connections_total") == 1
    assert gateway.relay.limits.in_flight == 0


def test_an_outcome_that_cannot_be_answered_is_a_500_of_one_request(serve, monkeypatch, caplog):
    def of_outcome(outcome, content_type):
        if outcome.value == "bug":
            raise ZeroDivisionError
        return answer.of_outcome(outcome, content_type)

    monkeypatch.setattr(delivery, "of_outcome", of_outcome)

    async def work(gateway: Gateway) -> None:
        fine = [b"fine"] * NEIGHBOURS
        told, *others = await ask(gateway, b"bug", *fine)
        check(caplog, told, others, gateway)
        assert len(gateway.strategy.__dict__.get("_waiting", ())) == 0

    serve(work)


def test_an_answer_that_cannot_be_written_is_a_500_of_one_request(serve, caplog):
    async def work(gateway: Gateway) -> None:
        context = gateway.server._shared
        start_of, fails = context.start_of, [True]

        def start(status: int) -> str:
            if fails:
                fails.pop()
                raise ZeroDivisionError
            return start_of(status)

        context.start_of = start
        answers = await ask(gateway, *[b"fine"] * NEIGHBOURS)
        (told,) = [one for one in answers if one.status != 200]
        check(caplog, told, [one for one in answers if one.status == 200], gateway)

    serve(work)


def test_a_deadline_that_cannot_be_told_is_a_500_of_one_request(serve, monkeypatch, caplog, worker):
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    async def work(gateway: Gateway) -> None:
        monkeypatch.setattr(delivery, "DeadlinePassed", fails)
        with worker.frozen():
            (told,) = await ask(gateway, b"late", path="/late")
        check(caplog, told, await ask(gateway, b"fine"), gateway, "/late")

    serve(work)


class FailsOnce:
    """A recorder with an error for the first request."""

    failed = False

    def ended(self, _: object) -> None:
        if not self.failed:
            self.failed = True
            raise ZeroDivisionError


def unrecorded(**settings: float) -> Gateway:
    gateway = Gateway(lambda *_: InMemory(None), settings)
    gateway.relay.context.recorders.append(FailsOnce())
    return gateway


async def test_a_refusal_that_cannot_be_recorded_leaves_the_others_their_timeouts(monkeypatch):
    monkeypatch.setattr(server, "SWEEP", 0.05)
    gateway = unrecorded(body_timeout=0.2)
    for _ in range(2):
        async with asyncio.timeout(5), await gateway.open() as connection:
            connection.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nx")
            assert (await connection.answer()).type == "body-too-slow"
            await gateway.until_closed()
    await gateway.close()


async def test_a_client_that_has_left_and_cannot_be_recorded_is_not_waited_for_at_the_end():
    gateway = unrecorded()
    async with await gateway.open() as connection:
        (await gateway.begin(connection)).confirm()
    async with asyncio.timeout(5):
        await gateway.until_closed()
        await gateway.close()
