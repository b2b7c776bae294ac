"""TLS with client certificates, Sentinel, a list of brokers, a prefix of keys: for all clients."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import TypeVar
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery

from appserver.settings import settings
from gateway.amqp.publisher import Publisher
from gateway.celery_message import Message
from gateway.cli.checks.stores import what_answers
from gateway.config.settings import TLS, Config
from gateway.config.strategies import STRATEGIES, properties
from gateway.errors import BrokerUnavailable, Unroutable
from gateway.metrics import Metrics
from gateway.stores import result_store
from gateway.stores.pipeline import results_of
from gateway.strategies.celery_client import CeleryClient
from tests.faults.proxy import Proxy
from tests.integration.checking import check, servers_at
from tests.support.certificates import Certificates
from tests.support.config import route
from tests.support.parts import pipeline_to, started
from tests.support.redis_kinds import start_sentinel
from tests.support.requests import fetch, post_each
from tests.support.stack import RabbitMQ, Server, Stack, free_port
from tests.support.waiting import until

TIMEOUT = 60  # seconds until something must have happened

#: Those that have results from Redis.
STORED = [name for name in STRATEGIES if properties(name).stored]

#: Three that publish and wait each in another way.
DIFFERENT = ["pika", "redis", "threadpool"]

PREFIX = "shop:"

SHOP = f"""
import os
from celery import Celery

app = Celery("shop", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.result_backend_transport_options = {{"global_keyprefix": "{PREFIX}"}}

@app.task(name="shop.take_order")
def take_order(query, headers, body):
    return "taken: " + body
"""

T = TypeVar("T")
Gateways = dict[str, Server]


def together(start: Callable[[str], T], names: list[str]) -> dict[str, T]:
    """Start what has these names at once: most of a start is waiting."""
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(start, names), strict=True))


def answers(gateways: Gateways, path: str = "/") -> dict[str, object]:
    """Post to each at once; return the bodies of good answers, the status of others."""
    found = post_each([(f"{gateway.url}{path}", b"hello") for gateway in gateways.values()])
    told = [answer.body if answer.code == 200 else answer.code for answer in found]
    return dict(zip(gateways, told, strict=True))


def until_all_answer(gateways: Gateways) -> None:
    """Wait, by asking as a sender would, until none has anything but good answers."""
    good = dict.fromkeys(gateways, b"hello")
    said = lambda: {name: tail(gateway) for name, gateway in gateways.items()}  # noqa: E731
    until(lambda: answers(gateways) == good, said=said)


def tail(server: Server) -> str:
    return server.output()[-3000:]


# TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(stack: Stack, start, certificates: Certificates) -> Server:
    """A Redis that listens in plain text too, as the broker does, for the tests without TLS."""
    tls, port = certificates.server, free_port()
    files = ["--tls-ca-cert-file", tls.ca, "--tls-cert-file", tls.cert, "--tls-key-file", tls.key]
    results = start(
        lambda: stack.redis(
            "--tls-port", str(port), "--tls-auth-clients", "yes", *map(str, files)
        )
    )  # fmt: skip
    results.tls_url = f"rediss://127.0.0.1:{port}/0"
    return results


def variables(tls: TLS) -> dict[str, str]:
    return {f"GATEWAY_TLS_{k.upper()}": str(v) for k, v in tls if v not in (None, True)}


def test_every_strategy_answers_over_mutual_tls(stack, broker, results, certificates, tmp_path):
    tls = certificates.client
    toml = tmp_path / "gateway.toml"
    toml.write_text(
        f'broker_url = "{broker.tls_url}"\nresult_backend = "{results.tls_url}"\n'
        f'[tls]\nca = "{tls.ca}"\ncert = "{tls.cert}"\nkey = "{tls.key}"\n'
    )
    stack.worker(broker.tls_url, results.tls_url, env=variables(tls))
    gateways = together(lambda s: stack.gateway("--strategy", s, "--config", str(toml)), STRATEGIES)

    assert answers(gateways) == dict.fromkeys(STRATEGIES, b"hello")


def test_a_workers_url_with_its_options_serves_every_strategy(stack, broker, results, certificates):
    tls = certificates.client
    files = f"ssl_ca_certs={tls.ca}&ssl_certfile={tls.cert}&ssl_keyfile={tls.key}"
    url = (
        f"{results.tls_url}?ssl_cert_reqs=CERT_REQUIRED&{files}&protocol=3&decode_responses=true"
        "&socket_timeout=0.5&max_connections=20&health_check_interval=1"
    )
    stack.worker(broker.url, url)
    urls = "--broker", broker.url, "--result-backend", url
    gateways = together(lambda s: stack.gateway("--strategy", s, *urls), STRATEGIES)

    # The second time nothing is new: clients have read what they subscribed to for a while.
    for _ in range(2):
        assert answers(gateways) == dict.fromkeys(STRATEGIES, b"hello")


def test_a_foreign_authority_is_named_by_log_and_readiness(stack, broker, results, certificates):
    env = variables(certificates.mistakes["a foreign CA"])
    urls = "--broker", broker.tls_url, "--result-backend", results.tls_url

    gateways = together(
        lambda s: stack.gateway("--strategy", s, *urls, env=env, ready="/healthz"), DIFFERENT
    )

    for name, gateway in gateways.items():
        places = {"broker"} if name == "pika" else {"broker", "results"}
        until(lambda g=gateway, p=places: verify_failed(g) == p, said=gateway.output)
        warnings = [line for line in gateway.output().splitlines() if "WARNING" in line]
        for url in (broker.tls_url, results.tls_url)[: len(places)]:
            server = f":{urlsplit(url).port}"
            assert any(server in w and "certificate verify failed" in w for w in warnings), warnings
    assert answers(gateways) == dict.fromkeys(gateways, 503)


def verify_failed(gateway: Server) -> set[str]:
    """Tell which servers readiness names for their certificates."""
    answer = fetch(f"{gateway.admin_url}/readyz")
    assert answer.status == 503
    (child,) = json.loads(answer.body)["children"]
    return {place for place, text in child.items() if "certificate verify failed" in str(text)}


MISTAKES = ["a foreign CA", "no certificate", "a foreign certificate"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_nobody_connects_with(mistake: str, broker, results, certificates):
    tls = certificates.mistakes[mistake]
    assert not any(connected(tls, broker.tls_url, results.tls_url).values())


def test_check_says_what_answers_in_place_of_a_server(broker, start, stack):
    plain = stack.redis()
    nginx = start(lambda: stack.nginx([free_port()]))
    some = [
        (plain.url, "redis", ""),
        (nginx.url, "redis", "what answers there is a web server"),
        (nginx.url, "amqp", "what answers there is a web server"),
        (plain.url, "amqp", "what answers there is a Redis"),
        (broker.url, "redis", "what answers there is an AMQP broker"),
        (plain.url, "rediss", "its port has no TLS: write redis://"),
        (broker.tls_url, "amqp", "its port has TLS: write amqps://"),
    ]
    for url, scheme, answer in some:
        port = urlsplit(url).port
        found = asyncio.run(what_answers(f"{scheme}://127.0.0.1:{port}/0"))
        assert found == (answer and f"; {answer}"), (url, scheme)
    assert asyncio.run(what_answers(f"amqp://127.0.0.1:{free_port()}//")) == ""
    at = f"redis://127.0.0.1:{nginx.port}/0"
    checked = check(*servers_at(broker.url, at))
    assert "; what answers there is a web server; start it, or" in checked.of("results").text


def test_nobody_connects_to_another_than_the_certificate_names(broker, results, certificates):
    assert not any(connected(certificates.client, *by_another_name(broker, results)).values())


def test_who_does_not_verify_connects_to_any(broker, results, certificates):
    tls = certificates.mistakes["a foreign CA"].model_copy(update={"verify": False})
    assert all(connected(tls, *by_another_name(broker, results)).values())


def by_another_name(*servers: Server) -> list[str]:
    # To the resolver the same address, to TLS a name.
    return [server.tls_url.replace("127.0.0.1", "127.1") for server in servers]


def connected(tls: TLS, broker: str, results: str) -> dict[str, bool]:
    """Tell which of the clients of gateway and worker connect."""
    config = Config(broker_url=broker, result_backend=results, tls=tls)
    urls = {"GATEWAY_BROKER_URL": broker, "GATEWAY_RESULT_BACKEND": results}
    app = Celery(set_as_current=False)
    app.conf.update(settings(urls | variables(tls)))
    client = CeleryClient(config)
    nowhere = Message(str(uuid.uuid4()), "none", "a-queue-that-nobody-declares", b"[]", {})
    with (
        closing(client),
        app.connection_for_write() as worker,
        client.app.backend.client as client_results,
        app.backend.client as worker_results,
    ):
        return {
            **asyncio.run(connected_on_the_loop(config)),
            # A message that comes back has been there.
            "kombu": not fails(
                lambda: client.publish(nowhere, time.monotonic() + 10),
                BrokerUnavailable,
                fine=Unroutable,
            ),
            "Celery's results": not fails(client_results.ping, redis.ConnectionError),
            "worker": not fails(worker.connect, OSError),
            "worker's results": not fails(worker_results.ping, redis.ConnectionError),
        }


async def connected_on_the_loop(config: Config) -> dict[str, bool]:
    clients = {"publisher": Publisher(config, Metrics()), "store": results_of(config, Metrics())}
    async with started(*clients.values()):
        while "not connected yet" in [client.error for client in clients.values()]:
            await asyncio.sleep(0.02)
        return {name: not client.error for name, client in clients.items()}


def fails(call: Callable[[], object], error: type[Exception], fine: type[Exception] = ()) -> bool:
    try:
        call()
    except error:
        return True
    except fine:
        pass
    return False


# Sentinel ---------------------------------------------------------------------------------


@pytest.fixture
def watched(stack: Stack, start) -> SimpleNamespace:
    """A master with its replica, and the Sentinel that watches them."""
    master = start(stack.redis)
    replica = stack.redis("--replicaof", "127.0.0.1", str(master.port))
    settings = "sentinel down-after-milliseconds main 500"
    sentinel = start_sentinel(stack, master, "+slave ", settings)  # it has found the replica
    # The first of two Sentinels is away.
    url = f"sentinel://127.0.0.1:{free_port()}/0;sentinel://127.0.0.1:{sentinel.port}/0"
    url += "?master_name=main"
    return SimpleNamespace(master=master, replica=replica, sentinel=sentinel, url=url)


async def test_a_closed_client_leaves_no_connection_behind(watched):
    def clients() -> int:
        return len(watched.sentinel.client.client_list())

    before = clients()

    client = result_store.connect(Config(result_backend=watched.url))
    await client.ping()
    assert await asyncio.to_thread(clients) > before
    await client.aclose()
    await asyncio.to_thread(until, lambda: clients() == before)


def test_a_sentinel_that_is_silent_is_passed_over(watched):
    async def use(url: str) -> None:
        async with asyncio.timeout(TIMEOUT):
            async with started(pipeline_to(url)) as some:
                assert await some.run("PING") == b"PONG"  # in the time that a command has

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(use(f"sentinel://127.0.0.1:{silent.getsockname()[1]}/0;{watched.url}"))


def test_results_outlive_the_failover_of_their_master(stack: Stack, broker, watched):
    stack.worker(broker.url, watched.url)
    options = "--broker", broker.url, "--result-backend", watched.url, "--timeout", "4"
    gateways = together(lambda s: stack.gateway("--strategy", s, *options), STORED)
    assert answers(gateways) == dict.fromkeys(gateways, b"hello")

    watched.master.kill()
    until(lambda: "+switch-master" in watched.sentinel.output(), said=watched.sentinel.output)

    until_all_answer(gateways)
    assert redis.Redis.from_url(watched.replica.url).keys("celery-task-meta-*")


# A list of brokers, a prefix of keys --------------------------------------------------------


class Brokers:
    """Two of a list, of which one at a time is there; to who connects, each is a broker of its own.

    It is the same one, in whose place a new one would have nothing of what the last one had.
    """

    def __init__(self, broker: RabbitMQ):
        self._broker, self._ports = broker, (free_port(), free_port())
        self.urls = [f"amqp://guest:guest@127.0.0.1:{port}//" for port in self._ports]
        self._open: Proxy | None = None

    def start(self, which: int) -> None:
        """Let this one serve, once the other has died."""
        self._open = Proxy(self._broker.port, self._ports[which])

    def die(self) -> None:
        """Let the one that serves end as a node does that is stopped."""
        self._broker.ctl("stop_app")

    def lose(self) -> None:
        """Close the proxy and delete what the broker has."""
        self.close()
        self._broker.ctl("start_app")
        self._broker.wipe()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


@pytest.fixture(scope="module")
def brokers(broker: RabbitMQ) -> Iterator[Brokers]:
    """The second one serves."""
    brokers = Brokers(broker)
    brokers.start(1)
    yield brokers
    brokers.close()


@pytest.fixture(scope="module")
def listed(stack, broker, brokers, results, tmp_path_factory) -> Gateways:
    """All strategies with two brokers, the first one dead, and a prefix for their keys."""
    prefix = {"GATEWAY_RESULT_KEY_PREFIX": PREFIX}
    home = tmp_path_factory.mktemp("shop")
    (home / "shop.py").write_text(SHOP)
    toml = home / "gateway.toml"
    routes = route("/", None) + route("/shop", "shop.take_order", queue="shop")
    toml.write_text(f"broker_url = {json.dumps(brokers.urls)}\n{routes}")

    def gateway(strategy: str) -> Server:
        # A list from the file for some, from the command line for others.
        flag = () if strategy in DIFFERENT else ("--broker", ";".join(brokers.urls))
        options = "--strategy", strategy, "--config", str(toml), "--timeout", "20"
        options += "--result-backend", results.url
        return stack.gateway(*options, *flag, env=prefix)

    with ThreadPoolExecutor() as pool:
        worker = pool.submit(stack.worker, ";".join(brokers.urls), results.url, env=prefix)
        env = {"BROKER": broker.url, "BACKEND": results.url, "PYTHONPATH": str(home)}
        own = {"app": "shop", "queues": ["shop"], "cwd": home, "env": env}
        shop = pool.submit(stack.worker, broker.url, **own)
        gateways = together(gateway, STRATEGIES)
        for started in (worker, shop):
            started.result()
    return gateways


def test_the_second_broker_serves_while_the_first_is_dead(listed):
    assert answers(listed) == dict.fromkeys(listed, b"hello")


def test_a_stock_worker_with_the_same_prefix_serves(listed, results):
    stored = {name: gateway for name, gateway in listed.items() if name in STORED}
    client = redis.Redis.from_url(results.url)
    client.flushdb()

    assert answers(stored, "/shop") == dict.fromkeys(stored, b"taken: hello")

    keys = client.keys("*celery-task-meta-*")  # a gateway may write a line of its own meanwhile
    # What an earlier request has sent may run only now, and is another task.
    taken = [value for value in client.mget(keys) if b"taken: hello" in value]
    assert len(taken) == len(stored)
    assert all(key.startswith(f"{PREFIX}celery-task-meta-".encode()) for key in keys)


def test_the_first_broker_serves_when_the_second_has_died(listed, brokers):
    brokers.die()
    assert answers(listed) == dict.fromkeys(listed, 503)

    brokers.lose()
    brokers.start(0)

    until_all_answer(listed)
    brokers.die()
    brokers.lose()
    brokers.start(1)
    until_all_answer(listed)
