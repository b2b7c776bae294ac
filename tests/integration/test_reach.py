"""A route calls a task that was there before, with its own arguments and options."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any

import kombu
import pytest
import redis

from gateway.config.strategies import STRATEGIES
from tests.integration.checking import check, write
from tests.integration.deliveries import URLS, Servers, run, send
from tests.support import command
from tests.support.config import route
from tests.support.http_client import Answer, Connection, request
from tests.support.requests import metric
from tests.support.stack import RabbitMQ, Server

EVENTS = {"exchange": "events", "routing_key": "orders.{json:/kind}"}
MESSAGE = {"priority": "json:/urgency", "message_headers": {"region": "header:x-region"}}
LIMITS = {"time_limit": 60, "soft_time_limit": 50}
TEXT = {"from": "json:/text", "default": "nothing"}
PAID = {"json:/status": ["paid", "refunded"], "header:x-env": "live*", "json:/test": False}
CONFIG = (
    URLS
    + "journal = 1000\n"
    + route("/kept", "shop.options", answer="wait-then-accept", **EVENTS, **MESSAGE)
    + route(
        "/pay/{shop}",
        "shop.pay",
        args=["json:/order/id"],
        kwargs={
            "email": "json:/customer/email",
            "tenant": "header:X-Tenant",
            "page": {"from": "query:page", "default": 1},
            "shop": "param:shop",
            "data": "json:",
            "raw": "body",
            "caller": "remote",
            "kind": "event",
            "source": "source",
            "id": "delivery",
        },
    )
    + route("/raw", "shop.raw", kwargs={"payload": "body"})
    + route("/about/{shop}", "shop.about", args=[])
    + route("/options", "shop.options", countdown=1, expires=600, **LIMITS, **MESSAGE)
    + route("/topic", "shop.options", **EVENTS)
    + route("/later", "shop.options", exchange="made-later")
    + route("/breaks", "shop.breaks", link_error="shop.noted")
    + route("/quiet", "shop.quiet", answer="accept", ignore_result=True, args=[TEXT])
    + route("/paid", "api.core.main", when=PAID)
    + route("/paid", "shop.raw", args=["body"], when={"json:/status": "void"})
)

WORKER = {"concurrency": 1}
ORDER = {"order": {"id": 7}, "customer": {"email": "ä@example.com"}, "n": None}


@pytest.fixture(scope="module", autouse=True)
def bound(rabbitmq: RabbitMQ) -> None:
    """Have an exchange lead to the worker's queue."""
    with kombu.Connection(rabbitmq.url) as connection:
        channel = connection.default_channel
        exchange = kombu.Exchange("events", "topic", channel=channel)
        queue = kombu.Queue("celery", kombu.Exchange(""), "celery", channel=channel)
        exchange.declare()
        queue.queue_declare()
        queue.bind_to("events", routing_key="orders.paid.#")


@pytest.fixture(scope="module", params=STRATEGIES)
def gateway(request: pytest.FixtureRequest, servers: Servers) -> Server:
    return servers.gateway(request.param, CONFIG)


def post(gateway: Server, target: str, body: Any, *headers: str) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body)
    return run(send(gateway, target, text, *headers))


def detail(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.problem.get("detail", "")


def test_a_task_gets_the_arguments_that_the_route_names(gateway):
    answer = post(gateway, "/pay/main?page=1&page=2", ORDER, "X-Tenant: t1")

    assert answer.status == 200
    got = json.loads(answer.body)
    assert len(got.pop("id")) == 36
    assert got == {
        "order": 7, "email": "ä@example.com", "tenant": "t1", "page": "2", "shop": "main",
        "data": ORDER, "raw": json.dumps(ORDER), "caller": "127.0.0.1", "kind": "", "source": "",
    }  # fmt: skip


def test_what_is_missing_is_a_400_that_names_it_unless_it_has_a_default(gateway):
    without_tenant = post(gateway, "/pay/main", ORDER)
    without_order = post(gateway, "/pay/main", {"order": []}, "X-Tenant: t1")
    no_json = post(gateway, "/pay/main", "order=7", "X-Tenant: t1")
    with_default = post(gateway, "/pay/main", ORDER, "X-Tenant: t1")

    assert detail(without_tenant) == (400, "header:X-Tenant is missing.")
    assert detail(without_order) == (400, "json:/order/id is missing.")
    assert detail(no_json) == (400, "The JSON is malformed.")
    assert with_default.status == 200, with_default.body
    assert json.loads(with_default.body)["page"] == 1


def test_a_body_that_is_no_text_arrives_as_bytes(gateway):
    async def both() -> list[Answer]:
        async with await Connection.open(gateway.port) as connection:
            return [await connection.ask(request(body, "/raw")) for body in (b"text", b"\xff\0")]

    assert [json.loads(a.body) for a in run(both())] == [["str", 4], ["bytes", 2]]


def test_what_no_worker_could_decode_is_refused(gateway):
    trap = {"order": {"id": {"x": [{"__type__": "uuid", "__value__": "no"}]}}, "customer": {}}
    answer = post(gateway, "/pay/main", {**trap, "customer": {"email": "x"}}, "X-Tenant: t1")
    harmless = {**ORDER, "note": {"__type__": "uuid"}}

    assert detail(answer) == (400, "The names __type__ and __value__ are reserved.")
    assert post(gateway, "/pay/main", harmless, "X-Tenant: t1").status == 200


def test_a_task_knows_its_delivery(gateway):
    answer = post(gateway, "/about/main?a=1&a=2&b=", "x")

    got = json.loads(answer.body)
    assert datetime.fromisoformat(got.pop("at")).tzinfo is not None
    assert got == {"params": {"shop": "main"}, "queries": {"a": ["1", "2"], "b": [""]}}


def test_a_message_has_celery_s_options(gateway):
    before = datetime.now().astimezone()
    answer = post(gateway, "/options", {"urgency": 5}, "X-Region: eu")

    assert answer.status == 200
    got = json.loads(answer.body)
    eta, expires = (datetime.fromisoformat(got.pop(name)) for name in ("eta", "expires"))
    assert 1 <= (eta - before).total_seconds() < 10
    assert (expires - eta).total_seconds() < 15  # nobody waits for longer
    assert got == {
        "timelimit": [60, 50], "priority": 5, "exchange": "", "routing_key": "celery",
        "ignore_result": False, "region": "eu",
    }  # fmt: skip
    refused = post(gateway, "/options", {"urgency": 256}, "X-Region: eu")
    assert detail(refused) == (400, "json:/urgency has to be a whole number from 0 to 255.")


def test_an_exchange_routes_by_what_is_in_the_delivery(gateway):
    routed = post(gateway, "/topic", {"kind": "paid.eu"})
    nowhere = post(gateway, "/topic", {"kind": "void"})
    too_long = post(gateway, "/topic", {"kind": "x" * 300})

    assert json.loads(routed.body)["routing_key"] == "orders.paid.eu"
    assert json.loads(routed.body)["exchange"] == "events"
    assert nowhere.status == 503
    assert "The exchange events routes 'orders.void' to no queue." in detail(nowhere)[1]
    assert too_long.status == 400


async def test_an_exchange_that_is_missing_harms_nobody_else(gateway, servers):
    some = ("/later", "/raw", "/later", "/raw")
    answers = await asyncio.gather(*(send(gateway, target, "text") for target in some))

    assert [a.status for a in answers] == [503, 200, 503, 200]
    assert detail(answers[0])[1] == "The exchange made-later is missing."
    with kombu.Connection(servers.broker.url) as connection:
        channel = connection.default_channel
        channel.exchange_declare("made-later", "fanout", durable=True)
        channel.queue_bind("celery", "made-later", "")

        async def taken() -> bool:
            return (await send(gateway, "/later", "text")).status == 200

        async def until_taken() -> None:
            while not await taken():
                await asyncio.sleep(0.1)

        await until_taken()
        channel.exchange_delete("made-later")


def test_a_failure_calls_the_task_that_the_route_names(gateway, servers):
    with redis.Redis.from_url(servers.results.url, socket_timeout=None) as client:
        client.delete("failed")
        answer = post(gateway, "/breaks", "x")
        failed = client.blpop("failed", 30)

    assert (answer.status, answer.problem["task_id"]) == (502, failed[1].decode())


async def test_a_result_that_nobody_wants_is_not_stored(gateway, servers):
    with redis.Redis.from_url(servers.results.url, socket_timeout=None) as client:
        client.delete("quiet")
        answer = await send(gateway, "/quiet", "{}")
        assert client.blpop("quiet", 30)[1] == b"nothing"
        task_id = json.loads(answer.body)["task_id"]

        # A later task of the only process has ended.
        assert (await send(gateway, "/raw", "text")).status == 200
        assert answer.status == 202
        assert "location" not in answer.headers
        assert not client.keys(f"*{task_id}*")


async def test_a_route_takes_what_its_filter_says(gateway):
    live = "X-Env: live-eu"
    before = metric(gateway, "gateway_deliveries_filtered_total")

    answers = [
        await send(gateway, "/paid", json.dumps(body), header)
        for body, header in (
            ({"status": "paid", "test": False}, live),
            ({"status": "refunded", "test": False}, "X-Env: live"),
            ({"status": "paid", "test": 0}, live),
            ({"status": "paid", "test": False}, "X-Env: test"),
            ({"status": "other", "test": False}, live),
            ([], live),
            ({"status": "void"}, "X-Env: test"),
        )
    ]

    assert [a.status for a in answers] == [200, 200, 204, 204, 204, 204, 200]
    assert json.loads(answers[-1].body)[0] == "str"
    assert metric(gateway, "gateway_deliveries_filtered_total") - before == 4


def test_check_names_a_missing_exchange(servers, tmp_path):
    exchanges = {"/a": "events", "/b": "no-such-exchange"}
    text = "".join(route(path, "shop.options", exchange=e) for path, e in exchanges.items())

    checked = check(*write(tmp_path, text), *servers.urls)

    assert checked.code == 1
    assert "create it with its bindings" in checked.of("exchange no-such-exchange").text
    assert "it exists" in checked.of("exchange events").text


def test_a_replay_sends_what_was_sent(servers, gateway):
    """The journal has a message's exchange, routing key, headers and priority."""
    sent = post(gateway, "/kept", {"kind": "paid", "urgency": 7}, "X-Region: eu")
    arguments = ["--json", *servers.urls]
    listed = command.run("deliveries", "list", "--route", "/kept", *arguments).stdout
    delivery = json.loads(listed.splitlines()[0])["id"]

    arguments += ["--config", str(servers.config)]
    replayed = command.run("deliveries", "replay", delivery, "--wait", "30", *arguments[1:]).stdout

    assert "taken" in replayed
    task_id = replayed.split("task ")[1].split()[0]
    with redis.Redis.from_url(servers.results.url, socket_timeout=None) as client:
        (key,) = client.keys(f"*{task_id}")
        result = json.loads(client.get(key))["result"]
    assert result == json.loads(sent.body)
    assert (result["priority"], result["region"]) == (7, "eu")
    assert result["routing_key"] == "orders.paid"
