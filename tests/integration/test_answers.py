"""Accepting without a result, results by URL, and what a sender prefers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from time import monotonic
from urllib.parse import urlsplit

import pytest

from gateway.config.strategies import STRATEGIES
from tests.integration.deliveries import URLS, Servers, expired, gather, keyed, run, send, state_of
from tests.support.config import route
from tests.support.http_client import Answer, Connection, request
from tests.support.requests import metric
from tests.support.stack import Server
from tests.support.waiting import eventually

SUCCESS = {"fallback": "success", "content_type": "text/xml"}
CONFIG = (
    URLS
    + "timeout = 5\n"
    + route("/accept", answer="accept")
    + keyed("/accept-once", answer="accept")
    + route("/wait", prefer=True, deadline=2, content_type="application/xml")
    + route("/unmoved")
    + route("/later", answer="wait-then-accept", deadline=1.0)
    + route("/soon", answer="wait-then-accept", deadline=30.0)
    + route("/fallback", answer="wait-then-accept", deadline=1.0, **SUCCESS)
    + route("/fails", "appserver.tasks.fail", answer="accept")
    + route("/nowhere", answer="accept", queue="a-queue-that-nobody-makes", declare=False)
)
#: The worker has threads for the tasks of all strategies at once, which sleep.
WORKER = {"concurrency": 32, "pool": "threads"}


@pytest.fixture(scope="module")
def gateways(servers: Servers) -> dict[str, Server]:
    """All strategies, which are asked beside each other."""
    gateways = servers.each({name: (name, CONFIG) for name in STRATEGIES})
    yield gateways
    assert {name: metric(g, "gateway_in_flight") for name, g in gateways.items()} == dict.fromkeys(
        STRATEGIES, 0
    )


@pytest.fixture(scope="module")
def one(gateways: dict[str, Server]) -> Server:
    """A gateway for what does not depend on the strategy."""
    return gateways["pika"]


def with_each(gateways: dict[str, Server], work: Callable[[str, Server], Awaitable[None]]) -> None:
    """Do `work` with each strategy, beside each other; a failure names its strategy."""

    async def named(name: str, gateway: Server) -> None:
        try:
            await work(name, gateway)
        except BaseException as error:
            error.add_note(f"with the strategy {name}")
            raise

    run(gather(*(named(name, gateway) for name, gateway in gateways.items())))


async def result(gateway: Server, answer: Answer) -> Answer:
    """Ask at the answer's Location until there is a result."""
    while True:
        found = await send(gateway, urlsplit(answer.headers["location"]).path, "", method="GET")
        if found.status != 202:
            return found
        assert (found.body, found.headers["retry-after"]) == (b"", "1")
        await asyncio.sleep(0.05)


def test_accepted_at_once_with_the_result_to_come(servers, gateways):
    async def accept(name: str, gateway: Server) -> None:
        body = f"accepted-{name}"
        answer = await send(gateway, f"/accept?until={body}", body)
        servers.release(body)
        found = await result(gateway, answer)

        assert (answer.status, answer.headers["content-type"]) == (202, "application/json")
        assert answer.headers["location"].startswith("https://hooks.example.com/results/")
        assert (found.status, found.body) == (200, body.encode())
        assert len(servers.executions(body)) == 1

    with_each(gateways, accept)


def test_what_no_queue_takes_is_not_accepted(gateways):
    async def refused(_name: str, gateway: Server) -> None:
        assert (await send(gateway, "/nowhere", "x")).type == "unroutable"

    with_each(gateways, refused)


def test_a_result_in_time_is_the_answer_a_later_one_is_at_its_location(servers, gateways):
    async def both(name: str, gateway: Server) -> None:
        body = f"later-{name}"

        # With a deadline that a busy machine keeps, too.
        soon = await send(gateway, "/soon?seconds=0", f"soon-{body}")
        later, fallback = await gather(
            send(gateway, f"/later?until={body}", body),
            send(gateway, f"/fallback?until={body}", f"fallback-{body}"),
        )
        servers.release(body)

        assert (soon.status, soon.body.decode()) == (200, f"soon-{body}")
        assert later.status == 202
        assert (fallback.status, fallback.body) == (200, b"success")
        assert fallback.headers["content-type"] == "text/xml"
        assert (await result(gateway, later)).body == body.encode()
        await eventually(lambda: servers.executions(f"fallback-{body}"))

    with_each(gateways, both)


def test_an_accepted_delivery_is_accepted_again_and_runs_once(servers, gateways):
    async def repeat(name: str, gateway: Server) -> None:
        body = f"once-{name}"
        key = f"Idempotency-Key: {body}"

        copies = await gather(
            *(send(gateway, "/accept-once?seconds=0.3", body, key) for _ in range(20))
        )
        found = [await result(gateway, copy) for copy in copies]
        later = await send(gateway, "/accept-once", body, key)

        assert {a.status for a in [*copies, later]} == {202}
        assert {(a.status, a.body) for a in found} == {(200, body.encode())}
        assert (await result(gateway, later)).body == body.encode()
        assert len(servers.executions(body)) == 1

    with_each(gateways, repeat)


async def test_an_accepted_delivery_is_not_run_again_when_its_result_has_gone(servers):
    config = CONFIG.replace("timeout = 5", "timeout = 5\nresult_expires = 1")
    gateway = servers.gateway("redis", config)
    key = "Idempotency-Key: gone"
    first = await send(gateway, "/accept-once", "gone", key)
    await eventually(lambda: servers.executions("gone"))
    location = urlsplit(first.headers["location"]).path

    while (await send(gateway, location, "", method="GET")).status != 410:
        await asyncio.sleep(0.05)
    await eventually(lambda: expired(servers.results, "gone"))
    (execution,) = servers.executions("gone")
    servers.results.client.delete(f"celery-task-meta-{execution.task}")

    again = await send(gateway, "/accept-once", "gone", key)

    assert again.status == 202
    assert (await result(gateway, again)).type == "result-expired"
    # Nobody took it over.
    assert state_of(servers.results, "gone") == "confirmed"
    assert len(servers.executions("gone")) == 1


def test_a_failed_task_is_told_of_at_its_location(one):
    answer = run(send(one, "/fails", "x"))

    found = run(result(one, answer))

    assert answer.status == 202
    assert found.type == "task-failed"
    assert "TaskFailure" in found.problem["detail"]
    ids = json.loads(answer.body)
    assert {name: found.problem[name] for name in ids} == ids


def test_a_sender_may_prefer_not_to_wait(servers, one):
    # With the status, the preference that is applied, and the seconds that the request waits.
    preferences = {
        "respond-async": (202, "respond-async", 0),
        "wait=1": (202, "wait=1", 1),
        "respond-async, wait=1": (202, "wait=1", 1),
        # The route's own deadline is the longest that it waits.
        "wait=30": (202, "wait=30", 2),
        "handling=lenient": (504, None, 2),
        "wait=soon": (504, None, 2),
    }
    answered = []

    async def prefer(preference: str, status: int, applied: str | None, seconds: float) -> Answer:
        began = monotonic()
        answer = await send(one, "/wait?until=preferred", preference, f"Prefer: {preference}")
        answered.append(seconds)

        assert monotonic() - began >= seconds - 0.1
        assert answer.status == status
        assert answer.headers.get("preference-applied") == applied
        return answer

    first, *_ = run(gather(*(prefer(name, *told) for name, told in preferences.items())))
    servers.release("preferred")
    found = run(result(one, first))

    assert answered == sorted(answered)
    assert found.headers["content-type"] == "application/xml"
    assert found.body == b"respond-async"


def test_a_route_that_does_not_heed_preferences_waits(one):
    answer = run(send(one, "/unmoved", "unmoved", "Prefer: respond-async"))
    assert (answer.status, answer.body) == (200, b"unmoved")
    assert "preference-applied" not in answer.headers


def test_what_is_no_url_of_a_result_finds_nothing(servers, one):
    path = result_path(one, "secret")
    foreign = servers.gateway("pika", CONFIG.replace("of these tests only", "of somebody else"))

    for gateway, wrong in ((one, path[:-1]), (one, f"{path}A"), (one, f"{path}/"), (foreign, path)):
        answer = run(send(gateway, wrong, "", method="GET"))
        assert answer.status == 404 and b"secret" not in answer.body
    assert run(send(one, path, "", method="GET")).body == b"secret"


def result_path(gateway: Server, body: str) -> str:
    """Have a delivery accepted; return the path of its result, which is there."""
    answer = run(send(gateway, "/accept", body))
    run(result(gateway, answer))
    return urlsplit(answer.headers["location"]).path


def test_a_head_of_a_result_is_its_get_without_the_body(one):
    path = result_path(one, "a result")

    async def ask(path: str) -> tuple[Answer, Answer]:
        async with await Connection.open(one.port) as connection:
            connection.send(request(b"", path, method="HEAD"))
            head = await connection.answer(head=True)
            return head, await connection.ask(request(b"", path, method="GET"))

    for asked, status in [(path, 200), (f"{path}x", 404)]:
        head, whole = run(ask(asked))
        assert head.status == whole.status == status
        for name in ("content-type", "content-length"):
            assert head.headers[name] == whole.headers[name]
        assert len(whole.body) == int(head.headers["content-length"]) > 0
    refused = run(send(one, path, "", method="POST"))
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


def test_many_who_ask_at_once_are_answered_over_few_connections(one):
    path = result_path(one, "asked for")

    found = run(gather(*(send(one, path, "", method="GET") for _ in range(500))))

    assert {(a.status, a.body) for a in found} == {(200, b"asked for")}
