"""What every strategy owes while a server is away, and when it is back, without a restart."""

from __future__ import annotations

import json
import time

import pytest

from gateway.stack import RabbitMQ, Server, Stack
from gateway.strategies import STRATEGIES
from tests.contract.conftest import GRACE, get, post, post_each, start_gateway

TIMEOUT = 10.0  # seconds: the gateways' default deadline


@pytest.fixture(scope="module")
def broker(stack: Stack, start) -> RabbitMQ:
    broker = start(stack.rabbitmq)
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def results(stack: Stack, start) -> Server:
    results = start(stack.redis)
    yield results
    results.stop()


@pytest.fixture(scope="module")
def gateways(stack: Stack, broker: RabbitMQ, results: Server, routes) -> dict[str, Server]:
    """All six, beside each other, over servers that these tests break."""
    worker = stack.worker(broker.url, results.url)
    gateways = {
        name: start_gateway(stack, name, broker.url, results.url, routes) for name in STRATEGIES
    }
    yield gateways
    for server in (*gateways.values(), worker):
        server.stop()


def answers(gateways: dict[str, Server]) -> dict[str, int]:
    """Post to each at once; return the statuses, which all came in time."""
    began = time.monotonic()
    codes = [a.code for a in post_each([(f"{g.url}/", b"hi") for g in gateways.values()])]
    assert time.monotonic() - began <= TIMEOUT + GRACE
    return dict(zip(gateways, codes, strict=True))


def until_ready(gateways: dict[str, Server]) -> None:
    end = time.monotonic() + 60
    for gateway in gateways.values():
        while get(f"{gateway.admin_url}/readyz").code != 200:
            assert time.monotonic() < end, (gateway.name, gateway.output()[-2000:])


def test_a_killed_broker_is_503_and_its_return_is_noticed(gateways, broker):
    broker.kill()
    assert answers(gateways) == dict.fromkeys(gateways, 503)
    broken = get(f"{gateways['pika'].admin_url}/readyz")
    assert broken.code == 503
    assert json.loads(broken.body)["children"][0]["broker"]

    broker.restart()
    until_ready(gateways)

    assert answers(gateways) == dict.fromkeys(gateways, 200)


def test_a_frozen_broker_is_503_at_the_confirm_timeout(gateways, broker):
    broker.freeze()
    try:
        assert answers(gateways) == dict.fromkeys(gateways, 503)
    finally:
        broker.thaw()
    until_ready(gateways)
    assert answers(gateways) == dict.fromkeys(gateways, 200)


def test_a_memory_alarm_is_a_503_for_new_requests(gateways, broker):
    broker.ctl("set_vm_memory_high_watermark", "0")
    try:
        # The broker tells a connection that it is blocked when that next publishes.
        answers(gateways)
        assert answers(gateways) == dict.fromkeys(gateways, 503)
    finally:
        broker.ctl("set_vm_memory_high_watermark", "0.4")
    until_ready(gateways)
    assert answers(gateways) == dict.fromkeys(gateways, 200)


def test_connections_closed_by_force_come_back(gateways, broker):
    broker.ctl("close_all_connections", "maintenance")
    until_ready(gateways)

    assert answers(gateways) == dict.fromkeys(gateways, 200)


def test_without_its_result_store_a_strategy_refuses_and_pika_does_not_notice(gateways, results):
    results.kill()
    # Before the worker has anything to store that it would wait for the store with.
    assert post(f"{gateways['pika'].url}/").code == 200
    others = {name: gateway for name, gateway in gateways.items() if name != "pika"}
    assert set(answers(others).values()) <= {503, 504}

    results.restart()
    until_ready(gateways)

    assert answers(gateways) == dict.fromkeys(gateways, 200)
