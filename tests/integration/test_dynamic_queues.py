"""Queues that are declared on first use, consumed by a worker that is told to, gone when idle."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import kombu
import pytest

from gateway.config.strategies import STRATEGIES
from tests.integration.deliveries import URLS, Servers, answered, gather, run, send
from tests.support import command
from tests.support.config import route
from tests.support.requests import metric
from tests.support.stack import RabbitMQ, Server
from tests.support.waiting import until

EXPIRES = 8  # seconds of an idle queue, the fewest that leave time for a busy machine


def routes(expires: float = EXPIRES, static: str = "sessions") -> str:
    patience = min(expires / 4, 5)  # as long as it may be

    def of(path: str, begin: str, **more: Any) -> str:
        queue, pattern = f"{begin}-{{param:session}}", f"{begin}-[a-z0-9-]{{1,40}}"
        own = {"queue": queue, "queue_pattern": pattern, "queue_expires": expires}
        return route(path, static_queue=static, **own, **more)

    return (
        f"{URLS}confirm_timeout = {patience:g}\n"
        + route("/known", "dynamic.known", queue=static)
        + of("/wait/{session}", "session")
        + of("/accept/{session}", "accepted", answer="accept", queue_limit=3)
    )


STOCK = """
import os
from celery import Celery

app = Celery("x", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])

@app.task(name="faults.run")
def run(query, headers, body):
    return body
"""
WORKER = {"queues": ["sessions"], "concurrency": 1}
OWN_BROKER = True


@pytest.fixture
def gateway(servers: Servers) -> Server:
    return servers.gateway("redis", routes())


def listed(broker: RabbitMQ, begin: str) -> dict[str, tuple[int, int]]:
    """Return the messages and the consumers of the queues whose names begin with `begin`."""
    rows = broker.ctl("list_queues", "-s", "name", "messages", "consumers").splitlines()
    found = (row.split("\t") for row in rows if row.startswith(begin))
    return {name: (int(messages), int(consumers)) for name, messages, consumers in found}


def held(gateway: Server, path: str) -> float:
    """Return how many dynamic queues the gateway says that the route has."""
    return metric(gateway, "gateway_dynamic_queues", http_route=path)


def known(gateway: Server) -> list[str]:
    """Return the names of all queues that the worker has in its tables."""
    return json.loads(run(send(gateway, "/known", "")).body)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_queue_is_made_on_first_use_and_consumed_at_once(servers, strategy):
    gateway = servers.gateway(strategy, routes(60))
    for number in range(3):
        answer = run(send(gateway, f"/wait/{strategy}", f"{strategy}-{number}"))
        assert (answer.status, answer.body) == (200, f"{strategy}-{number}".encode())
    queue = f"session-{strategy}"
    until(lambda: listed(servers.broker, queue) == {queue: (0, 1)})
    assert held(gateway, "/wait/{session}") == 1


def test_a_name_outside_the_pattern_is_a_400_that_names_it(gateway, servers):
    answer = run(send(gateway, "/wait/A_B", ""))
    assert (answer.status, answer.type) == (400, "bad-request")
    assert b"param:session" in answer.body
    assert b"session-A_B" in answer.body
    assert listed(servers.broker, "session-A") == {}


def test_no_more_queues_than_the_limit(gateway, servers):
    some = [run(send(gateway, f"/accept/limit-{n}", f"limit-{n}")) for n in range(4)]
    assert [each.status for each in some] == [202, 202, 202, 503]
    assert some[3].type == "queue-limit"
    assert answered(gateway, "/accept/limit-0", "limit-again") == [202]
    assert len(listed(servers.broker, "accepted-limit")) == 3
    # One that is gone makes room for another.
    until(lambda: answered(gateway, "/accept/limit-9", "limit-9") == [202])


def test_thirty_queues_go_when_they_are_idle(servers):
    gateway = servers.gateway("redis", routes(20))
    before = known(gateway)

    some = [send(gateway, f"/wait/idle-{n}", f"idle-{n}") for n in range(30)]
    assert [answer.status for answer in run(gather(*some))] == [200] * 30
    assert len(listed(servers.broker, "session-idle")) == 30
    assert held(gateway, "/wait/{session}") == 30
    assert len([name for name in known(gateway) if name.startswith("session-idle")]) == 30

    until(lambda: not listed(servers.broker, "session-idle"))
    until(lambda: held(gateway, "/wait/{session}") == 0)
    assert not [name for name in known(gateway) if name not in before]
    bindings = servers.broker.ctl("list_bindings", "-s", "source_name", "destination_name")
    assert "session-idle" not in bindings


def test_a_queue_in_use_stays(gateway, servers):
    end = time.monotonic() + 2 * EXPIRES
    while time.monotonic() < end:
        assert answered(gateway, "/wait/used", "used") == [200]
        time.sleep(0.5)
    assert listed(servers.broker, "session-used") == {"session-used": (0, 1)}


def test_a_stock_worker_consumes_and_stops_consuming(stack, servers, tmp_path):
    (tmp_path / "stock.py").write_text(STOCK)
    env = {"BROKER": servers.broker.url, "BACKEND": servers.results.url}
    env["PYTHONPATH"] = str(tmp_path)
    stack.worker(servers.broker.url, app="stock", queues=["stock"], cwd=tmp_path, env=env)
    gateway = servers.gateway("redis", routes(static="stock"))
    assert answered(gateway, "/wait/stock", "stock") == [200]
    until(lambda: listed(servers.broker, "session-stock") == {"session-stock": (0, 1)})
    until(lambda: not listed(servers.broker, "session-stock"))
    assert answered(gateway, "/wait/stock", "stock") == [200]


def test_the_worker_that_is_lost_is_replaced(gateway, servers):
    assert answered(gateway, "/wait/lost", "lost-0") == [200]
    servers.worker.kill()
    until(lambda: listed(servers.broker, "session-lost") == {"session-lost": (0, 0)})
    restarting = asyncio.to_thread(servers.worker.restart)
    answer, _ = run(gather(send(gateway, "/wait/lost", "lost-1"), restarting))
    assert (answer.status, answer.body) == (200, b"lost-1")


def test_a_queue_that_was_deleted_is_declared_again(gateway, servers):
    assert answered(gateway, "/accept/deleted", "deleted-0") == [202]
    until(lambda: servers.executions("deleted-0"))
    with kombu.Connection(servers.broker.url) as connection:
        connection.default_channel.queue_delete("accepted-deleted")
    assert answered(gateway, "/accept/deleted", "deleted-1") == [202]
    until(lambda: servers.executions("deleted-1"))


def test_a_queue_with_other_arguments_is_a_503(gateway, servers):
    with kombu.Connection(servers.broker.url) as connection:
        connection.default_channel.queue_declare("session-other", durable=True, auto_delete=False)
    answer = run(send(gateway, "/wait/other", ""))
    assert (answer.status, answer.type) == (503, "unroutable")
    assert b"x-expires" in answer.body
    assert held(gateway, "/wait/{session}") == 0
    servers.broker.ctl("delete_queue", "session-other")


def test_a_broker_that_answers_too_late_keeps_no_channels(gateway, servers):
    assert answered(gateway, "/wait/late", "late") == [200]

    def channels() -> int:
        return len(servers.broker.ctl("list_channels", "-s", "pid").splitlines())

    before = channels()

    with servers.broker.frozen():
        sent = (send(gateway, f"/wait/late-{n}", f"late-{n}") for n in range(12))
        assert [answer.status for answer in run(gather(*sent))] == [503] * 12
    until(lambda: answered(gateway, "/wait/late", "late") == [200])
    until(lambda: channels() <= before)


def test_a_replayed_delivery_does_not_go_with_an_idle_queue(servers):
    gateway = servers.gateway("redis", f"journal = 10\n{routes()}")
    assert answered(gateway, "/accept/again", "replayed") == [202]
    until(lambda: servers.executions("replayed"))
    gateway.stop()
    servers.worker.kill()
    time.sleep(EXPIRES / 2 + 1)  # the queue would expire before a message is too old for it

    common = ["--config", str(servers.config), *servers.urls]
    found = command.run("deliveries", "list", "--json", "--route", "/accept/{session}", *common)
    (line, *_) = found.stdout.splitlines()
    assert "taken" in command.run("deliveries", "replay", json.loads(line)["id"], *common).stdout

    until(lambda: not listed(servers.broker, "accepted-again"))
    servers.worker.restart()
    until(lambda: len(servers.executions("replayed")) == 2)


def test_what_nobody_consumes_moves_to_the_static_queue(gateway, servers):
    servers.worker.kill()
    assert answered(gateway, "/accept/stranded", "stranded") == [202]
    assert listed(servers.broker, "accepted-stranded") == {"accepted-stranded": (1, 0)}
    gateway.kill()  # nobody knows of the queue any more
    until(lambda: not listed(servers.broker, "accepted-stranded"))
    assert listed(servers.broker, "sessions") == {"sessions": (1, 0)}
    servers.worker.restart()
    until(lambda: servers.executions("stranded"))


def test_a_queue_that_a_killed_gateway_has_left_goes(servers):
    killed = servers.gateway("redis", routes())
    assert answered(killed, "/wait/orphan", "orphan") == [200]
    killed.kill()
    servers.gateway("redis", routes())
    until(lambda: not listed(servers.broker, "session-orphan"))


def test_a_running_task_keeps_its_queue(servers):
    """Its message is not acknowledged, and would be lost with the queue and the worker."""
    expires = 16
    servers.start_worker(["busy"], concurrency=2)  # it answers while its task runs
    gateway = servers.gateway("redis", routes(expires, "busy"))
    assert answered(gateway, f"/accept/long?seconds={1.5 * expires}", "long") == [202]
    kept = {"accepted-long": (1, 1)}
    until(lambda: listed(servers.broker, "accepted-long") == kept)
    end = time.monotonic() + expires
    while time.monotonic() < end:
        assert listed(servers.broker, "accepted-long") == kept
        time.sleep(0.5)
    until(lambda: servers.executions("long"))
    until(lambda: not listed(servers.broker, "accepted-long"))


async def test_nothing_is_lost_while_queues_become_idle(servers):
    """Each gateway leaves names for a time in which they become idle, while others use them."""
    gateways = servers.gateways("redis", routes(), 1, 1, 2)
    chosen = random.Random(7)
    taken: set[str] = set()
    refused: list[bytes] = []

    async def use(number: int) -> None:
        name = f"turn-{number % 2}"
        for turn in range(12):
            gateway = chosen.choice(gateways)
            body = f"turn-{number}-{turn}"
            answer = await send(gateway, f"/accept/{name}", body)
            if answer.status == 202:
                taken.add(body)
            else:
                refused.append(answer.body)
            await asyncio.sleep(chosen.uniform(0.1, EXPIRES / 4 + 1.5))

    await asyncio.gather(*map(use, range(4)))
    assert len(taken) > 2 * 12, refused  # a busy machine may confirm some of them too late
    until(lambda: {one.id for one in servers.executions("turn-")} >= taken)
    until(lambda: not listed(servers.broker, "accepted-turn"))


def test_the_broker_is_restarted(gateway, servers):
    assert answered(gateway, "/accept/restart", "restart-0") == [202]
    until(lambda: servers.executions("restart-0"))
    servers.broker.sync()
    servers.broker.restart()
    until(lambda: answered(gateway, "/accept/restart", "restart-1") == [202])
    until(lambda: servers.executions("restart-1"))
    assert answered(gateway, "/wait/restart", "restart-2") == [200]
