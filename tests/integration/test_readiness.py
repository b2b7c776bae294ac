"""What a route needs decides whether it is ready: without Redis some are served all the same."""

from __future__ import annotations

import pytest

from tests.integration.deliveries import KEYED, URLS, Servers
from tests.support.config import route
from tests.support.requests import post, readiness
from tests.support.waiting import until

ROUTES = URLS + KEYED + route("/accept", answer="accept") + route("/wait/{name}")


@pytest.mark.parametrize("strategy", ["pika", "redis", "threadpool"])
def test_without_redis_those_routes_are_ready_that_do_not_need_it(stack, rabbitmq, strategy):
    servers = Servers(stack, rabbitmq, stack.redis(), concurrency=1)
    gateway = servers.gateway(strategy, ROUTES)
    every = ("/keyed", "/accept", "/wait/{name}")
    assert readiness(gateway)[1]["routes"] == dict.fromkeys(every, True)

    servers.results.kill()

    waits = strategy == "pika"
    until(lambda: not readiness(gateway)[1]["routes"]["/keyed"])
    until(lambda: readiness(gateway)[1]["routes"]["/wait/{name}"] == waits)
    code, told = readiness(gateway)
    assert (code, told["ready"], told["routes"]["/accept"]) == (200, True, True)
    assert told["children"][0]["state"]
    assert readiness(gateway, "/accept")[0] == 200
    assert readiness(gateway, "/keyed")[0] == 503
    assert readiness(gateway, "/wait/{name}")[0] == (200 if waits else 503)
    assert post(f"{gateway.url}/wait/x", b"b").code == (200 if waits else 503)
    assert post(f"{gateway.url}/accept", b"a").code == 202


def test_a_queue_that_no_worker_consumes_is_a_warning(stack, rabbitmq, start, start_gateway):
    config = (
        '[[routes]]\npath = "/a"\nqueue = "not-consumed"\n[[routes]]\npath = "/b"\n'
        'queue = "nor.{query:x}"\nqueue_pattern = "nor[.]."\nstatic_queue = "not-consumed"\n'
    )
    results = start(stack.redis)  # no other gateway has left its line there
    gateway = start_gateway(config, "--result-backend", results.url, "--processes=2")
    until(lambda: readiness(gateway)[1]["warnings"])
    assert readiness(gateway)[1]["warnings"] == [
        "no worker consumes the queue not-consumed (route /a, /b): start one with "
        "-Q not-consumed, or correct `queue`; `gateway check` says more"
    ]
    assert readiness(gateway, "/a")[0] == 200
    stack.worker(rabbitmq.url, results.url, queues=["not-consumed"])
    until(lambda: not readiness(gateway)[1]["warnings"])


def test_an_unknown_route_is_named_with_those_that_there_are(start_gateway):
    gateway = start_gateway("")
    assert readiness(gateway, "/none") == (404, {"error": "there is no route '/none'; there are /"})
    assert readiness(gateway, "/")[0] == 200
