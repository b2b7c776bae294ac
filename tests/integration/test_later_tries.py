"""What later tries get of a task that has ended too late, or whose result is there no more."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.strategies import STRATEGIES
from tests.integration.deliveries import (
    KEYED,
    URLS,
    Servers,
    channels,
    cut_connections,
    deliver,
    expired,
    gather,
    keyed,
    leave,
    run,
    send,
    state_of,
)
from tests.support.requests import metric
from tests.support.stack import Server
from tests.support.waiting import eventually

# As many processes as there are tasks at once: none waits for another one.
WORKER = {"concurrency": 8}


@pytest.fixture(scope="module")
def hasty(servers: Servers) -> dict[str, Server]:
    """A gateway for each strategy, whose requests wait for a second."""
    config = "timeout = 1\nresult_expires = 1\n" + KEYED
    return servers.each({name: (name, config) for name in STRATEGIES})


@pytest.fixture(scope="module")
def forgetful(servers: Servers) -> Server:
    """A gateway that keeps no answer of ten bytes."""
    config = "result_expires = 1\nmax_kept_answer = 9\n" + URLS + KEYED
    return servers.gateway("redis", config)


@pytest.fixture(scope="module")
def other(servers: Servers) -> Server:
    """A gateway with a last try that is held, and with another task on the usual path."""
    config = keyed("/message", answer="wait-then-accept", deadline=8, fallback="success")
    ways = keyed("/waits") + keyed("/keyed", "retries.answer")
    return servers.gateway("pika", config + ways)


def expire_result(servers: Servers, task_id: str) -> None:
    servers.results.client.delete(f"celery-task-meta-{task_id}")


async def test_pika_s_held_tries_wait_for_the_stored_result_when_the_broker_is_gone(servers, other):
    keys = ["held", "waits"]
    paths = ["/message?until=cut", "/waits?until=cut"]
    waiting = [
        asyncio.create_task(send(other, path, key, f"Idempotency-Key: {key}"))
        for path, key in zip(paths, keys, strict=True)
    ]
    await eventually(lambda: all(state_of(servers.results, key) == "confirmed" for key in keys))
    connected = metric(other, "gateway_broker_connections_total")
    await asyncio.to_thread(cut_connections, servers.broker, "gateway")
    await eventually(lambda: metric(other, "gateway_broker_connections_total") > connected)
    servers.release("cut")
    answers = await asyncio.gather(*waiting)

    assert [(a.status, a.body) for a in answers] == [(200, b"held"), (200, b"waits")]


def test_an_answer_too_large_to_be_kept_is_given_again_as_long_as_its_result_is(servers, forgetful):
    key = "an answer of more than nine bytes"

    first, second = (run(deliver(forgetful, key)) for _ in range(2))
    (one,) = servers.executions(key.partition(" ")[0])
    expire_result(servers, one.task)
    later = run(deliver(forgetful, key))

    assert {(a.status, a.body) for a in (first, second)} == {(200, key.encode())}
    # It was done, and nobody knows any more what the answer was.
    assert (later.status, one.task.encode() in later.body) == (202, True)
    assert len(servers.executions("an")) == 1


def test_a_result_that_has_expired_unseen_is_not_waited_for(servers, forgetful):
    run(leave(servers, forgetful, "expired", until="expired"))
    servers.release("expired")
    run(eventually(lambda: servers.executions("expired")))
    (first,) = servers.executions("expired")
    with servers.results.client as client:
        run(eventually(lambda: client.exists(f"celery-task-meta-{first.task}")))
        client.delete(f"celery-task-meta-{first.task}")
    run(eventually(lambda: expired(servers.results, "expired")))

    answer = run(deliver(forgetful, "expired"))

    assert (answer.status, answer.body) == (200, b"expired")
    assert {one.task for one in servers.executions("expired")} == {first.task}


def test_a_task_that_ends_after_the_deadline_is_the_next_try_s_answer(servers, hasty):
    def key(strategy: str) -> str:
        return f"late-{strategy}"

    late = run(gather(*(deliver(hasty[each], key(each), until="late") for each in hasty)))
    servers.release("late")
    # The results have expired by now, and with them what a later try could look for.
    for strategy in hasty:
        run(eventually(lambda s=strategy: state_of(servers.results, key(s)) == "done"))
    for strategy in hasty:
        (first,) = servers.executions(key(strategy))
        expire_result(servers, first.task)
    tries = {each: [run(deliver(hasty[each], key(each))) for _ in range(3)] for each in hasty}

    assert [answer.status for answer in late] == [504] * len(hasty)
    for strategy, answers in tries.items():
        assert {(a.status, a.body) for a in answers} == {(200, key(strategy).encode())}
        assert len(servers.executions(key(strategy))) == 1
    run(eventually(lambda: channels(servers.results) == []))
