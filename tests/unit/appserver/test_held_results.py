"""Results of one turn are written together, and none is lost where they cannot be."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from celery import signals, states
from celery.app.task import Context
from celery.worker import state

from appserver import held_results
from appserver.held_results import LONG, HeldResults, Reply, Stored, ThreadsResults
from appserver.reply_connection import reply_connection

REPLY = Reply("gateway.reply.1", "1", b"{}")


@pytest.fixture(autouse=True)
def _nothing_lasts(monkeypatch) -> None:
    """However slow this machine is, no turn takes too long."""
    monkeypatch.setattr(held_results, "HELD", 3_600)


class Connection:
    """Takes replies instead of a broker."""

    def __init__(self, up: bool = True):
        self.up, self.writes, self.written = up, [], threading.Event()

    def publish_all(self, replies):
        self.writes.append([reply.correlation_id for reply in replies])
        self.written.set()
        return self.up


SECONDS = 60.0


def hold(how, *args):
    """Hold what a task returns, by one of the methods, as its end does."""
    return how.__self__.end(partial(how, *args))


def forbidden():
    raise AssertionError("it was written, and is to be stored")


def test_those_of_a_turn_are_one_write():
    held = HeldResults((connection := Connection()).publish_all, None)
    held.begin(more=True)
    assert hold(held.hold_reply, REPLY, forbidden)
    held.begin(more=False)  # the last task of the turn
    assert hold(held.hold_reply, REPLY._replace(correlation_id="2"), forbidden)
    held.flush()
    held.flush()
    assert connection.writes == [["1", "2"]]


def test_a_single_one_a_long_one_and_one_outside_a_turn_are_not_held():
    held = HeldResults((connection := Connection()).publish_all, None)
    assert not hold(held.hold_reply, REPLY, forbidden)
    held.begin(more=False)
    assert not hold(held.hold_reply, REPLY, forbidden)
    held.begin(more=True)
    assert not hold(held.hold_reply, REPLY._replace(body=b"x" * (LONG + 1)), forbidden)
    held.flush()
    assert connection.writes == []


def test_an_error_does_not_end_the_thread_that_writes_them(monkeypatch, caplog):
    monkeypatch.setattr(held_results, "HELD", 0.002)
    monkeypatch.setattr(held_results, "AGAIN", 0.0)
    connection, errors = Connection(), [ZeroDivisionError()]

    def publish_all(replies):
        if errors:
            raise errors.pop()
        return connection.publish_all(replies)

    held = HeldResults(publish_all, None)
    held.begin(more=True)
    hold(held.hold_reply, REPLY, forbidden)
    assert connection.written.wait(SECONDS)
    assert connection.writes == [["1"]] and "this is tried again" in caplog.text


def test_a_turn_that_lasts_does_not_hold_them(monkeypatch):
    monkeypatch.setattr(held_results, "HELD", 0.002)
    monkeypatch.setattr(held_results, "IDLE", 1)
    held = HeldResults((connection := Connection()).publish_all, None)
    for _ in range(3):
        held.begin(more=True)
        hold(held.hold_reply, REPLY, forbidden)
        # Nothing ends the turn.
        assert connection.written.wait(60)
        connection.written.clear()
    assert connection.writes == [["1"]] * 3


def test_what_cannot_be_written_is_stored(caplog):
    held, stored = HeldResults(Connection(up=False).publish_all, None), []

    def fails():
        raise OSError("no store either")

    held.begin(more=True)
    hold(held.hold_reply, REPLY, fails)
    hold(held.hold_reply, REPLY._replace(correlation_id="2"), lambda: stored.append("2"))
    held.flush()
    assert stored == ["2"]
    assert [record.message for record in caplog.records] == ["The result of task 1 is lost"]


class Store:
    """Takes results instead of Redis, but for those whose value is "no"."""

    def __init__(self):
        self.writes = []

    def store_all(self, results):
        self.writes.append([result.key for result in results])
        return [result.value != "no" for result in results]


def test_stored_results_of_a_turn_are_one_write_after_the_replies():
    held = HeldResults((connection := Connection()).publish_all, (store := Store()).store_all)
    held.begin(more=True)
    again = []

    def itself():
        # What stores it by itself comes here again, and is not held in the middle of a write.
        again.append(hold(held.hold_stored, Stored(b"2", "no", 0), forbidden))

    assert hold(held.hold_stored, Stored(b"1", "yes", 0), forbidden)
    assert hold(held.hold_reply, REPLY, forbidden)
    assert hold(held.hold_stored, Stored(b"2", "no", 0), itself)
    assert not hold(held.hold_stored, Stored(b"3", "x" * (LONG + 1), 0), forbidden)
    held.flush()
    assert (store.writes, connection.writes, again) == ([[b"1", b"2"]], [["1"]], [False])


def test_a_fork_holds_nothing_of_its_parents():
    held = HeldResults((connection := Connection()).publish_all, None)
    held.begin(more=True)
    hold(held.hold_reply, REPLY, forbidden)
    child = os.fork()
    if not child:
        held.flush()
        os._exit(len(connection.writes) + hold(held.hold_reply, REPLY, forbidden))
    assert os.waitpid(child, 0)[1] == 0
    held.flush()
    assert connection.writes == [["1"]]


def test_the_end_of_a_task_is_told_after_its_result_was_written():
    connection = Connection()
    held = HeldResults(connection.publish_all, None, lambda ends: connection.writes.append(ends))
    held.begin(more=True)
    hold(held.hold_reply, REPLY, forbidden)
    held.hold_end("end")
    held.flush()
    held.hold_end("another")
    held.flush()
    assert connection.writes == [["1"], ["end"], ["another"]]


def test_nothing_is_lost_with_a_task_that_is_interrupted_where_it_looks_for_a_result():
    connection = Connection()

    def publish_all(replies):
        connection.publish_all(replies)
        if len(connection.writes) == 1:
            raise KeyboardInterrupt
        return True

    held = HeldResults(publish_all, None, lambda ends: connection.writes.append(ends))
    held.begin(more=True)
    hold(held.hold_reply, REPLY, forbidden)
    held.hold_end("end")
    with pytest.raises(KeyboardInterrupt):
        held.flush()
    held.flush()
    assert connection.writes == [["1"], ["1"], ["end"]]


def test_threads_hold_results_where_the_worker_has_other_tasks(monkeypatch):
    requests = [Reply("", "", b""), Reply("", "", b"")]
    monkeypatch.setattr(state, "reserved_requests", requests)
    held = ThreadsResults((connection := Connection()).publish_all, None)
    held.begin(more=False)
    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(lambda _: hold(held.hold_reply, REPLY, forbidden), range(2)))
    held.flush()
    assert connection.writes == [["1", "1"]]
    requests.pop()  # alone
    assert not hold(held.hold_reply, REPLY, forbidden)
    requests.append(REPLY)
    held.begin(more=True, tells=True)  # whoever gets the event may look for the result
    assert not hold(held.hold_reply, REPLY, forbidden)


def test_the_loop_of_threads_waits_for_no_store(monkeypatch):
    monkeypatch.setattr(state, "reserved_requests", [REPLY, REPLY])
    answers, acknowledged, done = threading.Event(), [], threading.Event()

    def store_all(results):
        assert answers.wait(SECONDS)
        return [True] * len(results)

    held = ThreadsResults((connection := Connection()).publish_all, store_all)
    held.begin(more=True)
    assert not held.follow(done.set)  # this thread holds nothing
    for number in (1, 2):
        assert hold(held.hold_stored, Stored(b"%d" % number, "{}", 0), forbidden)
        assert held.follow(partial(acknowledged.append, number))
    assert hold(held.hold_reply, REPLY, forbidden)
    held.end_turn()
    assert connection.writes == [["1"]]
    assert not acknowledged
    answers.set()
    held.flush()
    assert acknowledged == [1, 2]


def test_the_thread_that_stores_survives_an_error(monkeypatch):
    monkeypatch.setattr(state, "reserved_requests", [REPLY, REPLY])
    monkeypatch.setattr(held_results, "AGAIN", 0)
    errors, done = [KeyError("a fault")], threading.Event()

    def store_all(results):
        if errors:
            raise errors.pop()
        return [True] * len(results)

    held = ThreadsResults(Connection().publish_all, store_all)
    held.begin(more=True)
    assert hold(held.hold_stored, Stored(b"1", "{}", 0), forbidden)
    assert held.follow(done.set)
    assert done.wait(SECONDS)


@pytest.fixture
def app(celery):
    """An app whose backend replies, and writes what it holds to `app.written`."""
    backend = "appserver.reply_backend:StorelessReplyBackend"
    app = celery(broker="amqp://127.0.0.1:1//", backend=backend)

    @app.task(name="plain", shared=False, acks_late=True)
    def plain(): ...

    connection, taken = reply_connection(app), Connection()
    app.written, app.held = taken.writes, HeldResults(taken.publish_all, None)
    connection.held = app.held
    connection.publish_all = lambda replies: app.written.append("at once") or True
    app.held.begin(more=True)
    return app


def request(**others) -> Context:
    common = {"id": "1", "task": "plain", "reply_to": "gateway.reply.1", "headers": {"x": "1"}}
    return Context({**common, **others})


HELD, AT_ONCE = [["1"]], ["at once"]


@pytest.mark.parametrize(("store", "written"), [(False, HELD), (True, AT_ONCE)])
def test_a_result_that_is_stored_too_is_replied_at_once(app, store, written):
    app.backend.mark_as_done("1", "x", request(headers={"delivery": {"store": store}}))
    app.held.flush()
    assert app.written == written


@pytest.mark.parametrize(
    "others",
    [
        {"callbacks": [{"task": "plain"}]}, {"chain": [{"task": "plain"}]},
        *({"task": task} for task in ("unknown", "with on_success", "with after_return", None)),
        {"task": "acknowledged"},
    ],
)  # fmt: skip
def test_what_is_followed_by_the_apps_code_is_written_at_once(app, others):
    """And so is what was acknowledged when it began, and does not run again if it is lost."""

    class Success(app.Task):
        name = "with on_success"

        def on_success(self, *args): ...

    class Returned(app.Task):
        name = "with after_return"

        def after_return(self, *args): ...

    class Acknowledged(app.Task):
        name, acks_late = "acknowledged", False

    for task in (Success(), Returned(), Acknowledged()):
        app.register_task(task)
    app.backend.mark_as_done("1", "x", request(**others))
    assert app.written == AT_ONCE


@pytest.mark.parametrize("signal", [signals.task_success, signals.task_postrun])
def test_where_a_signal_follows_a_task_its_result_is_written_at_once(app, signal):
    def receiver(**_): ...

    signal.connect(receiver)
    try:
        app.backend.mark_as_done("1", "x", request())
    finally:
        signal.disconnect(receiver)
    assert app.written == AT_ONCE


def test_only_a_success_at_the_end_of_its_task_is_held(app):
    app.backend.mark_as_failure("1", ValueError(), request=request())
    app.backend.store_result("1", "x", states.SUCCESS, request=request())  # as update_state does
    app.backend.mark_as_done("1", "x")  # without a request
    assert app.written == AT_ONCE * 2
    del app.written[:]
    app.backend.mark_as_done("1", "x", request())
    assert app.written == []


def test_what_another_thread_stores_is_not_held(app):
    def end():
        stored = "2", "x", states.SUCCESS, None, request()
        with ThreadPoolExecutor(1) as other:
            other.submit(app.backend.store_result, *stored).result()

    app.held.end(end)
    assert app.written == AT_ONCE
