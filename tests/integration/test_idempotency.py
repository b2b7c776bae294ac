"""A delivery is taken once, whoever sends it how often to however many processes.

Later tries get a final answer, or another run where there was none.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.integration.deliveries import (
    KEYED,
    Servers,
    channels,
    claim,
    deliver,
    gather,
    keyed,
    leave,
    run,
    send,
    state_of,
    until_free,
)
from tests.support.config import route
from tests.support.http_client import Answer
from tests.support.requests import metric
from tests.support.stack import Server, shared
from tests.support.strategies import EACH
from tests.support.waiting import eventually, until

CONFIG = (
    "log_requests = true\n"
    + KEYED
    + route("/json", idempotency="json:/event/id")
    + keyed("/fail", "appserver.tasks.fail")
    + keyed("/unknown", "appserver.tasks.that_nobody_wrote")
    + keyed("/nowhere", queue="a-queue-that-comes-later", declare=False)
    + keyed("/full", queue="a-queue-for-one")
    + keyed("/answer", "retries.answer")
    + keyed("/final", "retries.answer", final="below 504, but 200, 404")
    + keyed("/alike", idempotency_scope="route")
)
COPIES = 100
#: The strategies that tests use which do not run with all of them.
SHARED = ("redis", "pika", "threadpool")

Pair = Callable[[str], list[Server]]


@pytest.fixture(scope="module")
def pair(servers: Servers) -> Pair:
    """Return two gateways with a strategy, the first of two processes, which all tests share."""
    return shared(lambda strategy: servers.gateways(strategy, CONFIG, 2, 1))


@pytest.fixture(scope="module", params=EACH)
def each_pair(request: pytest.FixtureRequest, pair: Pair) -> Iterator[list[Server]]:
    gateways = pair(request.param)
    yield gateways
    if request.param not in SHARED:
        for gateway in gateways:
            gateway.stop()


@pytest.fixture(scope="module")
def gateway(pair: Pair) -> Server:
    return pair("redis")[0]


async def ask(
    gateway: Server, key: str, statuses: str, *headers: str, path: str = "/answer"
) -> tuple[int, bytes]:
    target = f"{path}?statuses={statuses}"
    answer = await send(gateway, target, key, f"Idempotency-Key: {key}", *headers)
    return answer.status, answer.body


def test_100_copies_over_three_processes_run_once_and_get_one_answer(servers, each_pair):
    nginx = servers.nginx(*each_pair)
    key = f"copies-{secrets.token_hex(4)}"

    answers = run(gather(*(deliver(nginx, key, seconds=0.4) for _ in range(COPIES))))
    after = [run(deliver(gateway, key)) for gateway in each_pair]

    assert {(a.status, a.body) for a in answers + after} == {(200, key.encode())}
    own = ("date", "x-delivery-id")  # each answer has its own
    assert len({tuple(sorted((n, v) for n, v in a.headers.items() if n not in own))
                for a in after}) == 1  # fmt: skip
    (execution,) = servers.executions(key)
    assert execution.attempt == 1
    for gateway in each_pair:
        assert metric(gateway, "gateway_in_flight") == 0
    run(eventually(lambda: channels(servers.results) == []))


def test_hundreds_of_deliveries_at_once_are_taken_over_few_connections(servers, gateway):
    # Until then the worker's processes have not all connected.
    run(gather(*(deliver(gateway, f"few-{n}") for n in range(50))))
    with servers.results.client as client:
        before = client.info("clients")["connected_clients"]
        client.config_set("maxclients", before + 20)
        try:
            keys = [f"many-{n}" for n in range(300)]
            answers = run(gather(*(deliver(gateway, key) for key in keys)))
        finally:
            client.config_set("maxclients", 10_000)

    assert [(a.status, a.body) for a in answers] == [(200, key.encode()) for key in keys]
    assert len(servers.executions("many-")) == 300


def test_who_leaves_before_it_is_known_whose_the_delivery_is_has_delivered(servers, gateway):
    servers.results.client.client_pause(500)
    assert run(deliver(gateway, "hasty", patience=0.2)) is None

    run(eventually(lambda: servers.executions("hasty")))
    answer = run(deliver(gateway, "hasty"))

    assert (answer.status, answer.body) == (200, b"hasty")
    assert len(servers.executions("hasty")) == 1


def test_a_key_may_stand_in_the_body(servers, gateway):
    bodies = ['{"event":{"id":17},"try":1}', '{"event":{"id":18},"try":1}']

    assert run(send(gateway, "/json", "no JSON")).type == "bad-request"
    answers = [run(send(gateway, "/json", body)) for body in bodies * 2]
    other = run(send(gateway, "/json", '{"event":{"id":17},"try":2}'))

    assert [a.body.decode() for a in answers] == bodies * 2
    assert (other.status, other.type) == (409, "key-conflict")
    assert len(servers.executions('{"event"')) == 2


@pytest.mark.parametrize("strategy", ["redis", "pika"])
@pytest.mark.parametrize("path", ["/fail", "/unknown"])
async def test_a_failure_is_everyones_and_the_next_try_runs_anew(servers, pair, strategy, path):
    gateway = pair(strategy)[0]
    key = f"Idempotency-Key: {strategy}"

    with servers.worker.frozen():
        waiting = [asyncio.create_task(send(gateway, path, "x", key)) for _ in range(COPIES)]
        await eventually(lambda: metric(gateway, "gateway_in_flight") == COPIES)
    together = await asyncio.gather(*waiting)
    await until_free(servers.results, "x")
    next_try = await send(gateway, path, "x", key)

    assert {a.type for a in [*together, next_try]} == {"task-failed"}
    assert len({a.problem["detail"] for a in [*together, next_try]}) == 1
    tasks = {a.problem["task_id"] for a in together}
    assert next_try.problem["task_id"] not in tasks
    # One that looks when the failure is there already is the next try itself.
    assert len(tasks) < COPIES / 4


def test_a_message_that_comes_back_releases_its_claim(servers, pair):
    gateways = {strategy: pair(strategy)[0] for strategy in ("redis", "threadpool")}

    def each() -> list[Answer]:
        return [
            run(send(gateway, "/nowhere", f"returned-{name}", f"Idempotency-Key: {name}"))
            for name, gateway in gateways.items()
        ]

    refused = each()
    assert [answer.type for answer in refused] == ["unroutable"] * len(gateways)
    for gateway in gateways.values():
        run(eventually(lambda g=gateway: metric(g, "gateway_in_flight") == 0))
    servers.start_worker(["a-queue-that-comes-later"], concurrency=1)
    bodies = [f"returned-{name}" for name in gateways]

    assert [(a.status, a.body.decode()) for a in each()] == [(200, body) for body in bodies]
    assert [len(servers.executions(body)) for body in bodies] == [1] * len(gateways)


def test_a_message_that_is_rejected_is_published_again_under_its_task_s_id(servers, gateway):
    policy = '{"max-length":1,"overflow":"reject-publish"}'
    servers.broker.ctl("set_policy", "one", "^a-queue-for-one$", policy)
    run(leave(servers, gateway, "filler", path="/full"))
    refused = run(send(gateway, "/full", "rejected", "Idempotency-Key: rejected"))
    assert refused.type == "rejected"

    servers.broker.ctl("clear_policy", "one")
    servers.start_worker(["a-queue-for-one"], concurrency=1)
    run(eventually(lambda: servers.executions("filler")))
    answer = run(send(gateway, "/full", "rejected", "Idempotency-Key: rejected"))

    assert (answer.status, answer.body) == (200, b"rejected")
    # A queue that crashes rejects also what is in there when it has come back.
    (execution,) = servers.executions("rejected")
    assert execution.task == refused.problem["task_id"]


def test_the_stored_answer_ends_with_its_window(servers):
    gateway = servers.gateway("pika", "idempotency_window = 2\n" + KEYED)
    assert run(deliver(gateway, "window")).status == 200
    run(eventually(lambda: state_of(servers.results, "window") == "done"))
    run(eventually(lambda: not claim(servers.results, "window")))

    assert run(deliver(gateway, "window")).status == 200
    assert len({one.task for one in servers.executions("window")}) == 2


# Later tries ------------------------------------------------------------------------------


def test_a_task_s_own_refusal_is_not_the_delivery_s_answer(servers, each_pair):
    key = f"refusal-{secrets.token_hex(4)}"
    tries = []

    for _ in range(7):
        tries.append(run(ask(each_pair[0], key, "503,429,408,425,500")))
        run(until_free(servers.results, key))

    assert [status for status, _ in tries] == [503, 429, 408, 425, 500, 200, 200]
    # Each of the first ones is another task; what is final is kept.
    assert len({body for _, body in tries[:6]}) == 6
    assert tries[5] == tries[6]


def test_what_is_final_is_the_route_s_to_say(gateway):
    kept = [run(ask(gateway, "kept", "503", path="/final")) for _ in range(2)]
    again = [run(ask(gateway, "again", "504,404,200", path="/final")) for _ in range(4)]

    assert kept[0] == kept[1] and kept[0][0] == 503
    assert [status for status, _ in again] == [504, 404, 200, 200]
    assert len({body for _, body in again}) == 4


def test_callers_who_chose_the_same_key_are_apart(servers, gateway):
    callers = ["Authorization: Bearer a", "Authorization: Bearer b", "Cookie: c=1", "X-Y: z"]

    each = [run(ask(gateway, "caller", "200", caller)) for caller in callers * 2]
    same = [
        run(send(gateway, "/alike", "alike", "Idempotency-Key: 1", caller)) for caller in callers
    ]

    assert len({body for _, body in each}) == len(callers)
    assert each[:4] == each[4:]
    assert {a.body for a in same} == {b"alike"}
    assert len(servers.executions("alike")) == 1


def test_the_log_says_which_answers_are_those_of_an_earlier_try(servers, gateway):
    first, second = (run(deliver(gateway, "logged")) for _ in range(2))
    assert (first.status, second.status, first.body) == (200, 200, second.body)
    (execution,) = servers.executions("logged")
    for answer, told in (
        (first, ""),
        (second, f": an earlier try has published the task {execution.task}"),
    ):
        delivery = answer.headers["x-delivery-id"]
        until(lambda delivery=delivery: f" delivery={delivery}" in gateway.output())
        (line,) = (line for line in gateway.output().splitlines() if f"={delivery}" in line)
        assert "POST /keyed 200" in line
        assert line.endswith(told) and ("earlier try" in line) is bool(told)
