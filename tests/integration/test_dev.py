"""`gateway dev` with somebody's own app: on its own servers, ready when a task has run."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from gateway.cli.local import first_task
from gateway.config.settings import Config
from gateway.stack.programs import find_rabbitmq
from tests.docs.test_documents import text
from tests.docs.test_readme import output_until
from tests.support import command
from tests.support.requests import fetch
from tests.support.stack import Server, Stack, StackError, free_port
from tests.support.waiting import until

READY = "Ctrl-C stops everything"
README_APP = re.search(r"```python\n(.*?)```", text("README.md"), re.S)[1]
README_ROUTE, README_SENDER = re.findall(r"```toml\n(.*?)```", text("README.md"), re.S)
(README_POST,) = re.findall(r"^    curl --data '(.*)' http.*8000(/\S+) ", text("README.md"), re.M)
(README_SEND,) = re.findall(r"^    gateway (send .*)$", text("README.md"), re.M)
TOLD_APP = re.search(
    r"## What a task gets\n.*?```python\n(.*?)```", text("docs/appserver.md"), re.S
)[1]

# What an app's module may do beside naming its servers.
STUBBORN = """
import os
from celery.signals import celeryd_init, worker_init

os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_BROKER_READ_URL"] = "{staging}"


@celeryd_init.connect
@worker_init.connect
def configure(**_):
    app.conf.broker_url = app.conf.broker_read_url = app.conf.broker_write_url = "{staging}"
    app.conf.broker_transport_options = {{"global_keyprefix": "shop"}}
"""


@contextmanager
def dev(directory: Path, *args: str, **env: str) -> Iterator[SimpleNamespace]:
    """Run `gateway dev` in `directory` until it is ready; then give its URL and what it said."""
    port = free_port()
    ports = ["--port", str(port), "--admin-port", str(free_port())]
    process = subprocess.Popen(
        [*command.GATEWAY, "dev", *ports, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=directory,
        env={**os.environ, **env},
    )
    try:
        told = SimpleNamespace(url=f"http://127.0.0.1:{port}", process=process, said="")
        told.said = output_until(process, READY)
        yield told
        process.send_signal(signal.SIGINT)
        told.said += process.communicate(timeout=60)[0].decode()
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def write(directory: Path, app: str, toml: str = "") -> None:
    (directory / "shop.py").write_text(app)
    (directory / "gateway.toml").write_text(toml)


def exported(said: str) -> dict[str, str]:
    """Return the environment with what the line for other commands sets."""
    (line,) = re.findall(r"^    export (.*)", said, re.M)
    return {**os.environ, **dict(each.split("=", 1) for each in shlex.split(line))}


# An app of one's own ----------------------------------------------------------------------------


def test_the_readmes_app_answers_and_leaves_its_own_broker_alone(stack, start, tmp_path):
    # Given an app that names its staging's broker in every way, whose queue has messages,
    staging = start(stack.embedded)
    app = README_APP.replace("amqp://...", staging.url).replace("redis://...", staging.url)
    write(tmp_path, app + STUBBORN.format(staging=staging.url), README_ROUTE + README_SENDER)
    secret = {"SHOPIFY_SECRET": "a secret"}
    data, path = README_POST
    with redis.Redis.from_url(staging.url) as client:
        client.rpush("orders", "somebody's message")
        before = client.info("stats")["total_connections_received"]

        # when it is tried out, as its documents say,
        with dev(
            tmp_path, "--app", "shop", "--config", "gateway.toml", BROKER_URL=staging.url, **secret
        ) as tried:
            answer = fetch(f"{tried.url}{path}", method="POST", body=data.encode())
            send = shlex.split(README_SEND.replace("http://127.0.0.1:8000", tried.url))
            sent = command.run(*send, env={**os.environ, **secret}, cwd=tmp_path)

        # then its task has its own arguments, from either sender,
        assert (answer.status, answer.body) == (200, b"order 7 of berlin is taken")
        assert re.search(r"^order \d+ of my-shopify is taken$", sent.stdout, re.M), sent
        # nobody has asked the other broker for anything,
        assert client.info("stats")["total_connections_received"] == before
        assert client.lrange("orders", 0, -1) == [b"somebody's message"]
    # and each request is a line, with its delivery.
    line = r"POST /orders/berlin 200 [\d.]+ ms delivery=[0-9a-f-]{36} .*\n"
    assert len(re.findall(line, tried.said)) == 1
    assert "Traceback" not in tried.said


def test_a_ready_block_gets_rabbitmq_and_a_stock_app_may_use_pika(stack, start, tmp_path):
    # Given the document's example of a task, on a route that needs confirms, and an unknown task,
    start(partial(find_rabbitmq, "rabbitmq-server"))
    route = '[[routes]]\npath = "/orders/{shop}"\ntask = "shop.take_order"\n'
    other = '[[routes]]\npath = "/refunds"\ntask = "shop.take_ordr"\n'
    public = 'public_url = "https://hooks.example.com"\n'
    write(tmp_path, TOLD_APP, f'{public}{route}answer = "wait-then-accept"\n{other}')

    with dev(tmp_path, "--app", "shop", "--config", "gateway.toml", "--strategy", "pika") as tried:
        url = f"{tried.url}/orders/berlin?tag=a&tag=b"
        answer = fetch(url, method="POST", body=b"one")
        # The line for other commands has all that they need, whatever was made up.
        checked = command.run("check", env=exported(tried.said))
        listed = command.run("deliveries", "list", env=exported(tried.said))
        assert "\nok    stored results: " in checked.stdout or "ok    replies" in checked.stdout
        assert "strategy pika" in checked.stdout.splitlines()[0], checked.stdout
        assert listed.returncode == 0 and "/orders/{shop}" in listed.stdout, listed

    assert (answer.status, answer.body) == (200, b"berlin takes one ['a', 'b'] from 127.0.0.1")
    said = tried.said
    assert "starting a private RabbitMQ (up to ten seconds), as these need an AMQP broker: " in said
    assert (
        "result URLs begin with https://hooks.example.com, as the file says; set GATEWAY_" in said
    )
    assert "--strategy, gateway.toml: routes[0].answer (path /orders/{shop})\n" in said
    assert (
        "has no task shop.take_ordr, so /refunds answers 502; did you mean shop.take_order?" in said
    )
    assert "the app shop has to reply for the strategy pika: call appserver.setup(app)" in said
    assert f"GATEWAY_CONFIG={tmp_path}/gateway.toml" in said


def test_what_has_changed_is_started_anew_and_what_is_wrong_is_not(tmp_path):
    write(tmp_path, README_APP, README_ROUTE)
    config = tmp_path / "gateway.toml"
    data, path = README_POST
    with dev(tmp_path, "--app", "shop", "--config", "gateway.toml", "--reload") as tried:

        def answer(where: str = path) -> bytes:
            return fetch(f"{tried.url}{where}", method="POST", body=data.encode()).body

        def said(text: str) -> None:
            tried.said += output_until(tried.process, text)

        assert answer() == b"order 7 of berlin is taken"
        checked = command.run("check", env=exported(tried.said))
        assert {line[:5] for line in checked.stdout.splitlines()} == {"ok   "}, checked.stdout

        # When the app changes, a new worker runs it, and the old one ends when it has one;
        (tmp_path / "shop.py").write_text(README_APP.replace("is taken", "has come"))
        said("a new worker has taken over")
        assert answer() == b"order 7 of berlin has come"
        # when it is wrong, that is told in three lines, and the worker stays;
        (tmp_path / "shop.py").write_text("def take(:")
        before = len(tried.said)
        said("the old worker goes on")
        lines = tried.said[before:].strip().splitlines()
        assert [line.partition(" | ")[2] for line in lines[-3:-1]] == [
            f"--app shop: its import fails in {tmp_path}/shop.py, line 1: def take(:",
            "SyntaxError: invalid syntax; `python -c 'import shop'` shows the whole traceback",
        ]
        assert answer() == b"order 7 of berlin has come"
        # and so the routes.
        (tmp_path / "shop.py").write_text(README_APP)
        said("a new worker has taken over")
        config.write_text(README_ROUTE.replace("deadline", "dedline"))
        said("did you mean deadline?")
        assert answer() == b"order 7 of berlin is taken"
        config.write_text(README_ROUTE.replace("/orders/", "/new/").replace('"orders"', '"new"'))
        said("supervisor: reloaded")

        def moved() -> bool:
            # The old process may still take a connection before it ends.
            with suppress(urllib.error.HTTPError):
                return answer("/new/paris") == b"order 7 of paris is taken"
            return False

        until(moved)


def test_what_keeps_the_app_from_starting_is_told_once(tmp_path):
    write(tmp_path, "raise RuntimeError('no database here')")
    for app, told in [("shop", "no database here"), ("shops", "there is no module shops in")]:
        ports = ("--port", str(free_port()), "--admin-port", str(free_port()))
        ran = command.run("dev", "--app", app, *ports, cwd=tmp_path)
        assert ran.returncode == 1
        assert f"{ran.stdout}{ran.stderr}".count(told) == (2 if app == "shop" else 1), ran.stdout
        assert "Traceback" not in ran.stdout
        assert ran.stderr == "gateway: worker exited with 1: see its lines above\n"


# The first task -----------------------------------------------------------------------------------


def config(server: Server, broker: str = "", **settings) -> Config:
    return Config(broker_url=broker or server.url, result_backend=server.url, **settings)


def test_it_ends_when_nobody_reads_its_output_any_more(tmp_path):
    write(tmp_path, README_APP, README_ROUTE)
    ports = ["--port", str(free_port()), "--admin-port", str(free_port())]
    argv = [sys.executable, "-m", "gateway", "dev", *ports, "--app", "shop", "--config"]
    with subprocess.Popen(
        [*argv, "gateway.toml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        for line in process.stdout:
            if line == b"starting a worker of shop, and the gateway\n":
                break
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_a_worker_that_runs_nothing_is_told_in_time(stack: Stack, start, monkeypatch):
    server = start(stack.embedded)
    monkeypatch.setattr(first_task, "SECONDS", 0.5)
    with pytest.raises(StackError, match=r"has run no task from the queue celery in 0.5 s"):
        first_task.run(config(server), ["celery"])


def test_results_that_the_gateway_cannot_read_are_told(stack: Stack, start, tmp_path):
    server = start(stack.embedded)
    serializer = "app.conf.update(result_serializer='yaml', accept_content=['json', 'yaml'])"
    write(tmp_path, f"from celery import Celery\napp = Celery('shop')\n{serializer}\n")
    env = {"GATEWAY_BROKER_URL": server.url, "GATEWAY_RESULT_BACKEND": server.url}
    stack.attached_worker("shop", ["celery"], {**env, "PYTHONPATH": str(tmp_path)})
    with pytest.raises(StackError, match="set result_serializer = 'json'"):
        first_task.run(config(server), ["celery"])


def test_on_somebodys_broker_the_first_task_has_a_queue_of_its_own(stack, rabbitmq, redis_server):
    # Given a queue with messages of others,
    env = {"GATEWAY_BROKER_URL": rabbitmq.url, "GATEWAY_RESULT_BACKEND": redis_server.url}
    worker = stack.attached_worker("appserver", ["crowded"], env, "gateway.dev.1")

    described = first_task.run(config(redis_server, rabbitmq.url), ["gateway.dev.1"])

    assert described.replies and "api.core.main" in described.tasks
    # then that is gone with the worker.
    worker.stop()
    assert "gateway.dev.1" not in rabbitmq.ctl("list_queues", "name")
    rabbitmq.ctl("delete_queue", "crowded")
