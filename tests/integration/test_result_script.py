"""What the app server stores in Redis, and when: results as Celery would, beginnings of tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from uuid import uuid4

import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.exceptions import BackendStoreError

from appserver import held_results
from appserver.beginnings import EXPIRES, Beginnings
from appserver.held_results import HeldResults, Stored
from appserver.reply_connection import reply_connection
from tests.support.stack import free_port

KEY = "celery-task-meta-"


@pytest.fixture
def published(client) -> Iterator[Callable[[], tuple[str, bytes]]]:
    """Return the next result that is published: its key and what is said of it."""
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.psubscribe(f"{KEY}*")
        pubsub.get_message(timeout=10)

        def published() -> tuple[str, bytes]:
            message = pubsub.get_message(timeout=10)
            return message["channel"].decode(), message["data"]

        yield published


@pytest.fixture
def app(redis_server) -> Iterator[Celery]:
    backend = f"appserver.reply_backend:ReplyBackend+{redis_server.url}"
    with Celery(backend=backend, set_as_current=False) as app:
        yield app
        app.backend.client.close()


def test_a_result_is_stored_with_its_life_and_published(app, client, published):
    app.backend.store_result("1", {"ünï": [1]}, states.SUCCESS)

    stored = client.get(f"{KEY}1")
    assert json.loads(stored)["result"] == {"ünï": [1]}
    assert 0 < client.ttl(f"{KEY}1") <= app.backend.expires
    assert published() == (f"{KEY}1", stored)
    assert app.AsyncResult("1").get(timeout=10) == {"ünï": [1]}


@pytest.mark.parametrize("before", [states.STARTED, states.RETRY, states.FAILURE])
def test_another_state_is_followed_by_the_next(app, client, before):
    result = {"pid": 1} if before == states.STARTED else ValueError("once")
    app.backend.store_result("1", result, before)

    app.backend.store_result("1", "done", states.SUCCESS)

    assert json.loads(client.get(f"{KEY}1"))["result"] == "done"


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("end", [states.FAILURE, states.REVOKED])
@pytest.mark.parametrize("late", [states.RETRY, states.STARTED, "PROGRESS"])
def test_the_end_of_a_later_try_stays(app, client, extended, end, late):
    """A task publishes its next try before its state RETRY is stored."""
    app.conf.result_extended = extended

    def store_of(retries: int, state: str) -> str:
        result = ValueError("x") if state in states.EXCEPTION_STATES else {"pid": 1}
        request = Context({"retries": retries, "task": "t", "args": ['"retries": 9}']})
        app.backend.store_result("1", result, state, request=request)
        return json.loads(client.get(f"{KEY}1"))["status"]

    assert store_of(12, end) == end
    assert store_of(11, late) == end
    assert store_of(0, late) == end
    # Of the same try, run again from a dead letter, and of a later one.
    assert store_of(12, late) == late
    assert store_of(12, end) == end
    assert store_of(13, late) == late
    assert store_of(13, end) == end
    assert store_of(0, states.SUCCESS) == states.SUCCESS


@pytest.fixture
def held(app, client, monkeypatch) -> HeldResults:
    """What holds results, as in the pool `solo`, in the middle of a turn that lasts."""
    monkeypatch.setattr(held_results, "HELD", 3_600)
    connection = reply_connection(app)
    connection.held = HeldResults(connection.publish_all, app.backend.store_all)
    connection.held.begin(more=True)
    return connection.held


def succeed(app: Celery, task_id: str, result: str) -> None:
    """Store a success as at the end of a task that nothing follows."""
    store = partial(app.backend.mark_as_done, task_id, result)
    reply_connection(app).held.end(store)


def test_results_that_are_held_are_stored_together(app, client, held, published):
    app.backend.store_result("0", "loads the script", states.STARTED)
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    for number in map(str, range(1, 6)):
        succeed(app, number, number)
    assert client.keys(f"{KEY}[1-9]") == []
    held.flush()
    assert [published()[0] for _ in range(6)] == [f"{KEY}{number}" for number in range(6)]
    for number in map(str, range(1, 6)):
        assert json.loads(client.get(f"{KEY}{number}"))["result"] == number
        assert 0 < client.ttl(f"{KEY}{number}") <= app.backend.expires
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 5


def test_held_results_are_stored_though_the_script_is_not_there(app, client, held):
    client.script_flush()
    succeed(app, "1", "x")
    succeed(app, "2", "y")
    held.flush()
    assert json.loads(client.get(f"{KEY}1"))["result"] == "x"
    assert json.loads(client.get(f"{KEY}2"))["result"] == "y"


def test_held_results_are_stored_though_the_connection_was_lost(app, client, held):
    app.backend.store_result("0", "connected", states.STARTED)
    succeed(app, "1", "x")
    client.client_kill_filter(_type="normal", skipme=True)
    held.flush()
    assert json.loads(client.get(f"{KEY}1"))["result"] == "x"


def test_without_redis_each_held_result_is_tried_by_itself(caplog):
    nobody = f"appserver.reply_backend:ReplyBackend+redis://127.0.0.1:{free_port()}/0"
    with Celery(backend=nobody, set_as_current=False) as app:
        results = [Stored(b"1", "x", 0), Stored(b"2", "x", 0)]
        assert app.backend.store_all(results) == [False, False]
    assert "2 results are stored one by one" in caplog.text


def test_held_results_are_stored_before_any_is_read_or_forgotten(app, client, held):
    succeed(app, "1", "x")
    assert client.keys(f"{KEY}*") == []
    assert app.AsyncResult("1").result == "x"
    succeed(app, "2", "y")
    assert None not in app.backend.mget([f"{KEY}1", f"{KEY}2"])
    succeed(app, "3", "z")
    app.AsyncResult("3").forget()
    held.flush()
    assert sorted(client.keys(f"{KEY}*")) == [f"{KEY}1".encode(), f"{KEY}2".encode()]


def test_the_result_of_a_chords_member_is_not_held(app):
    @app.task(name="member", shared=False, acks_late=True)
    def member(): ...

    named = {"id": "1", "task": "member"}
    assert not held_results.is_followed(app, Context(named))
    assert held_results.is_followed(app, Context({**named, "chord": {"task": "x"}}))


def test_a_success_is_final(app, client, published):
    app.backend.store_result("1", "done", states.SUCCESS)

    app.backend.store_result("1", ValueError("late"), states.FAILURE)
    app.backend.store_result("2", "other", states.SUCCESS)

    assert [published()[0] for _ in range(2)] == [f"{KEY}1", f"{KEY}2"]
    assert json.loads(client.get(f"{KEY}1"))["result"] == "done"


def test_results_may_live_for_ever(app, client):
    app.backend.expires = None

    app.backend.store_result("1", "done", states.SUCCESS)

    assert client.ttl(f"{KEY}1") == -1


PICKLE = {"result_serializer": "pickle", "result_accept_content": ["pickle"]}


@pytest.mark.parametrize("setting", [PICKLE, {"result_compression": "gzip"}])
def test_what_is_no_plain_json_goes_celery_s_way(app, client, setting):
    app.conf.update(setting)
    app.backend.store_result("1", "done", states.SUCCESS)

    app.backend.store_result("1", ValueError("late"), states.FAILURE)

    assert app.backend.get_task_meta("1", cache=False)["status"] == states.SUCCESS


def test_what_redis_has_no_room_for_is_an_error(app, client):
    app.backend._MAX_STR_VALUE_SIZE = 100

    with pytest.raises(BackendStoreError):
        app.backend.store_result("1", "x" * 100, states.SUCCESS)


def test_a_redis_that_has_lost_its_scripts_learns_it_anew(app, client):
    app.backend.store_result("1", "done", states.SUCCESS)
    client.script_flush()

    app.backend.store_result("2", "done", states.SUCCESS)

    assert json.loads(client.get(f"{KEY}2"))["result"] == "done"


# Beginnings of redelivered messages are counted, by task and by deployment ---------------------


class Received:
    """As much of a request as is looked at."""

    def __init__(self, task_id: str, beginning: str):
        self.id, self.beginning = task_id, beginning


@pytest.fixture
def process(redis_server):
    """Make one process' view of the redelivered messages."""
    apps = []

    def make(prefix: str = "", backend: str = "") -> Beginnings:
        app = Celery("shop", set_as_current=False)
        app.conf.result_backend = backend or redis_server.url
        if prefix:
            app.conf.result_backend_transport_options = {"global_keyprefix": prefix}
        apps.append(app)
        return Beginnings(app)

    yield make
    for app in apps:
        app.close()


def test_what_is_begun_elsewhere_is_counted_once_each(process):
    task_id = str(uuid4())
    one, other = process(), process()

    assert one.add(task_id, "a") == 0
    assert other.add(task_id, "b") == 1
    assert other.add(task_id, "b") == 1


def test_deployments_with_prefixes_of_their_own_do_not_meet(process, redis_server):
    task_id = str(uuid4())

    assert [process(prefix).add(task_id, "a") for prefix in ("", "shop", "bank")] == [0, 0, 0]
    with redis_server.client as client:
        assert client.scard(f"shop_celery-task-meta-{task_id}.begun") == 1
        assert 0 < client.ttl(f"shop_celery-task-meta-{task_id}.begun") <= EXPIRES


def test_removing_keeps_what_was_lost_and_the_end_forgets_it(process):
    task_id = str(uuid4())
    one = process()
    lost, running = Received(task_id, "lost"), Received(task_id, "running")
    assert [one.receive(lost), one.receive(running)] == [0, 0]
    one.add(task_id, lost.beginning)
    one.add(task_id, running.beginning)

    one.count_loss(lost)
    one.remove(running)
    assert one.add(task_id, "third") == 1
    assert one.receive(Received(task_id, "fourth")) == 1

    one.forget(running)
    assert one.add(task_id, "fourth") == 0
    assert one.receive(Received(task_id, "fourth")) == 0


def test_with_the_connection_all_beginnings_are_removed(process):
    requests = [Received(str(uuid4()), "first") for _ in range(3)]
    one = process()
    for request in requests:
        one.receive(request)
        one.add(request.id, request.beginning)

    one.remove_all()

    assert [one.add(request.id, "second") for request in requests] == [0, 0, 0]


@pytest.mark.parametrize("backend", ["redis://127.0.0.1:1/0", "rpc://", "disabled://"])
def test_where_nothing_can_be_counted_nothing_is_known(process, backend):
    one = process(backend=backend)
    request = Received(str(uuid4()), "a")

    assert [one.add(request.id, beginning) for beginning in "abc"] == [0, 0, 0]
    one.count_loss(request)
    assert one.receive(request) == 1
    one.forget(request)
    assert one.receive(request) == 0
