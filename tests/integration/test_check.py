"""`gateway check`: its lines, its JSON, and what it says of brokers and queues."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.docs.test_documents import ROOT
from tests.integration.checking import apply, check, run, servers_at, write
from tests.support.stack import RabbitMQ, free_port

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture
def user(rabbitmq: RabbitMQ):
    """An account with no permissions yet."""
    rabbitmq.ctl("add_user", "limited", "sesame")
    yield "limited"
    rabbitmq.ctl("delete_user", "limited")


def as_user(rabbitmq: RabbitMQ, user: str) -> str:
    return rabbitmq.url.replace("guest:guest", f"{user}:sesame")


# Lines ----------------------------------------------------------------------------------------


def test_all_is_well(urls):
    checked = check(*urls)
    assert checked.well
    words = [line.check.split()[0] for line in checked.lines]
    assert words == ["config", "broker", "results", "state", "workers", "queue", "stored", "task"]
    assert re.match(r"RabbitMQ \d+\.\d+\.\d+", checked.of("broker").text)
    memory = r"[\d.]+ MiB used, no maxmemory"
    assert re.fullmatch(rf"(Redis|Valkey) [\d.]+, {memory}", checked.of("results").text)


def test_json_says_what_the_lines_say(urls):
    lines, done = check(*urls), run(*urls, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"]) == (0, True)
    assert [each["check"] for each in told["checks"]] == [line.check for line in lines.lines]
    assert all({"check", "status", "problem", "remedy"} <= each.keys() for each in told["checks"])


@pytest.mark.parametrize("form", ["lines", "json"])
def test_a_wrong_configuration_is_told_like_anything_else(tmp_path, form):
    config = write(tmp_path, 'color = "red"\n[[routes]]\npath = "x"\n')
    done = run(*config, *(["--json"] if form == "json" else []), GATEWAY_QUEUS="a")
    assert done.returncode == 1
    if form == "lines":
        words = [line.split()[:2] for line in done.stdout.splitlines()]
        assert words == [["FAIL", "config:"]] * 3 + [["skip", "broker,"]]
        return
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert [each["status"] for each in told["checks"]] == ["fail", "fail", "fail", "skipped"]
    assert "color" in str(told["checks"][:2])
    assert all(each["remedy"] for each in told["checks"][:3])


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("GATEWAY_BROKER_URI", "FAIL", "did you mean GATEWAY_BROKER_URL?"),
        ("GATEWAY_WORKER_CHATER", "FAIL", "did you mean GATEWAY_WORKER_CHATTER?"),
        ("GATEWAY_INTERFACE", "warn", "unset it"),
    ],
)
def test_a_variable_that_nobody_reads_is_told(urls, name, status, text):
    checked = check(*urls, **{name: "x"})
    line = checked.worst("config")
    assert line.status == status and line.text.startswith(name) and text in line.text
    assert checked.code == (status == "FAIL")


# Brokers --------------------------------------------------------------------------------------


def test_without_a_broker_the_rest_is_looked_at_as_far_as_it_goes(redis_server):
    checked = check(*servers_at(f"amqp://u:sesame@127.0.0.1:{free_port()}//", redis_server.url))
    assert checked.code == 1
    line = checked.of("broker")
    assert line.status == "FAIL" and "start it, or correct broker_url" in line.text
    assert "sesame" not in str(checked)
    assert checked.of("results").status == "ok"
    assert checked.of("queues, workers and tasks").status == "skip"


def test_one_broker_of_the_list_may_be_away(rabbitmq, redis_server):
    both = f"amqp://guest:guest@127.0.0.1:{free_port()}//;{rabbitmq.url}"
    checked = check(*servers_at(both, redis_server.url))
    assert checked.code == 0
    assert [x.status for x in checked.lines if x.check.startswith("broker")] == ["warn", "ok"]
    assert checked.of("task").status == "ok"


def test_a_wrong_password_is_told_from_a_broker_that_is_away(rabbitmq, redis_server):
    broker = rabbitmq.url.replace(":guest@", ":sesame@")
    line = check(*servers_at(broker, redis_server.url)).of("broker")
    assert line.status == "FAIL" and "correct user and password" in line.text
    assert "sesame" not in line.text


def test_a_virtual_host_that_is_missing(rabbitmq, redis_server):
    urls = servers_at(rabbitmq.url.removesuffix("/") + "new", redis_server.url)
    line = check(*urls).of("broker")
    assert line.status == "FAIL"
    apply(rabbitmq, line.text)
    assert check(*urls).of("broker").status == "ok"
    rabbitmq.ctl("delete_vhost", "new")


class _NoBroker(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def http_server():
    with ThreadingHTTPServer(("127.0.0.1", 0), _NoBroker) as server:
        Thread(target=server.serve_forever).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


@pytest.mark.parametrize("peer", ["swapped", "http"])
def test_a_port_of_something_else_is_told_in_a_line(rabbitmq, redis_server, peer):
    ports = [server.port for server in (redis_server, rabbitmq)]
    with http_server() as port:
        broker, store = ports if peer == "swapped" else (port, port)
        found = check(*servers_at(f"amqp://127.0.0.1:{broker}//", f"redis://127.0.0.1:{store}/0"))
    assert found.of("broker").status == found.of("results").status == "FAIL"


@pytest.mark.parametrize(
    "permissions",
    [("", "", ""), (".*", "^celery$", ".*"), None],
    ids=["nothing", "no default exchange", "not the virtual host"],
)
def test_a_permission_that_the_gateway_lacks_is_told_with_the_remedy(
    rabbitmq, redis_server, user, permissions
):
    if permissions is not None:
        rabbitmq.ctl("set_permissions", user, *permissions)
    urls = servers_at(as_user(rabbitmq, user), redis_server.url)

    checked = check(*urls)

    assert checked.code == 1
    line = checked.of("broker")
    assert line.status == "FAIL" and "set_permissions" in line.text
    apply(rabbitmq, line.text)
    assert check(*urls).well


def test_an_account_that_may_only_publish_is_no_failure(rabbitmq, redis_server, user):
    rabbitmq.ctl("set_permissions", user, "^$", "^amq\\.default$", "^$")
    checked = check(*servers_at(as_user(rabbitmq, user), redis_server.url))
    assert checked.code == 0
    assert checked.of("broker").status == "ok"
    # RabbitMQ 4.3 also refuses to tell such an account whether the queue exists.
    told = "may not declare|not checked: ACCESS_REFUSED - configure access to queue 'celery'"
    assert re.search(told, checked.of("queue").text)
    assert [checked.of(x).status for x in ("queue", "workers", "task")] == ["skip"] * 3


def test_the_least_permissions_of_the_documents_are_enough(rabbitmq, redis_server, user):
    text = (ROOT / "docs/configuration.md").read_text("utf-8")
    # The second one is for dynamic queues.
    line, _ = re.findall(r"^ *rabbitmqctl set_permissions .*$", text, re.M)
    rabbitmq.ctl(*shlex.split(line.replace("USER", user))[1:])
    for strategy in ("redis", "pika"):
        args = servers_at(as_user(rabbitmq, user), redis_server.url)
        assert check(*args, "--strategy", strategy).well


# The embedded broker --------------------------------------------------------------------------


def test_the_embedded_broker_of_dev(stack, start):
    server = start(stack.embedded)
    args = servers_at(server.url, server.url)
    none = check(*args)
    worker = stack.worker(server.url, server.url)
    try:
        well = check(*args)
        other = check(*servers_at(server.url, server.url.replace("/0", "/1")))
        server.freeze()
        frozen = check(*args)
    finally:
        server.thaw()
        worker.kill()
        server.stop()
    assert none.code == 1 and "start one" in none.of("workers").text
    assert well.well and well.of("workers").text.startswith("1 answered")
    assert other.code == 1 and "database 0" in other.of("stored results").text
    assert frozen.code == 1 and "no answer within" in frozen.of("broker").text
