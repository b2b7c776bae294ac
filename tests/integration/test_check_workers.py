"""`gateway check` of workers: who answers, who has the tasks, what they do with results."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from gateway.stack.server import poll
from tests.docs.test_documents import ROOT
from tests.integration.checking import ROUTE, check, servers_at, write
from tests.support.stack import RabbitMQ, Server
from tests.support.waiting import until


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


# Who answers ----------------------------------------------------------------------------------


def test_no_worker_at_all(urls):
    checked = check(*urls)
    assert checked.code == 1
    assert "celery -A APP worker -n NAME@%h -Q celery" in checked.of("workers").text


def test_workers_of_the_queue_lack_its_task(stack, rabbitmq, redis_server, worker_with, tmp_path):
    # Given a worker on the route's queue that lacks the task, and one elsewhere that has it,
    config = write(tmp_path, ROUTE + 'task = "faults.run"\n')
    other = {"app": "tests.faults.tasks", "queues": ["elsewhere"], "cwd": ROOT}
    stack.worker(rabbitmq.url, redis_server.url, **other)
    with worker_with():
        checked = check(*config, *servers_at(rabbitmq.url, redis_server.url))
    assert checked.code == 1
    line = checked.of("task faults.run")
    assert re.search(r"\S+ on celery lacks it; \S+ has it", line.text)


def test_workers_without_remote_control_cannot_be_looked_at(urls, worker_with):
    with worker_with(lines="app.conf.worker_enable_remote_control = False"):
        checked = check(*urls)
    line = checked.of("workers")
    assert (checked.code, line.status) == (0, "warn")
    assert "worker_enable_remote_control" in line.text
    assert checked.of("task").status == "skip"


def test_workers_that_answer_in_another_form_are_no_error(urls, worker_with):
    with worker_with(
        lines="app.conf.update(task_serializer='yaml', accept_content=['yaml', 'json'])"
    ):
        checked = check(*urls)
    assert checked.of("workers").status in ("warn", "FAIL")


def test_a_fleet_is_one_line(urls, worker_with):
    with worker_with(), worker_with(), worker_with(), worker_with():
        checked = check(*urls)
    assert checked.well
    told = r"4 answered: (worker-\w+@localhost, ){2}worker-\w+@localhost and 1 more"
    assert re.fullmatch(told, checked.of("workers").text)
    assert checked.of("stored results").text.startswith("4 of 4 ")


# Nothing is run, nothing stays ----------------------------------------------------------------


def test_no_task_is_run_and_nothing_stays(urls, rabbitmq, client, worker_with, tmp_path):
    client.flushall()
    with worker_with(lines=""):
        before = rabbitmq.ctl("list_queues", "name", "messages")
        assert check(*urls).well
        # A message is acknowledged after its reply.
        until(lambda: rabbitmq.ctl("list_queues", "name", "messages") == before, 30)
    assert client.keys("*") == []
    assert not (tmp_path / "ran").exists()


# Results: where workers store them, in what form, for how long ---------------------------------


def other_database(url: str) -> str:
    return re.sub(r"/0$", "/1", url)


@pytest.mark.parametrize("lines", [None, ""], ids=["app server", "stock"])
@pytest.mark.parametrize(
    ("where", "pool"),
    [
        ("in another database of the same Redis", "solo"),
        ("another Redis", "solo"),
        ("another Redis", "prefork"),
    ],
)
def test_results_elsewhere(
    urls, rabbitmq, redis_server, stack, start, worker_with, lines, where, pool
):
    same = where.endswith("same Redis")
    other = other_database(redis_server.url) if same else start(stack.redis).url
    with worker_with(other, lines, pool):
        checked = check(*urls)
        mended = check(*servers_at(rabbitmq.url, other))
    line = checked.of("stored results")
    assert checked.code == 1 and line.status == "FAIL"
    assert where in line.text and other in line.text
    assert mended.well


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_worker_whose_redis_takes_nothing_survives(urls, stack, start, worker_with, pool):
    other = start(stack.redis)
    other.client.config_set("maxmemory", 1)
    with worker_with(other.url, None, pool) as running:
        assert check(*urls).of("stored results").status == "FAIL"
        assert check(*urls).of("workers").text.startswith("1 answered")
        assert running.alive()


def test_a_busy_worker_is_not_told_to_store_elsewhere(urls, rabbitmq, worker_with, tmp_path):
    with worker_with(lines="", pool="prefork"):
        publish(rabbitmq)
        assert poll((tmp_path / "ran").exists, 20)
        checked = check(*urls)
    assert checked.code == 0 and checked.of("workers").status == "ok"
    line = checked.of("stored results")
    assert (line.status, line.text) == ("skip", "not tried: the workers are busy")


def test_nothing_is_sent_to_a_queue_with_messages(urls, rabbitmq, worker_with, tmp_path):
    lines = "app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)"
    with worker_with(lines=lines, pool="prefork"):
        for _ in range(3):
            publish(rabbitmq)
        assert poll((tmp_path / "ran").exists, 20)
        checked = check(*urls)
        waiting = rabbitmq.ctl("list_queues", "name", "messages")
    rabbitmq.ctl("purge_queue", "celery")
    assert "celery\t3" in waiting
    line = checked.of("stored results")
    assert (line.status, line.text) == ("skip", "not tried: 2 messages waiting on celery")


def publish(rabbitmq: RabbitMQ) -> None:
    """Send a message for the stock app's only task, which takes long."""
    app = Celery(broker=rabbitmq.url, set_as_current=False)
    app.send_task("api.core.main", ignore_result=True)
    app.close()


def test_one_redis_of_two_names(urls, redis_server, rabbitmq, worker_with):
    with worker_with(redis_server.url.replace("127.0.0.1", "localhost")):
        assert check(*urls).well


def test_what_the_environment_says_counts(urls, redis_server, worker_with):
    # Celery does not show it: by its settings this one stores nothing.
    with worker_with("", "", CELERY_RESULT_BACKEND=redis_server.url):
        assert check(*urls).of("stored results").status == "ok"
    with worker_with(redis_server.url, "", CELERY_RESULT_BACKEND=other_database(redis_server.url)):
        assert check(*urls).of("stored results").status == "FAIL"


@pytest.mark.parametrize(
    ("theirs", "each"), [("shop", ["", "gate"]), ("", ["gate"]), ("shop:", ["gate:"])]
)
@pytest.mark.parametrize("stock", [False, True])
def test_another_key_prefix(urls, redis_server, worker_with, theirs, each, stock):
    options = f"app.conf.result_backend_transport_options = {{'global_keyprefix': {theirs!r}}}"
    with worker_with(
        redis_server.url, options if stock else None, GATEWAY_RESULT_KEY_PREFIX=theirs
    ):
        for ours in each:
            checked = check(*urls, GATEWAY_RESULT_KEY_PREFIX=ours)
            line = checked.of("stored results")
            (remedy,) = re.findall(r"result_key_prefix = '([^']*)' for the gateway", line.text)
            mended = check(*urls, GATEWAY_RESULT_KEY_PREFIX=remedy)
            assert checked.code == 1 and line.status == "FAIL"
            assert mended.well


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        (None, 60),
        ("app.conf.result_expires = 60", 60),
        ("from datetime import timedelta; app.conf.result_expires = timedelta(days=1)", 86400),
        ("app.conf.result_expires = None", 0),
    ],
)
def test_another_expiry(urls, redis_server, worker_with, lines, seconds):
    with worker_with(redis_server.url, lines, GATEWAY_RESULT_EXPIRES="60"):
        checked = check(*urls)
        mended = check(*urls, GATEWAY_RESULT_EXPIRES=str(seconds or 300))
    line = checked.worst("stored results")
    fails = 0 < seconds < 300
    assert (checked.code, line.status) == ((1, "FAIL") if fails else (0, "warn"))
    assert f"for {seconds or 'ev'}" in line.text and "result_expires = 300" in line.text
    assert mended.well == bool(seconds)


FAILED = "stored results", "FAIL"
#: Its worker does not know the question for its settings.
UNTOLD = "from celery.worker import control; del control.Panel.data['conf']"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("app.conf.result_backend = None", "stores nothing in Redis, as result_backend is not set"),
        ("app.conf.result_backend = 'rpc://'", "stores nothing in Redis"),
        ("app.conf.result_serializer = 'yaml'", "result_serializer is yaml"),
        ("app.conf.result_compression = 'gzip'", "result_compression is gzip"),
        (f"{UNTOLD}; app.conf.result_serializer = 'yaml'", "has stored what is no JSON result"),
    ],
)
def test_results_that_the_gateway_cannot_read(urls, redis_server, worker_with, lines, text):
    with worker_with(redis_server.url, lines):
        checked = check(*urls)
    found = [line for line in checked.lines if (line.check, line.status) == FAILED]
    assert checked.code == 1 and text in " ".join(line.text for line in found)


def test_replies(urls, redis_server, worker_with):
    args = [*urls, "--strategy", "pika"]
    with worker_with():
        assert check(*args).well
    with worker_with(lines="app.conf.result_backend = 'rpc://'"):
        assert check(*args).well
    with worker_with(lines="import appserver; appserver.setup(app)"):
        assert check(*args).well
    with worker_with(lines=""):
        line = check(*args).of("replies")
        assert line.status == "FAIL" and "appserver.setup(app)" in line.text
