"""Each task that a pool has begun ends by one of ack, reject, requeue, whatever is raised."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery, Task
from celery.app.trace import trace_task_ret
from celery.concurrency import get_implementation
from celery.exceptions import Ignore, Reject, TaskRevokedError, WorkerShutdown
from celery.worker import state
from celery.worker.request import create_request_cls
from greenlet import GreenletExit
from kombu.exceptions import OperationalError
from redis.backoff import NoBackoff
from redis.retry import Retry

import appserver
from appserver import pools
from appserver.lost_results import lost_results
from appserver.poison import PoisonAwareRequest, PoisonAwareTasks
from appserver.pools import SettledTasks

NOWHERE = "redis://127.0.0.1:1/0"  # nothing listens there
TIMEOUT = 30  # seconds
ACK, REJECT, REQUEUE = "ack", "reject", "requeue"


class Processes:
    """Ends tasks as a pool of processes does."""

    is_green, active = False, True

    def start(self) -> None: ...

    def on_stop(self) -> None: ...

    stop = on_stop

    def apply_async(self, target, args, accept_callback, callback, error_callback, **_):
        accept_callback(1, 0)
        try:
            result = target(*args)
        except BaseException:  # noqa: BLE001 - as billiard
            return error_callback(ExceptionInfo())
        return callback(result)


POOLS = ["threads", "gevent", "solo", "processes"]


@pytest.fixture
def app():
    with Celery("shop", broker="memory://", backend=NOWHERE, set_as_current=False) as app:
        appserver.setup(app)
        app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0}}
        app.conf.broker_transport_options = {}
        app.conf.result_backend_thread_safe = True
        app.backend.connparams["retry"] = Retry(NoBackoff(), 0)  # else it tries for a second
        yield app
    state.reset_state()


@pytest.fixture
def end(app, monkeypatch):
    """Run a task in a pool; return how its message was settled, and how many results are lost."""
    # A worker is not told of the results of tasks that its tasks publish.
    monkeypatch.setattr(app.backend, "on_task_call", lambda *_: None)

    def end(
        pool: str, body, embed=None, headers=None, base: type[Task] = Task, closed=False, **options
    ):
        name = f"shop.run-{len(app.tasks)}"
        task = app.task(bind=True, base=base, name=name, shared=False, **options)(body)
        app.finalize()
        PoisonAwareTasks(None).create(SimpleNamespace(app=app))
        used = Processes() if pool == "processes" else get_implementation(pool)(1)
        used.start()
        SettledTasks(None).create(SimpleNamespace(pool=used))
        settled: list[str] = []
        request = make(app, app.tasks[task.name], used, settled, embed or {}, headers or {})
        if closed:
            used.close()
        with pytest.raises(TaskRevokedError) if closed else nullcontext():
            request.execute_using_pool(used)
        used.stop()
        return settled, lost_results(app).number

    return end


def make(app, task, pool, settled, embed, headers):
    """Make the request of a message; what settles it is added to `settled`."""
    message = SimpleNamespace(
        headers={"id": "1", "task": task.name, "lang": "py", **headers}, payload=([], {}, embed),
        body=b"", content_type="application/json", content_encoding="utf-8", properties={},
        delivery_info={"exchange": "", "routing_key": "celery", "redelivered": False}, channel=None,
    )  # fmt: skip
    cls = create_request_cls(
        PoisonAwareRequest, task, pool, "host", None, trace=partial(trace_task_ret, app=app),
        app=app,
    )  # fmt: skip
    return cls(
        message, app=app, task=task, on_ack=lambda *_: settled.append(ACK),
        on_reject=lambda _log, _errors, requeue: settled.append(REQUEUE if requeue else REJECT),
    )  # fmt: skip


def raising(exc: BaseException):
    def body(self):
        raise exc

    return body


def returning(result: object):
    def body(self):
        return result

    return body


def retrying(self):
    raise self.retry(countdown=0)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("body", "options", "settled", "lost"),
    [
        (returning(1), {}, ACK, 1),
        (returning(1), {"acks_late": False}, ACK, 1),
        (returning(1), {"acks_on_failure_or_timeout": False}, REJECT, 1),
        (returning(1), {"ignore_result": True}, ACK, 0),
        (returning(object()), {}, ACK, 1),
        (returning(1), {"track_started": True}, ACK, 1),
        (raising(ValueError("no")), {}, ACK, 1),
        (raising(ValueError("no")), {"acks_on_failure_or_timeout": False}, REJECT, 1),
        (raising(MemoryError()), {}, ACK, 1),
        (raising(Ignore()), {}, ACK, 0),
        (raising(Reject(requeue=True)), {}, REQUEUE, 0),
        (raising(Reject()), {}, REJECT, None),
        (retrying, {}, ACK, 0),
        (raising(SystemExit()), {}, REQUEUE, 0),
        (raising(KeyboardInterrupt()), {}, REQUEUE, 0),
        (raising(asyncio.CancelledError()), {}, ACK, 1),
    ],
)  # fmt: skip
def test_each_end_settles_the_message_once(end, pool, body, options, settled, lost):
    ended, number = end(pool, body, **options)
    assert ended == [settled]
    # What Celery 5.7 records of a rejected message, others do not.
    assert lost is None or number == lost


class Failing(Task):
    """Its handlers fail, each in its own way."""

    def on_success(self, *_):
        raise Reject(requeue=True)

    def on_failure(self, *_):
        raise ValueError("its handler")


@pytest.mark.parametrize("pool", POOLS)
def test_so_do_failing_handlers(end, app, pool):
    assert end(pool, raising(KeyError("no")), base=Failing)[0] == [ACK]
    assert end(pool, returning(1), base=Failing, ignore_result=True)[0] == [REQUEUE]


@pytest.fixture
def _unpublished(app, monkeypatch):
    """Nothing can be published."""

    def fails(*_, **__):
        raise OperationalError("the broker is away")

    monkeypatch.setattr(app, "send_task", fails)


@pytest.mark.usefixtures("_unpublished")
@pytest.mark.parametrize("pool", POOLS)
def test_so_does_a_retry_that_cannot_be_published(end, pool):
    assert end(pool, retrying)[0] == [REJECT]


@pytest.mark.usefixtures("_unpublished")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("body", [returning(1), raising(ValueError("no"))])
def test_so_does_what_is_published_afterwards(end, app, pool, body):
    signature = app.signature("shop.next", immutable=True)
    embed = {"callbacks": [signature], "errbacks": [signature], "chord": signature}
    headers = {"group": "1"}
    assert end(pool, body, embed=embed, headers=headers)[0] == [ACK]


def test_a_worker_is_ended_by_a_task_only_where_it_runs_the_task_itself(end):
    assert end("threads", raising(WorkerShutdown()))[0] == [REQUEUE]
    with pytest.raises(WorkerShutdown):  # its connection ends, too
        end("solo", raising(WorkerShutdown()))


def never(self):
    raise AssertionError("it was begun")


@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_a_worker_that_ends_begins_no_task(end, pool):
    assert end(pool, never, closed=True) == ([], 0)
    assert not state.reserved_requests


def test_what_is_not_begun_when_the_connection_is_lost_is_forgotten(app):
    pool, ran = get_implementation("threads")(1), []
    lost, ended = threading.Event(), threading.Event()
    SettledTasks(None).create(SimpleNamespace(pool=pool))
    pool.start()

    @app.task(bind=True, name="note", shared=False, ignore_result=True)
    def note(self) -> None:
        ran.append(self.request.id)
        assert lost.wait(TIMEOUT)
        if self.request.id == "again":
            ended.set()

    app.finalize()
    settled: dict[str, list[str]] = {"begun": [], "waiting": [], "again": []}
    requests = {
        each: make(app, app.tasks["note"], pool, its, {}, {"id": each})
        for each, its in settled.items()
    }
    requests["begun"].execute_using_pool(pool)
    requests["waiting"].execute_using_pool(pool)
    pool.flush()  # as the consumer does where its connection is lost
    requests["again"].execute_using_pool(pool)
    lost.set()
    assert ended.wait(TIMEOUT)
    pool.stop()
    assert ran == ["begun", "again"]
    assert settled == {"begun": [ACK], "waiting": [], "again": [ACK]}


@pytest.mark.parametrize("fails", [False, True])
def test_while_a_pool_ends_heartbeats_are_sent_and_acknowledgements_written(monkeypatch, fails):
    beats, flushed, pool = [], threading.Event(), get_implementation("threads")(1)

    def flush():
        if len(beats) > 2:
            flushed.set()
        if fails:
            raise OSError("the connection is lost")

    monkeypatch.setattr("appserver.pools.BEAT", 0.001)
    monkeypatch.setattr("appserver.pools.beat", beats.append)
    # Meanwhile nothing waits for a store.
    consumer = SimpleNamespace(stream=SimpleNamespace(flush=flush, write_results=int))
    worker = SimpleNamespace(pool=pool, consumer=consumer)
    SettledTasks(None).create(worker)
    pool.start()
    pool.apply_async(flushed.wait, [TIMEOUT])
    pool.stop()

    assert flushed.is_set() and set(map(id, beats)) == {id(worker)}
    assert "pool-end" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("name", ["threads", "gevent"])
def test_what_ended_last_is_written_before_a_pool_has_ended(monkeypatch, name):
    monkeypatch.setattr("appserver.pools.BEAT", 3_600)
    pool, stream = get_implementation(name)(1), Mock()
    worker = SimpleNamespace(pool=pool, consumer=SimpleNamespace(stream=stream))
    SettledTasks(None).create(worker)
    pool.start()
    pool.stop()
    assert stream.mock_calls == [call.write_results(), call.flush()]


def test_a_cold_shutdown_leaves_the_task_of_solo_its_end_and_begins_no_other(app, caplog):
    pool, settled, others = get_implementation("solo")(1), [], []
    pool.start()
    SettledTasks(None).create(SimpleNamespace(pool=pool))

    @app.task(name="shop.cancelled", shared=False, ignore_result=True)
    def cancelled() -> None:
        request.cancel(pool, emit_retry=False)
        other.execute_using_pool(pool)

    app.finalize()
    task = app.tasks[cancelled.name]
    request, other = (make(app, task, pool, each, {}, {}) for each in (settled, others))
    request.execute_using_pool(pool)

    assert (settled, others) == ([ACK], [])
    assert "cannot be terminated" in caplog.text


def test_a_greenlet_that_is_killed_ends_its_task(end, monkeypatch):
    assert end("gevent", raising(GreenletExit()))[0] == [ACK]

    def killed(self, *_):
        raise GreenletExit

    monkeypatch.setattr(PoisonAwareRequest, "on_accepted", killed)
    assert end("gevent", never)[0] == [ACK]


def test_what_ends_the_worker_is_passed_on(end, monkeypatch):
    def ends(self, *_):
        raise WorkerShutdown

    monkeypatch.setattr(PoisonAwareRequest, "on_accepted", ends)
    with pytest.raises(WorkerShutdown):
        end("solo", returning(1))


def test_a_timeout_of_greenlets_is_one(end):
    import gevent

    def sleep(self):
        gevent.sleep(60)

    ended, lost = end("gevent", sleep, time_limit=0.01)
    assert (ended, lost) == ([ACK], 1)


def test_a_time_limit_in_eventlet_does_not_need_gevent(monkeypatch):
    monkeypatch.setitem(sys.modules, "gevent", None)
    eventlet = SimpleNamespace(is_green=True)  # its pool knows no limits
    assert pools._passed(eventlet, 60) == (GreenletExit,)


def test_a_request_class_of_ones_own_is_asked_once(caplog):
    """And what it raises is not dropped without a line."""
    pool = get_implementation("threads")(1)
    pool.start()
    SettledTasks(None).create(SimpleNamespace(pool=pool))
    asked = []

    def fails(error: ExceptionInfo) -> None:
        asked.append(error.type)
        raise KeyError("no")

    pool.apply_async(
        raising(ValueError("no")), [None], callback=None, error_callback=fails,
        accept_callback=lambda *_: None,
    )  # fmt: skip
    other = pool.apply_async(lambda: 1, callback=asked.append)  # no task
    other.wait()
    pool.stop()
    assert asked == [ValueError, 1]
    assert "What follows a task has failed" in caplog.text


@pytest.fixture
def request_(app):
    """Make a request whose task has these options."""

    def make_one(settled, embed=None, **options):

        @app.task(name="shop.other", shared=False, **options)
        def task() -> None: ...

        app.finalize()
        return make(app, app.tasks[task.name], Processes(), settled, embed or {}, {"group": "1"})

    return make_one


@pytest.mark.parametrize(("acks", "settled"), [(True, ACK), (False, REQUEUE)])
def test_the_end_of_a_time_limit_settles_the_message(request_, app, acks, settled):
    chord = {"chord": app.signature("shop.next")}
    ended: list[str] = []
    request = request_(ended, chord, acks_on_failure_or_timeout=acks)
    request.on_timeout(soft=True, timeout=1)
    assert ended == []
    request.on_timeout(soft=False, timeout=1)
    assert ended == [settled]


def test_a_task_that_has_expired_is_settled(request_, app):
    ended: list[str] = []
    request = request_(ended, {"chord": app.signature("shop.next")})
    state.revoked.add(request.id)
    assert request.revoked()
    assert ended == [ACK]
    assert lost_results(app).number == 1


def test_what_precedes_or_follows_a_task_may_fail_in_the_worker_s_own_thread(
    end, monkeypatch, caplog
):
    def failing(self, *_, **__):
        raise RuntimeError("not that")

    with monkeypatch.context() as patch:
        patch.setattr(PoisonAwareRequest, "on_accepted", failing)
        for pool in ("threads", "solo"):
            assert end(pool, returning(1))[0] == [ACK]
    assert caplog.text.count("What precedes a task has failed; the task is begun") == 2
    monkeypatch.setattr(PoisonAwareRequest, "on_failure", failing)
    assert end("solo", returning(1))[0] == []
    assert "What follows a task has failed" in caplog.text


def test_what_is_no_task_runs_as_before():
    pool, results = get_implementation("solo")(1), []
    SettledTasks(None).create(SimpleNamespace(pool=pool))
    pool.on_apply(lambda: 7, callback=results.append)
    assert results == [7]
