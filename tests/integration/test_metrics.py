"""What a gateway counts of requests that fail, wait, come twice or end later, and of itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from gateway.claims.idempotency import StateWatch
from gateway.config.settings import Config
from gateway.journal.writing import SizeWatch
from gateway.stores.state_store import StateStore
from tests.integration.deliveries import URLS, Servers, gather, keyed, run, send
from tests.support.config import route, source
from tests.support.parts import ProcessStore, started
from tests.support.requests import fetch, metric, scrape, total
from tests.support.stack import Server, free_port
from tests.support.waiting import eventually, until

CONFIG = (
    f'journal = 1000\nstate_prefix = "metrics"\n{URLS}'
    + source("signed", "hmac", signature="header:X-Signature", secrets=["a secret of these tests"])
    + route("/wait", deadline=50)
    + route("/fails", "appserver.tasks.fail")
    + route("/late", deadline=0.3)
    + route("/later", answer="wait-then-accept", deadline=0.3)
    + route("/fallback", answer="wait-then-accept", deadline=0.3, fallback="success")
    + route("/accepted", answer="accept")
    + route("/accepted-and-fails", "appserver.tasks.fail", answer="accept")
    + keyed("/once", deadline=50)
    + route("/signed", None, source="signed")
)
GONE = Config(result_backend=f"redis://127.0.0.1:{free_port()}/0")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
WAITS = "gateway_result_wait_seconds"
#: Gives how much a metric has grown since it was given.
Growth = Callable[..., float]


@pytest.fixture(scope="module")
def gateway(servers: Servers) -> Server:
    return servers.gateway("redis", CONFIG, "--processes=2")


@pytest.fixture
def grown(gateway: Server) -> Growth:
    before = scrape(gateway)
    return lambda name, **labels: (
        total(scrape(gateway), name, **labels) - total(before, name, **labels)
    )


@pytest.mark.parametrize(
    ("target", "status", "outcome", "miss"),
    [
        ("/wait", 200, "success", ""),
        ("/fails", 502, "failure", ""),
        ("/late?seconds=1", 504, "deadline-passed", "error"),
        ("/later?seconds=1", 202, "deadline-passed", "accepted"),
        ("/fallback?seconds=1", 200, "deadline-passed", "fallback"),
    ],
)
def test_each_wait_is_counted_with_its_outcome(gateway, grown, target, status, outcome, miss):
    path = target.partition("?")[0]

    assert run(send(gateway, target, f"waits {path}")).status == status

    assert grown(f"{WAITS}_count", strategy="redis", outcome=outcome) == 1
    assert grown(f"{WAITS}_count") == 1
    misses = "gateway_deadline_misses_total"
    assert grown(misses) == grown(misses, http_route=path, answer=miss) == bool(miss)
    errors = grown("gateway_request_errors_total")
    assert errors == (status >= 500)


async def test_a_client_that_leaves_has_waited(servers, gateway, grown):
    waiting = asyncio.create_task(send(gateway, "/wait?until=left", "leaves"))
    await eventually(lambda: metric(gateway, "gateway_in_flight") == 1)
    assert metric(gateway, "http_server_active_requests") == 1
    await eventually(lambda: grown("messaging_client_operation_duration_seconds_count") == 1)
    waiting.cancel()
    await eventually(lambda: grown("gateway_clients_gone_total") == 1)
    servers.release("left")

    assert grown(f"{WAITS}_count", outcome="client-gone") == grown(f"{WAITS}_count") == 1
    await eventually(lambda: metric(gateway, "http_server_active_requests") == 0)


async def test_a_later_try_is_counted_as_joined(servers, gateway, grown):
    key = "Idempotency-Key: once"
    tries = (send(gateway, "/once?until=joined", "once", key) for _ in range(3))
    answers = asyncio.create_task(gather(*tries))
    await eventually(lambda: grown("gateway_duplicates_joined_total") == 2)
    servers.release("joined")
    assert [answer.status for answer in await answers] == [200] * 3

    assert grown("gateway_duplicates_joined_total") == 2
    assert grown(f"{WAITS}_count", outcome="success") == 3
    assert grown("messaging_client_sent_messages_total", messaging_system="rabbitmq") == 1


def test_a_refused_signature_is_counted_by_its_source_and_reason(gateway, grown):
    forged = ["X-Signature: forged"]
    for headers in (forged, forged, []):
        assert run(send(gateway, "/signed", "forged", *headers)).status == 401

    labels = {"source": "signed", "scheme": "hmac"}
    failures = "gateway_verification_failures_total"
    assert grown(failures, **labels, reason="mismatch") == 2
    assert grown(failures, **labels, reason="missing") == 1
    assert grown(failures) == grown("gateway_request_errors_total", error_type="unverified") == 3


def test_tasks_that_end_after_their_answer_are_counted_by_what_it_was(servers, gateway, grown):
    targets = ["/late?until=late", "/accepted", *["/accepted-and-fails"] * 3]

    answers = run(gather(*(send(gateway, target, "accepted") for target in targets)))
    servers.release("late")

    assert [a.status for a in answers] == [504] + [202] * 4
    ended = "gateway_late_tasks_total"
    until(lambda: grown(ended, state="failed", answer="accepted") == 3)
    # Those of earlier tests are among these.
    until(lambda: grown(ended, state="succeeded", answer="accepted"))
    until(lambda: grown(ended, state="succeeded", answer="error"))
    assert grown(ended, state="failed", answer="error") == 0


def test_the_sizes_of_journal_and_state_are_known(servers, gateway):
    assert run(send(gateway, "/accepted", "kept")).status == 202

    with servers.results.client as client:
        until(lambda: client.zcard("metrics:{journal}:open") == 0)
        sizes = {
            "gateway_journal_deliveries": lambda: client.xlen("metrics:{journal}:deliveries"),
            "gateway_journal_bytes": lambda: int(client.get("metrics:{journal}:bytes")),
            "gateway_journal_open": lambda: 0,
        }
        for name, size in sizes.items():
            until(lambda name=name, size=size: metric(gateway, name) == size())
        assert sizes["gateway_journal_bytes"]() > 0
        until(lambda: metric(gateway, "gateway_state_keys") > 0)


@pytest.mark.parametrize(
    ("store", "watch", "told", "name"),
    [
        (
            ProcessStore,
            lambda store, metrics: SizeWatch(GONE, store, metrics),
            "the size of the journal",
            "gateway_journal_bytes",
        ),
        (
            lambda config: StateStore(config, "claims"),
            lambda store, metrics: StateWatch(metrics, store),
            "cannot check the Redis of the claims",
            "gateway_state_keys",
        ),
    ],
    ids=["journal", "claims"],
)
async def test_what_cannot_be_asked_keeps_its_last_sizes(caplog, metrics, store, watch, told, name):
    caplog.set_level(logging.DEBUG)
    metrics.set(name, 7)

    store = store(GONE)
    async with started(store, watch(store, metrics)):
        await eventually(lambda: told in caplog.text)

    assert metrics.get(name) == 7


def test_how_full_redis_is_can_be_seen(gateway, redis_server):
    with redis_server.client as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used * 4)
        try:
            until(lambda: 0.1 < metric(gateway, "gateway_state_memory_ratio") < 0.5)
        finally:
            client.config_set("maxmemory", 0)


def test_a_lost_subscription_is_a_reconnection(servers, gateway, grown):
    servers.results.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    until(lambda: grown("gateway_reconnects_total", server="results") == 2)
    assert grown("gateway_results_connections_total") == 2
    assert grown("gateway_reconnects_total", server="broker") == 0


def test_the_lateness_of_each_event_loop_is_measured(gateway, grown):
    until(lambda: grown("gateway_event_loop_lag_seconds_count") >= 4)


def test_a_scraper_of_openmetrics_gets_the_trace_of_a_recorded_request(gateway):
    parent = f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01"
    assert run(send(gateway, "/wait", "traced", parent)).status == 200

    def page(accept: str) -> tuple[str, str]:
        answer = fetch(f"{gateway.admin_url}/metrics", f"Accept: {accept}")
        return answer.headers["content-type"], answer.body.decode()

    kind, text = page("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    (line,) = (line for line in text.splitlines() if TRACE in line)
    assert line.startswith("http_server_request_duration_seconds_bucket{")
    assert 'http_route="/wait"' in line and f'# {{trace_id="{TRACE}"}}' in line
    kind, text = page("*/*")
    assert kind == "text/plain; version=0.0.4; charset=utf-8" and TRACE not in text
