"""`gateway check` of results: where workers store them, in what form, for how long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis
from celery import Celery

from gateway.stack.server import poll
from tests.integration.checking import check, urls, worker_of
from tests.support.stack import RabbitMQ, Server, Stack


@pytest.fixture
def worker(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server, tmp_path: Path):
    """Start workers in a `with` block, with the gateway's result store unless another is given."""

    def start(backend: str = redis_server.url, lines: str | None = None, *args, **env):
        return worker_of(stack, rabbitmq.url, tmp_path, backend, lines, *args, **env)

    return start


@pytest.fixture
def servers(rabbitmq: RabbitMQ, redis_server: Server) -> list[str]:
    return urls(rabbitmq.url, redis_server.url)


def other_database(url: str) -> str:
    return re.sub(r"/0$", "/1", url)


@pytest.mark.parametrize("lines", [None, ""], ids=["app server", "stock"])
def test_results_in_another_database(servers, redis_server, rabbitmq, worker, lines):
    other = other_database(redis_server.url)
    with worker(other, lines):
        checked = check(*servers)
        mended = check(*urls(rabbitmq.url, other))
    line = checked.of("stored results")
    assert checked.code == 1 and line.status == "FAIL"
    assert "in another database of the same Redis" in line.text and other in line.text
    assert mended.well


@pytest.mark.parametrize("lines", [None, ""], ids=["app server", "stock"])
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_results_in_another_redis(servers, rabbitmq, stack, start, worker, lines, pool):
    other = start(stack.redis)
    with worker(other.url, lines, pool):
        checked = check(*servers)
        mended = check(*urls(rabbitmq.url, other.url))
    other.stop()
    line = checked.of("stored results")
    assert checked.code == 1 and line.status == "FAIL"
    assert "another Redis" in line.text and other.url in line.text
    assert mended.well


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_worker_whose_redis_takes_nothing_survives(
    servers, redis_server, stack, start, worker, pool
):
    other = start(stack.redis)
    with redis.Redis.from_url(other.url) as client:
        client.config_set("maxmemory", 1)
    with worker(other.url, None, pool) as running:
        assert check(*servers).of("stored results").status == "FAIL"
        assert check(*servers).of("workers").text.startswith("1 answered")
        assert running.alive()
    other.stop()


def test_a_busy_worker_is_not_told_to_store_elsewhere(servers, rabbitmq, worker, tmp_path):
    with worker(lines="", pool="prefork"):
        publish(rabbitmq)
        assert poll((tmp_path / "ran").exists, 20)
        checked = check(*servers)
    assert checked.code == 0 and checked.of("workers").status == "ok"
    line = checked.of("stored results")
    assert (line.status, line.text) == ("skip", "not tried: the workers are busy")


def test_nothing_is_sent_to_a_queue_with_messages(servers, rabbitmq, worker, tmp_path):
    lines = "app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)"
    with worker(lines=lines, pool="prefork"):
        for _ in range(3):
            publish(rabbitmq)
        assert poll((tmp_path / "ran").exists, 20)
        checked = check(*servers)
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


def test_one_redis_of_two_names(servers, redis_server, rabbitmq, worker):
    with worker(redis_server.url.replace("127.0.0.1", "localhost")):
        assert check(*servers).well


def test_what_the_environment_says_counts(servers, redis_server, worker):
    # Celery does not show it: by its settings this one stores nothing.
    with worker("", "", CELERY_RESULT_BACKEND=redis_server.url):
        assert check(*servers).of("stored results").status == "ok"
    with worker(redis_server.url, "", CELERY_RESULT_BACKEND=other_database(redis_server.url)):
        assert check(*servers).of("stored results").status == "FAIL"


@pytest.mark.parametrize(
    ("theirs", "each"), [("shop", ["", "gate"]), ("", ["gate"]), ("shop:", ["gate:"])]
)
@pytest.mark.parametrize("stock", [False, True])
def test_another_key_prefix(servers, redis_server, worker, theirs, each, stock):
    options = f"app.conf.result_backend_transport_options = {{'global_keyprefix': {theirs!r}}}"
    with worker(redis_server.url, options if stock else None, GATEWAY_RESULT_KEY_PREFIX=theirs):
        for ours in each:
            checked = check(*servers, GATEWAY_RESULT_KEY_PREFIX=ours)
            line = checked.of("stored results")
            (remedy,) = re.findall(r"result_key_prefix = '([^']*)' for the gateway", line.text)
            mended = check(*servers, GATEWAY_RESULT_KEY_PREFIX=remedy)
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
def test_another_expiry(servers, redis_server, worker, lines, seconds):
    with worker(redis_server.url, lines, GATEWAY_RESULT_EXPIRES="60"):
        checked = check(*servers)
        mended = check(*servers, GATEWAY_RESULT_EXPIRES=str(seconds or 300))
    line = checked.worst("stored results")
    fails = 0 < seconds < 300
    assert (checked.code, line.status) == ((1, "FAIL") if fails else (0, "warn"))
    assert f"for {seconds or 'ev'}" in line.text and "result_expires = 300" in line.text
    assert mended.well == bool(seconds)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("app.conf.result_backend = None", "stores nothing in Redis, as result_backend is not set"),
        ("app.conf.result_backend = 'rpc://'", "stores nothing in Redis"),
        ("app.conf.result_serializer = 'yaml'", "result_serializer is yaml"),
        ("app.conf.result_compression = 'gzip'", "result_compression is gzip"),
    ],
)
def test_results_that_the_gateway_cannot_read(servers, redis_server, worker, lines, text):
    with worker(redis_server.url, lines):
        checked = check(*servers)
    line = checked.worst("stored results")
    assert checked.code == 1 and line.status == "FAIL" and text in line.text


def test_replies(servers, redis_server, worker):
    args = [*servers, "--strategy", "pika"]
    with worker():
        assert check(*args).well
    with worker(lines="app.conf.result_backend = 'rpc://'"):
        assert check(*args).well
    with worker(lines="import appserver; appserver.setup(app)"):
        assert check(*args).well
    with worker(lines=""):
        line = check(*args).of("replies")
        assert line.status == "FAIL" and "appserver.setup(app)" in line.text
