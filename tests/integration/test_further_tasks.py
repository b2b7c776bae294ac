"""A delivery that starts several tasks, one that is revoked, and ids that come from deliveries."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import kombu
import kombu.pools
import pytest
from celery import Celery

from gateway.config.strategies import STRATEGIES
from tests.integration.deliveries import URLS, Servers, run, send
from tests.support.config import route, source
from tests.support.http_client import Answer, Connection, connections, request
from tests.support.requests import PUBLISHED, confirmed, metric
from tests.support.stack import Server
from tests.support.waiting import eventually, until

BILL = {"task": "order.bill", "queue": "bills", "args": ["json:/id"]}
MAIL = {
    "task": "order.mail",
    "queue": "mails",
    "args": ["json:/id", {"from": "json:/mail", "default": ""}],
}
#: Its queue is missing, and its address is needed.
REFUSED = {
    "task": "order.mail", "queue": "nobody-made-it", "declare": False,
    "args": ["json:/id", "json:/mail"],
}  # fmt: skip


def order(path: str, *further: dict[str, Any], **settings: Any) -> str:
    """Return a route that calls `order.own` and `further` tasks."""
    kwargs = {"key": "json:/id", "fails": {"from": "json:/fails", "default": 0}}
    return route(path, "order.own", kwargs=kwargs, also=further, **settings)


KEY = "json:/id"
CONFIG = (
    f"{URLS}\njournal = 100\n"
    + order("/order", BILL, MAIL, idempotency=KEY)
    + order("/refused", BILL, REFUSED, idempotency=KEY)
    + order("/nameless", BILL, answer="accept")
    + order("/sourced", answer="accept", task_id="identity", source="lab")
    + order("/once", answer="accept", task_id="identity", idempotency=KEY)
    + source("lab", "gitlab", secrets="of these tests only")
)


def revoking(*further: dict[str, Any]) -> str:
    """Return a route whose task is revoked when its caller has gone."""
    more = {"queue": "one", "deadline": 60, "revoke": True, "also": further}
    return route("/wanted", "order.hold", args=["json:/id"], **more)


QUEUES = ["celery", "bills", "mails"]
WORKER = {"queues": QUEUES, "concurrency": 1}
OWN_BROKER = True


@pytest.fixture(scope="module", params=STRATEGIES)
def gateway(request: pytest.FixtureRequest, servers: Servers) -> Server:
    return servers.gateway(request.param, CONFIG)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A delivery's key that no other test has."""
    return request.node.name


def post(gateway: Server, target: str, **body: Any) -> Answer:
    answer = run(send(gateway, target, json.dumps(body)))
    assert answer is not None
    return answer


def ran(servers: Servers, key: str) -> dict[str, list[str]]:
    """Return the ids of the tasks that have run for a delivery, by name."""
    found: dict[str, list[str]] = {}
    with servers.results.client as client:
        for line in client.lrange(f"ran:{key}", 0, -1):
            name, task_id = line.decode().split()
            found.setdefault(name, []).append(task_id)
    return found


def until_ran(servers: Servers, key: str, **times: int) -> dict[str, list[str]]:
    """Wait until the tasks have run so many times, and return their ids."""

    def counts() -> dict[str, int]:
        return {name.removeprefix("order."): len(ids) for name, ids in ran(servers, key).items()}

    until(lambda: counts() == times)
    return ran(servers, key)


def test_a_delivery_starts_several_tasks_and_its_own_one_answers(gateway, servers, key):
    answers = [post(gateway, "/order", id=key) for _ in range(2)]

    assert [(a.status, a.body.decode()) for a in answers] == [(200, key)] * 2
    ids = until_ran(servers, key, own=1, bill=1, mail=1)
    assert len({task_id for some in ids.values() for task_id in some}) == 3
    assert not servers.results.client.exists(f"celery-task-meta-{ids['order.bill'][0]}")


def test_the_next_try_publishes_only_what_is_missing(gateway, servers, key):
    refused = [post(gateway, "/refused", id=key, mail="a@example.com") for _ in range(2)]

    assert [a.status for a in refused] == [503, 503]
    assert refused[0].problem["detail"] == "The queue nobody-made-it is missing."
    assert refused[0].headers["retry-after"] == "1"
    until_ran(servers, key, bill=1)
    with kombu.Connection(servers.broker.url) as connection:
        queue = kombu.Queue("nobody-made-it", channel=connection.default_channel)
        queue.queue_declare()
        try:
            taken = [post(gateway, "/refused", id=key, mail="a@example.com") for _ in range(2)]
            waiting = [queue.get(no_ack=True), queue.get(no_ack=True)]
        finally:
            queue.delete()

    assert [a.status for a in taken] == [200, 200]
    until_ran(servers, key, own=1, bill=1)
    assert waiting[0].headers["task"] == "order.mail"
    assert waiting[1] is None


def test_a_failed_task_is_run_again_without_the_others(gateway, servers, key):
    answers = [post(gateway, "/order", id=key, fails=1) for _ in range(2)]

    assert [a.status for a in answers] == [502, 200]
    until_ran(servers, key, own=2, bill=1, mail=1)


def test_a_value_that_is_missing_is_told_before_anything_is_published(gateway, servers, key):
    before = metric(gateway, PUBLISHED)
    answer = post(gateway, "/refused", id=key)

    assert (answer.status, answer.problem["detail"]) == (400, "json:/mail is missing.")
    assert metric(gateway, PUBLISHED) == before


def test_deliveries_without_an_identity_start_all_tasks(gateway, servers, key):
    answers = [post(gateway, "/nameless", id=key) for _ in range(2)]

    assert [a.status for a in answers] == [202, 202]
    ids = until_ran(servers, key, own=2, bill=2)
    assert len(set(ids["order.bill"])) == 2


def test_a_task_whose_id_comes_from_the_delivery_runs_once(gateway, servers, key):
    taken = [post(gateway, "/once", id=key) for _ in range(2)]
    failing = post(gateway, "/once", id=f"{key}-fails", fails=9)
    until_ran(servers, f"{key}-fails", own=1)
    later = [post(gateway, "/once", id=f"{key}-fails", fails=9) for _ in range(2)]

    ids = until_ran(servers, key, own=1)
    assert [a.status for a in (*taken, failing, *later)] == [202] * 5
    assert {json.loads(a.body)["task_id"] for a in taken} == set(ids["order.own"])
    assert len({json.loads(a.body)["task_id"] for a in (failing, *later)}) == 1
    assert len(ran(servers, f"{key}-fails")["order.own"]) == 1


def test_deliveries_that_lack_an_identity_are_different_tasks(gateway, servers, key):
    secret = "X-Gitlab-Token: of these tests only"
    sent = [
        run(send(gateway, "/sourced", json.dumps({"id": f"{key}-{n}"}), secret)) for n in range(2)
    ]

    ids = [until_ran(servers, f"{key}-{n}", own=1)["order.own"] for n in range(2)]
    assert [a.status for a in sent] == [202] * 2
    assert [[json.loads(a.body)["task_id"]] for a in sent] == ids
    assert ids[0] != ids[1]


@pytest.mark.parametrize("strategy", ["redis", "pika", "threadpool"])
def test_a_task_whose_caller_has_gone_is_revoked_if_it_has_not_begun(strategy, servers, key):
    gateway = servers.gateway(strategy, revoking())
    servers.start_worker(["one"], concurrency=2)  # prefork, which hears while it works

    async def begin(connection: Connection, name: str) -> None:
        connection.send(request(json.dumps({"id": f"{key}-{name}"}).encode(), "/wanted"))

    async def story(revoked: Callable[[], object]) -> list[Answer]:
        async with connections(gateway.port, 2) as callers:
            for caller, name in zip(callers, "ab", strict=True):
                await begin(caller, name)
                await eventually(lambda name=name: ran(servers, f"{key}-{name}"))
            async with await Connection.open(gateway.port) as leaving:
                await begin(leaving, "c")
                await eventually(lambda: metric(gateway, "gateway_in_flight") == 3)
            await eventually(revoked)
            with servers.results.client as client:
                for name in "abd":
                    client.rpush(f"end:{key}-{name}", 1)
            answers = [await caller.answer() for caller in callers]
            await begin(callers[0], "d")
            return [*answers, await callers[0].answer()]

    kombu.pools.reset()  # as others may have left a connection to a broker that has died since
    try:
        with Celery(broker=servers.broker.url, set_as_current=False) as app:

            def revoked() -> list[set[str]]:
                """Return which tasks each worker knows to be revoked."""
                return [set(ids) for ids in (app.control.inspect().revoked() or {}).values()]

            before = set().union(*revoked())
            answers = run(story(lambda: set.intersection(*revoked()) - before))
    finally:
        kombu.pools.reset()  # where Celery has left its connection

    assert [a.status for a in answers] == [200] * 3
    assert not ran(servers, f"{key}-c")


async def test_revoking_before_any_worker_has_been_there_harms_nobody(stack, redis_server, key):
    broker = stack.rabbitmq()
    config = stack.directory / "revoking.toml"
    config.write_text(revoking())
    urls = ["--broker", broker.url, "--result-backend", redis_server.url]
    gateway = stack.gateway("--strategy=pika", *urls, "--config", str(config))
    body = json.dumps({"id": key})

    for _ in range(3):
        async with await Connection.open(gateway.port) as caller:
            caller.send(request(body.encode(), "/wanted"))
            await eventually(lambda: metric(gateway, "gateway_in_flight") == 1)
        await eventually(lambda: metric(gateway, "gateway_in_flight") == 0)
        await eventually(lambda: "the channel for revocations was closed" in gateway.output())
    assert metric(gateway, "gateway_broker_connections_total") == 1
    assert confirmed(gateway) == 3


def test_a_further_task_that_was_changed_between_two_tries_is_published(servers, key):
    """One at the same place, with the same name, is not taken for the one that has run."""
    changed = URLS + order("/refused", BILL | {"args": ["json:/more"]}, MAIL, idempotency=KEY)
    old, new = (servers.gateway("pika", config) for config in (CONFIG, changed))
    body = {"id": key, "more": f"{key}-more", "mail": ""}

    assert post(old, "/refused", **body).status == 503
    until_ran(servers, key, bill=1)
    assert post(new, "/refused", **body).status == 200

    until_ran(servers, f"{key}-more", bill=1)


async def test_a_caller_who_goes_before_the_own_task_is_published_has_none(servers, key):
    gateway = servers.gateway("pika", revoking(BILL))
    body = json.dumps({"id": key}).encode()

    with servers.broker.frozen():
        async with await Connection.open(gateway.port) as caller:
            caller.send(request(body, "/wanted"))
            await eventually(lambda: metric(gateway, "gateway_in_flight") == 1)
        await eventually(lambda: metric(gateway, "gateway_in_flight") == 0)
    until_ran(servers, key, bill=1)
    with kombu.Connection(servers.broker.url) as connection:
        assert connection.default_channel.queue_declare("one", passive=True).message_count == 0


def test_redis_that_fails_after_the_claim_is_no_redis_either(stack, servers, key):
    """It fails when it is asked which further tasks earlier tries have published."""
    state = stack.redis()
    config = f'state_url = "{state.url}"\n{CONFIG}'
    refusing = servers.gateway("pika", config)
    relaying = servers.gateway("pika", f'without_state = "relay"\n{config}')
    with state.client as client:
        client.execute_command("ACL", "SETUSER", "default", "-smembers")
        refused = post(refusing, "/order", id=f"{key}-refused")
        relayed = post(relaying, "/order", id=key)
        client.execute_command("ACL", "SETUSER", "default", "+smembers")
    later = [post(relaying, "/order", id=key), post(refusing, "/order", id=f"{key}-refused")]

    # The claim was released, and nothing published: the next try does all.
    assert (refused.status, refused.type) == (503, "state-unavailable")
    until_ran(servers, f"{key}-refused", own=1, bill=1, mail=1)
    # All was published, and the claim, which is held, gives the later try the same answer.
    assert (relayed.status, relayed.body) == (200, key.encode())
    until_ran(servers, key, own=1, bill=1, mail=1)
    assert [(a.status, a.body) for a in later] == [
        (200, key.encode()), (200, f"{key}-refused".encode()),
    ]  # fmt: skip
