"""What every strategy owes while a server is away, and when it is back, without a restart."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.contract.conftest import GRACE, start_gateway
from tests.support.requests import confirmed, fetch, metric, post, post_each
from tests.support.stack import RabbitMQ, Server, Stack
from tests.support.strategies import COMPARED, USED
from tests.support.waiting import until

CONNECTED = "gateway_broker_connections_total"
TIMEOUT = 10.0  # seconds: the gateways' default deadline


@pytest.fixture(scope="module")
def broker(own_rabbitmq: RabbitMQ) -> RabbitMQ:
    return own_rabbitmq


@pytest.fixture(
    scope="module",
    params=[USED, pytest.param(["pika", *COMPARED], marks=pytest.mark.long)],
    ids=["used", "compared"],
)
def gateways(
    request: pytest.FixtureRequest, stack: Stack, broker: RabbitMQ, results: Server, routes
) -> dict[str, Server]:
    """Several strategies, beside each other, over servers that these tests break."""
    worker = stack.worker(broker.url, results.url, pool="threads", concurrency=8)
    gateways = {
        name: start_gateway(stack, name, broker.url, results.url, routes) for name in request.param
    }
    yield gateways
    for server in (*gateways.values(), worker):
        server.stop()


def answers(gateways: dict[str, Server], path: str = "/") -> dict[str, int]:
    """Post to each at once; return the statuses, which all came in time."""
    began = time.monotonic()
    codes = [a.code for a in post_each([(f"{g.url}{path}", b"hi") for g in gateways.values()])]
    assert time.monotonic() - began <= TIMEOUT + GRACE
    return dict(zip(gateways, codes, strict=True))


def until_ready(gateways: dict[str, Server]) -> None:
    for gateway in gateways.values():
        until(lambda g=gateway: fetch(f"{g.admin_url}/readyz").status == 200)


def test_a_killed_broker_is_503_and_its_return_is_noticed(gateways, broker):
    broker.kill()
    assert answers(gateways) == dict.fromkeys(gateways, 503)
    broken = fetch(f"{gateways['pika'].admin_url}/readyz")
    assert broken.status == 503
    assert json.loads(broken.body)["children"][0]["broker"]

    broker.restart()
    until_ready(gateways)

    assert answers(gateways) == dict.fromkeys(gateways, 200)


def test_a_frozen_broker_is_503_at_the_confirm_timeout(gateways, broker):
    with broker.frozen():
        assert answers(gateways) == dict.fromkeys(gateways, 503)
    until_ready(gateways)
    assert answers(gateways) == dict.fromkeys(gateways, 200)


def test_a_memory_alarm_is_a_503_for_new_requests(gateways, broker):
    with broker.alarm():
        # The broker tells a connection that it is blocked when that next publishes.
        answers(gateways)
        for name, gateway in gateways.items():
            refused = post(f"{gateway.url}/")
            assert json.loads(refused.body)["type"] == "urn:celery-gateway:broker-blocked", name
    until_ready(gateways)
    assert answers(gateways) == dict.fromkeys(gateways, 200)


def test_connections_closed_by_force_come_back(gateways, broker):
    before = {g: metric(g, CONNECTED) for g in gateways.values()}
    broker.ctl("close_all_connections", "maintenance")
    until(lambda: all(metric(g, CONNECTED) > before[g] for g in gateways.values()))
    until_ready(gateways)

    assert answers(gateways) == dict.fromkeys(gateways, 200)


def test_without_its_result_store_a_strategy_refuses_and_pika_does_not_notice(gateways, results):
    others = {name: gateway for name, gateway in gateways.items() if name != "pika"}
    patient = {name: gateway for name, gateway in others.items() if name != "blocking"}
    with ThreadPoolExecutor() as waiting:
        # Given a confirmed request in each,
        urls = [(f"{g.url}/sleep?seconds=3", b"hi") for g in patient.values()]
        before = {g: confirmed(g) for g in patient.values()}
        under_way = waiting.submit(post_each, urls)
        until(lambda: all(confirmed(g) > before[g] for g in patient.values()))
        # when the store goes,
        results.kill()
        # then new requests are refused, or lost where that was not known yet,
        assert post(f"{gateways['pika'].url}/").code == 200
        assert set(answers(others).values()) <= {503, 504}
        # and what was confirmed may still run, which a 503 would deny.
        assert [answer.code for answer in under_way.result()] == [504] * len(patient)
    assert set(answers(others).values()) == {503}

    results.restart()
    until_ready(gateways)
    until(lambda: answers(gateways) == dict.fromkeys(gateways, 200))


def test_what_a_result_store_refused_is_no_later_request_s_concern(gateways, results):
    with redis.Redis.from_url(results.url) as client:
        client.execute_command("ACL", "SETUSER", "default", "-@all", "+acl")
        try:
            codes = answers(gateways, "/slow?seconds=0")
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+@all")
    assert codes.pop("pika") == 200 and set(codes.values()) <= {503, 504}
    until_ready(gateways)
    # It may be reconnecting, but an error that was left over is nobody's answer.
    assert 504 not in answers(gateways).values()
    until(lambda: answers(gateways) == dict.fromkeys(gateways, 200))
