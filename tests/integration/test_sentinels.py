"""Redis behind Sentinels: passwords, TLS, a primary that is cut off, replicas that have a claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery

from appserver import sentinels
from appserver.celery_setup import override_backends
from appserver.settings import settings
from gateway.claims.claim import MINE, PUBLISHING
from gateway.claims.idempotency import Idempotency
from gateway.claims.store import Claims
from gateway.config.settings import Config
from gateway.errors import StateUnavailable, Unanswered
from gateway.metrics import Metrics
from gateway.stores.pipeline import Pipeline, results_of
from gateway.stores.results import Results
from gateway.strategies.celery_client import CeleryClient
from tests.integration.test_claims import claims_of, task
from tests.support.certificates import Certificates
from tests.support.parts import started
from tests.support.redis_kinds import Watched
from tests.support.stack import Server, Stack
from tests.support.waiting import eventually, until

PASSWORD = Watched.PASSWORD


@pytest.fixture
def watched(stack: Stack) -> Callable[..., Watched]:
    return partial(Watched, stack)


def run_id(server: Server) -> bytes:
    return server.client.info("server")["run_id"].encode()


async def info(claims: Claims) -> bytes:
    try:
        return await claims.redis.run("INFO", "server")
    except Unanswered:
        return b""


async def take(claims: Claims, name: str, by: str) -> Any:
    return await claims.take(name, b"body", task(by))


async def take_copied(claims: Claims, name: str, by: str) -> Any:
    """Take it as a sender does: again while the replicas do not have it in time."""
    while True:
        with suppress(StateUnavailable):
            return await take(claims, name, by)


@pytest.mark.parametrize("options", [(), ("--min-replicas-to-write", "1")])
async def test_a_primary_that_is_cut_off_is_left_though_it_answers(watched, options):
    """One Sentinel, the first that is named, is on its side and knows of nothing else."""
    servers = watched(*options, "--min-replicas-max-lag", "1")

    async with claims_of(servers.config()) as claims:
        with servers.client(servers.primary) as primary:
            await eventually(lambda: primary.wait(1, 100) == 1)
        assert (await take(claims, "before", "one")).state == MINE
        with servers.client(servers.replica) as replica:
            await eventually(lambda: replica.dbsize() == 1)
        await asyncio.to_thread(servers.part)
        while b"run_id:" + run_id(servers.replica) not in await info(claims):
            await asyncio.sleep(0.05)
        assert (await take(claims, "after", "two")).state == MINE
        again = await take(claims, "before", "three")
        assert (again.state, again.task_id) == (PUBLISHING, task("one"))
    with servers.client(servers.replica) as new:
        assert new.dbsize() == 2


def test_a_worker_leaves_a_primary_that_is_cut_off_though_it_answers(watched, monkeypatch, caplog):
    servers = watched()
    environ = {"GATEWAY_RESULT_BACKEND": servers.url, "GATEWAY_SENTINEL_PASSWORD": PASSWORD}
    app = Celery("shop", set_as_current=False)
    override_backends(app)
    app.conf.update(settings(environ))
    with servers.client(servers.primary) as primary:
        until(lambda: primary.wait(1, 100) == 1)
        app.backend.store_result("before", "result", "SUCCESS")
        assert primary.exists("celery-task-meta-before")
        servers.part()
        monkeypatch.setattr(sentinels, "EVERY", 0)
        app.backend.store_result("after", "result", "SUCCESS")
        assert not primary.exists("celery-task-meta-after")
    with servers.client(servers.replica) as new:
        assert new.exists("celery-task-meta-after")
    assert "The Sentinels name 127.0.0.1" in caplog.text
    # While none of them answers, what is known has to do.
    servers.cut.stop()
    servers.sentinel.stop()
    app.backend.store_result("alone", "result", "SUCCESS")
    with servers.client(servers.replica) as new:
        assert new.exists("celery-task-meta-alone")
    app.backend.client.connection_pool.disconnect()
    app.conf.result_backend_always_retry = False
    with pytest.raises(redis.ConnectionError, match="the Sentinels tell no master 'main'"):
        app.backend.client.ping()


def test_the_sentinels_have_an_account_of_their_own(watched):
    servers = watched()

    async def trying(password: str | None) -> str:
        config = Config(result_backend=servers.url, sentinel_password=password)
        async with started(
            Pipeline(lambda: results_of(config, Metrics())._connect(), "test")
        ) as some:
            await eventually(lambda: some.error != "not connected yet")
        return some.error

    assert "HELLO must be called with the client already authenticated" in asyncio.run(trying(None))
    assert "invalid username-password pair" in asyncio.run(trying("wrong"))
    assert asyncio.run(trying(PASSWORD)) == ""
    assert CeleryClient(servers.config()).app.backend.client.ping()
    # Sentinels know users as well.
    named = servers.config(sentinel_username="default")
    assert CeleryClient(named).app.backend.client.ping()


async def test_sentinels_and_redis_are_connected_to_over_tls(watched, certificates: Certificates):
    servers = watched(tls=certificates.server)
    tls = certificates.client

    async with claims_of(servers.config(tls=tls)) as claims:
        assert (await take(claims, "a", "one")).state == MINE
    assert CeleryClient(servers.config(tls=tls)).app.backend.client.ping()
    files = f"ssl_ca_certs={tls.ca}&ssl_certfile={tls.cert}&ssl_keyfile={tls.key}"
    by_url = Config(result_backend=f"{servers.url}&{files}", sentinel_password=PASSWORD)
    async with claims_of(by_url) as claims:
        assert (await take(claims, "a", "two")).task_id == task("one")
    environ = {"GATEWAY_SENTINEL_PASSWORD": PASSWORD}
    own = {"GATEWAY_TLS_CA": tls.ca, "GATEWAY_TLS_CERT": tls.cert, "GATEWAY_TLS_KEY": tls.key}
    assert pings({**environ, "GATEWAY_RESULT_BACKEND": f"{servers.url}&{files}"})
    assert pings({**environ, "GATEWAY_RESULT_BACKEND": servers.url, **own})
    with pytest.raises(redis.ConnectionError):
        pings({**environ, "GATEWAY_RESULT_BACKEND": servers.url})


def pings(environ: dict[str, Any]) -> bool:
    """Connect as the app server's workers do."""
    app = Celery(set_as_current=False)
    app.conf.update(settings({name: str(value) for name, value in environ.items()}))
    app.conf.result_backend_always_retry = False
    return app.backend.client.ping()


# Replicas that have a claim ---------------------------------------------------------------------


@pytest.fixture
def copied(stack: Stack) -> tuple[Server, Server]:
    primary = stack.redis("--repl-diskless-sync-delay", "0")
    replica = stack.redis("--replicaof", "127.0.0.1", str(primary.port))
    with primary.client as client:
        until(lambda: client.wait(1, 100))
    return primary, replica


async def test_a_claim_is_taken_when_the_replicas_have_it(copied):
    primary, replica = copied

    async with claims_of(Config(result_backend=primary.url, state_replicas=1)) as claims:
        taken = await asyncio.gather(
            *(take_copied(claims, f"{n % 50}", f"{n}") for n in range(100))
        )
        assert [claim.state for claim in taken] == [MINE] * 50 + [PUBLISHING] * 50
        with replica.client as client:
            assert all(client.exists(claim.key) for claim in taken)
        # Those of one turn have asked together.
        assert primary.client.info("commandstats")["cmdstat_wait"]["calls"] < 10


@pytest.mark.parametrize("without", ["refuse", "relay"])
async def test_without_enough_replicas_no_claim_is_taken(copied, without):
    primary, replica = copied
    config = Config(result_backend=primary.url, state_replicas=1, without_state=without)

    async with claims_of(config) as claims:
        waiting = Idempotency(config, Results(config), Metrics())
        waiting.claims = claims
        replica.client.replicaof("NO", "ONE")
        with pytest.raises(StateUnavailable):
            await take(claims, "a", "one")
        assert claims.uncopied == "0 of 1 replicas have the last claim"
        assert ("0 of 1 replicas" in waiting.error) == (without == "refuse" and waiting_ok(waiting))
        # The claim is not left behind: the next try has its own.
        replica.client.replicaof("127.0.0.1", primary.port)
        await eventually(lambda: not claims.uncopied)
        again = await take_copied(claims, "a", "two")
        assert (again.state, again.task_id) == (MINE, task("two"))


def waiting_ok(waiting: Idempotency) -> bool:
    return not waiting.waiter.error


async def test_a_wait_that_is_given_up_by_one_goes_on_for_the_others(copied):
    primary, replica = copied

    async with claims_of(Config(result_backend=primary.url, state_replicas=1)) as claims:
        replica.client.replicaof("NO", "ONE")
        first = asyncio.create_task(take(claims, "a", "one"))
        second = asyncio.create_task(take(claims, "b", "two"))
        while claims.redis.pending != 1:  # the WAIT of both
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(StateUnavailable):
            await second
        assert first.cancelled()
