"""The number of lost results is that of a worker and of the processes of its pool."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest
from celery import states
from celery.app.task import Context

from appserver.lost_results import (
    STATS,
    CountLostResults,
    LostResults,
    lost_results,
    store_or_count,
)


@pytest.mark.parametrize("memory", [True, False], ids=["memory", "file"])
def test_processes_count_together(monkeypatch, caplog, memory):
    if not memory:
        monkeypatch.delattr(os, "memfd_create")
    lost = LostResults()
    assert (lost.number, lost.last) == (0, None)
    child = os.fork()
    if not child:
        for _ in range(10):
            lost.add("1", "no room")
        os._exit(0)
    os.waitpid(child, 0)
    before = time.time()
    lost.add("2", "no room")
    assert lost.number == 11 and before <= lost.last <= time.time()
    assert caplog.messages == [
        "The result of task 2 is lost, and 11 since this worker was started: no room"
    ]


@pytest.fixture
def backend():
    return "ReplyBackend+redis://127.0.0.1:1/0"


@pytest.fixture
def app(celery, backend):
    """An app whose broker and store are nowhere."""
    return celery(
        broker="amqp://127.0.0.1:1//",
        backend=f"appserver.reply_backend:{backend}",
        broker_connection_timeout=1,
        result_backend_transport_options={"retry_policy": {"max_retries": 0}},
    )


def request(**more):
    return Context({"id": "1", "task": "t", **more})


REPLIED = {"reply_to": "gateway.reply.1", "headers": {"delivery": {}}}


@pytest.mark.parametrize("asked", [request(), request(**REPLIED)])
@pytest.mark.parametrize(("state", "number"), [
    (states.FAILURE, 1), (states.REVOKED, 1), (states.RETRY, 0), (states.STARTED, 0),
])  # fmt: skip
def test_after_what_a_worker_stores_last_it_goes_on(app, asked, state, number):
    assert app.backend.store_result("1", "x", state, request=asked) == "x"
    assert lost_results(app).number == number


@pytest.mark.parametrize("state", [states.SUCCESS, "CUSTOM"])
def test_what_may_still_be_recorded_otherwise_is_an_error(app, state):
    with pytest.raises(Exception, match="refused"):
        app.backend.store_result("1", "x", state, request=request())
    assert lost_results(app).number == 0


@pytest.mark.parametrize("backend", ["StorelessReplyBackend"])
def test_without_a_store_a_reply_that_is_not_written_is_lost(app):
    app.backend.store_result("1", "x", states.SUCCESS, request=request(**REPLIED))
    app.backend.store_result("2", "x", states.SUCCESS, request=request())
    assert lost_results(app).number == 1


def test_one_that_was_held_is_stored_at_last_or_counted(app):
    stored = []

    def fails():
        raise OSError("no room")

    store_or_count(app, "1", partial(stored.append, 1))
    store_or_count(app, "2", fails)
    assert (stored, lost_results(app).number) == ([1], 1)


def test_a_worker_tells_the_number(app):
    step = CountLostResults(None)
    worker = type("Worker", (), {"app": app})
    step.create(worker)
    assert step.info(worker) == {STATS: {"number": 0, "last": None}}
    lost_results(app).add("1", "no room")
    assert step.info(worker)[STATS]["number"] == 1
