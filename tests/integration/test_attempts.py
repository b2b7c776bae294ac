"""Beginnings of redelivered messages are counted in Redis, by task and by deployment."""

from __future__ import annotations

from uuid import uuid4

import pytest
import redis
from celery import Celery

from appserver.attempts import EXPIRES, Attempts


class Received:
    """As much of a request as is looked at."""

    def __init__(self, task_id: str, attempt: str):
        self.id, self.attempt = task_id, attempt


@pytest.fixture
def attempts(redis_server):
    """Make one process' view of the redelivered messages."""
    apps = []

    def make(prefix: str = "", backend: str = "") -> Attempts:
        app = Celery("shop", set_as_current=False)
        app.conf.result_backend = backend or redis_server.url
        if prefix:
            app.conf.result_backend_transport_options = {"global_keyprefix": prefix}
        apps.append(app)
        return Attempts(app)

    yield make
    for app in apps:
        app.close()


def test_what_is_begun_elsewhere_is_counted_once_each(attempts):
    task_id = str(uuid4())
    one, other = attempts(), attempts()

    assert one.begin(task_id, "a") == 0
    assert other.begin(task_id, "b") == 1
    assert other.begin(task_id, "b") == 1


def test_deployments_with_prefixes_of_their_own_do_not_meet(attempts, redis_server):
    task_id = str(uuid4())

    assert [attempts(prefix).begin(task_id, "a") for prefix in ("", "shop", "bank")] == [0, 0, 0]
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.scard(f"shop_celery-task-meta-{task_id}.begun") == 1
        assert 0 < client.ttl(f"shop_celery-task-meta-{task_id}.begun") <= EXPIRES


def test_taking_back_keeps_what_was_lost_and_the_end_forgets_it(attempts):
    task_id = str(uuid4())
    one = attempts()
    lost, running = Received(task_id, "lost"), Received(task_id, "running")
    assert [one.receive(lost), one.receive(running)] == [0, 0]
    one.begin(task_id, lost.attempt)
    one.begin(task_id, running.attempt)

    one.lose(lost)
    one.take_back(running)
    assert one.begin(task_id, "third") == 1
    assert one.receive(Received(task_id, "fourth")) == 1

    one.end(running)
    assert one.begin(task_id, "fourth") == 0
    assert one.receive(Received(task_id, "fourth")) == 0


def test_with_the_connection_all_beginnings_are_taken_back(attempts):
    requests = [Received(str(uuid4()), "first") for _ in range(3)]
    one = attempts()
    for request in requests:
        one.receive(request)
        one.begin(request.id, request.attempt)

    one.take_all_back()

    assert [one.begin(request.id, "second") for request in requests] == [0, 0, 0]


@pytest.mark.parametrize("backend", ["redis://127.0.0.1:1/0", "rpc://", "disabled://"])
def test_where_nothing_can_be_counted_nothing_is_known(attempts, backend):
    one = attempts(backend=backend)
    request = Received(str(uuid4()), "a")

    assert [one.begin(request.id, attempt) for attempt in ("a", "b", "c")] == [0, 0, 0]
    one.lose(request)
    assert one.receive(request) == 1
    one.end(request)
    assert one.receive(request) == 0
