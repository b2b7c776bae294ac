"""Fair queues: a publisher's flood, and tasks of a publisher that hang, do not hold up others."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from gateway.amqp.publisher import Publisher
from gateway.celery_message import Message
from gateway.config.pointers import pair_chooser
from gateway.config.settings import Config, Route
from gateway.config.strategies import STRATEGIES
from gateway.delivery import Delivery
from gateway.pending_task import PendingTask
from gateway.relay.fairness import INTERVAL, Fairness
from tests.integration.checking import check, servers_at, write
from tests.integration.deliveries import URLS, Servers, cut_connections, run, send
from tests.support.config import route
from tests.support.parts import started
from tests.support.requests import confirmed, is_ready
from tests.support.stack import Server
from tests.support.waiting import eventually, until

FLOOD, KEY = 200, "header:Idempotency-Key"
WORKER = {"concurrency": 1}
OWN_BROKER = True


def fairly(queue: str) -> str:
    """Return a configuration whose deliveries are fair by tenants, accepted or waited for."""
    own = {"queue": queue, "fair_by": "header:x-tenant"}
    taken = route(f"/{queue}/taken", answer="accept", **own)
    return URLS + taken + route(f"/{queue}", idempotency=KEY, **own)


def pair(queue: str, tenant: str) -> set[str]:
    """Return the two queues of a tenant."""
    queues = [f"{queue}.fair.{n}" for n in range(16)]
    delivery = Delivery("", "", {}, {}, "", {"x-tenant": tenant}, b"", "", 0.0)
    return set(pair_chooser("header:x-tenant", queues)(delivery))


def others(queue: str, tenant: str, shared: int, number: int) -> list[str]:
    """Return so many tenants that share so many queues with `tenant`."""
    taken = pair(queue, tenant)
    names = (f"tenant-{n}" for n in range(10_000))
    some = (name for name in names if len(pair(queue, name) & taken) == shared)
    return [next(some) for _ in range(number)]


async def post(gateway: Server, target: str, tenant: str, body: str) -> int:
    answer = await send(gateway, target, body, f"X-Tenant: {tenant}", f"Idempotency-Key: {body}")
    assert answer is not None
    return answer.status


async def flood(gateway: Server, target: str, tenant: str, name: str, number: int) -> None:
    """Have `number` deliveries taken, `name 0` and so on."""
    room = asyncio.Semaphore(20)

    async def one(n: int) -> None:
        async with room:
            assert await post(gateway, target, tenant, f"{name}-{n}") == 202

    await asyncio.gather(*map(one, range(number)))


def held(servers: Servers, queue: str) -> dict[str, tuple[int, int]]:
    """Return the ready and the unacknowledged messages of each fair queue of `queue`."""
    columns = ("name", "messages_ready", "messages_unacknowledged")
    lines = servers.broker.ctl("list_queues", "--no-table-headers", *columns).splitlines()
    rows = [line.split("\t") for line in lines]
    return {row[0]: (int(row[1]), int(row[2])) for row in rows if row[0].startswith(f"{queue}.")}


def limits(servers: Servers) -> dict[str, int]:
    """Return the prefetch limit of each queue's consumer."""
    columns = ("queue_name", "prefetch_count")
    lines = servers.broker.ctl("list_consumers", "--no-table-headers", *columns).splitlines()
    return {name: int(count) for name, _, count in (line.partition("\t") for line in lines)}


@pytest.mark.parametrize("strategy", ["pika", "redis"])
@pytest.mark.parametrize("shared", [0, 1])
async def test_a_flood_does_not_hold_up_others(servers, strategy, shared):
    """One process runs one task after the other; each tenant's delivery is among the next ones."""
    queue = f"flood-{strategy}-{shared}"
    gateway = servers.gateway(strategy, fairly(queue))
    fair = {"GATEWAY_FAIR_QUEUES": f"{queue}:16", "GATEWAY_FAIR_PREFETCH": "1"}
    servers.start_worker([queue], concurrency=1, **fair)
    calm = others(queue, "loud", shared, 3)

    # The worker waits in the first task until all have been published.
    assert await post(gateway, f"/{queue}/taken?until={queue}", "loud", f"{queue}-0") == 202
    await flood(gateway, f"/{queue}/taken", "loud", f"{queue}-loud", FLOOD)
    sent = (post(gateway, f"/{queue}", tenant, f"{queue}-calm-{tenant}") for tenant in calm)
    waiting = list(map(asyncio.create_task, sent))
    await eventually(lambda: confirmed(gateway) == FLOOD + 1 + len(calm))
    servers.release(queue)
    assert await asyncio.gather(*waiting) == [200] * len(calm)
    total = FLOOD + 1 + len(calm)
    until(lambda: len(servers.executions(f"{queue}-")) >= total)
    order = [one.id for one in servers.executions(f"{queue}-")]
    assert len(order) == len(set(order)) == total
    places = [order.index(f"{queue}-calm-{tenant}") for tenant in calm]
    assert max(places) <= 10, places


def test_without_fairness_a_flood_comes_first(servers):
    """What the test above would find where nothing is done."""
    queue = "unfair"
    gateway = servers.gateway("pika", fairly(queue).replace('fair_by = "header:x-tenant"', ""))

    run(flood(gateway, f"/{queue}/taken", "loud", "unfair-loud", 50))
    assert run(post(gateway, f"/{queue}/taken", "calm", "unfair-calm")) == 202
    servers.start_worker([queue], 1)

    until(lambda: len(servers.executions("unfair-")) == 51)
    assert [one.id for one in servers.executions("unfair-")][-1] == "unfair-calm"


@pytest.mark.parametrize("strategy", ["pika", "redis"])
async def test_tasks_that_hang_hold_two_of_eight_processes(servers, strategy):
    queue = f"hang-{strategy}"
    gateway = servers.gateway(strategy, fairly(queue))
    servers.start_worker([queue], concurrency=8, GATEWAY_FAIR_QUEUES=f"{queue}:16")
    calm = others(queue, "stuck", 0, 3) + others(queue, "stuck", 1, 3)
    ours = pair(queue, "stuck")

    target = f"/{queue}/taken?until={queue}"
    await flood(gateway, target, "stuck", f"{queue}-stuck", 30)
    await eventually(lambda: sum(held(servers, queue)[each][1] for each in ours) == 2)
    for n in range(5):
        for tenant in calm:
            body = f"{queue}-calm-{tenant}-{n}"
            assert await post(gateway, f"/{queue}", tenant, body) == 200, body
    assert [held(servers, queue)[each][1] for each in ours] == [1, 1]
    assert servers.executions(f"{queue}-stuck") == []
    servers.release(queue)
    until(lambda: len(servers.executions(f"{queue}-stuck")) == 30)


def test_a_new_broker_connection_is_as_fair_as_the_first(servers):
    """Nothing that was taken is lost, the limits are there again, and lengths are asked again."""
    queue = "again"
    gateway = servers.gateway("redis", fairly(queue))
    # Processes beside the one that connects again, which must not wait for the tasks.
    servers.start_worker([queue], 2, GATEWAY_FAIR_QUEUES=f"{queue}:16")
    fair = {f"{queue}.fair.{n}" for n in range(16)}
    until(lambda: fair <= limits(servers).keys())
    assert {limits(servers)[each] for each in fair} == {1}
    assert limits(servers)[queue] > 1  # Celery's own, for the queue that is not fair
    run(flood(gateway, f"/{queue}/taken?until=never", "one", "again-before", 40))
    servers.broker.sync()

    servers.broker.kill()
    servers.broker.restart()

    servers.until_ready()
    run(flood(gateway, f"/{queue}/taken", "two", "again-after", 40))
    until(lambda: fair <= limits(servers).keys())
    assert {limits(servers)[each] for each in fair} == {1}
    servers.release("never")
    taken = {f"again-{when}-{n}" for when in ("before", "after") for n in range(40)}
    until(lambda: {one.id for one in servers.executions("again-")} == taken)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_each_strategy_gets_its_answers_from_fair_queues(servers, strategy):
    queue = "each"
    gateway = servers.gateway(strategy, fairly(queue), "--processes", "2")
    servers.start_worker([queue], 1, GATEWAY_FAIR_QUEUES=f"{queue}:16")

    keys = [f"each-{strategy}-{n}" for n in range(6)]
    first = [await post(gateway, "/each", f"tenant-{key}", key) for key in keys]
    again = [await post(gateway, "/each", f"tenant-{key}", key) for key in keys]
    assert first + again == [200] * 12
    assert len(servers.executions(f"each-{strategy}")) == 6


def test_a_deleted_queue_is_told_and_comes_back_with_the_connection(servers):
    queue = "gone"
    gateway = servers.gateway("redis", fairly(queue))
    run(flood(gateway, f"/{queue}/taken", "one", "gone", 2))
    for each in pair(queue, "one"):
        servers.broker.ctl("delete_queue", each)
    assert run(post(gateway, f"/{queue}/taken", "one", "gone-3")) == 503
    assert run(post(gateway, f"/{queue}/taken", *others(queue, "one", 0, 1), "gone-4")) == 202
    servers.broker.ctl("close_all_connections", "test")
    until(lambda: not held(servers, queue).keys().isdisjoint(pair(queue, "one")))
    until(lambda: is_ready(gateway))
    assert run(post(gateway, f"/{queue}/taken", "one", "gone-5")) == 202


async def test_a_process_learns_what_others_have_published(servers, metrics):
    """Also where a queue of a publisher is gone: the other queues' lengths are still told."""
    route = Route(path="/", queue="lengths", fair_by="remote", fair_queues=4)
    config = Config(broker_url=[servers.broker.url], routes=[route])
    first, second, third, fourth = route.queue_names

    async def publish(publisher: Publisher, name: str) -> None:
        pending = PendingTask(Message("id", "task", name, b"[]", {}), monotonic() + 60)
        publisher.publish(pending)
        await eventually(lambda: pending.confirmed)

    async with started(Publisher(config, metrics)) as one:
        await eventually(lambda: not one.error)
        for name in (second, second, third):
            await publish(one, name)
        await asyncio.to_thread(servers.broker.ctl, "delete_queue", first)
        other = Publisher(config, metrics)
        fairness = Fairness(route.queue_names, other)
        lengths = fairness.lengths
        async with started(other, fairness):
            await eventually(lambda: lengths[second] == 2 and lengths[third] == 1)
            # A queue that was not empty is asked for again, without being used here.
            await publish(one, second)
            await eventually(lambda: lengths[second] == 3)
            await asyncio.to_thread(servers.broker.ctl, "purge_queue", second)
            await eventually(lambda: lengths[second] == 0)
            assert lengths[third] == 1 and lengths[fourth] == 0
            # A new connection goes on asking.
            await asyncio.to_thread(cut_connections, servers.broker, "gateway")
            await eventually(lambda: metrics.get("gateway_broker_connections_total") == 4)
            await publish(one, third)
            await eventually(lambda: lengths[third] == 2)


def test_check_names_the_worker_that_is_missing(servers, tmp_path):
    route = '[[routes]]\npath = "/"\nqueue = "checked"\nfair_by = "remote"\nfair_queues = 4\n'
    config = write(tmp_path, route)
    addresses = servers_at(servers.broker.url, servers.results.url)
    fair = "GATEWAY_FAIR_QUEUES=checked:4"

    checked = check(*config, *addresses)
    assert checked.code == 1
    told = checked.of("queue checked.fair.0 to checked.fair.3").text
    assert told.startswith("there are no such queues; ")
    assert "start a worker: celery -A APP worker -n NAME@%h -Q checked (" in told and fair in told
    assert len(checked.lines) < 10

    with ThreadPoolExecutor(2) as threads:
        starting = threads.submit(
            servers.start_worker, ["checked"], 1, GATEWAY_FAIR_QUEUES="checked:4"
        )
        servers.gateway("redis", route)
        worker = starting.result()
    checked = check(*config, *addresses)
    assert checked.code == 0, checked
    told = checked.of("queue checked.fair.0 to checked.fair.3")
    assert (told.status, told.text) == ("ok", "4 consumers, 0 messages waiting")
    worker.stop()
    # The queues are there, and nobody consumes them.
    checked = check(*config, *addresses)
    told = checked.of("queue checked.fair.0 to checked.fair.3").text
    assert told.startswith("no worker consumes them; ") and fair in told
    assert checked.of("task").status == "skip"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_answered_makes_no_queue_longer(servers, strategy):
    queue = f"over-{strategy}"
    gateway = servers.gateway(strategy, fairly(queue))
    worker = servers.start_worker([queue], 1, GATEWAY_FAIR_QUEUES=f"{queue}:16")
    (other,) = others(queue, "busy", 1, 1)

    async def deliver(number: int) -> None:
        for n in range(number):
            assert await post(gateway, f"/{queue}", "busy", f"{queue}-{n}") == 200

    run(deliver(12))
    worker.stop()
    time.sleep(3 * INTERVAL)  # nothing tells that the broker has been asked

    for n in range(6):
        run(flood(gateway, f"/{queue}/taken", other, f"{queue}-other-{n}", 1))

    assert {held(servers, queue)[each] for each in pair(queue, other)} == {(3, 0)}
