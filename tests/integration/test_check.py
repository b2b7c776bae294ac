"""`gateway check`: its lines, its JSON, what it says of brokers and queues, and that it ends."""

from __future__ import annotations

import json
import re
import shlex

import pika
import pytest

from tests.docs.test_documents import ROOT
from tests.integration.checking import KEYED, ROUTE, apply, check, run, servers_at, write
from tests.support.stack import RabbitMQ, free_port
from tests.support.waiting import until

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


@pytest.mark.parametrize("peer", ["swapped", "http"])
def test_a_port_of_something_else_is_told_in_a_line(stack, start, rabbitmq, redis_server, peer):
    if peer == "swapped":
        broker, store = redis_server.port, rabbitmq.port
    else:
        broker = store = start(lambda: stack.nginx([free_port()])).port
    found = check(*servers_at(f"amqp://127.0.0.1:{broker}//", f"redis://127.0.0.1:{store}/0"))
    assert found.of("broker").status == found.of("results").status == "FAIL"


@pytest.mark.parametrize(
    "permissions",
    [("", "", ""), (".*", "^celery$", ".*"), None],
    ids=["nothing", "no default exchange", "not the virtual host"],
)
def test_a_missing_permission_is_told_with_the_remedy(rabbitmq, redis_server, user, permissions):
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


# Queues ----------------------------------------------------------------------------------------


@pytest.fixture
def channel(rabbitmq: RabbitMQ):
    parameters = pika.URLParameters(rabbitmq.url.removesuffix("/") + "%2F")
    with pika.BlockingConnection(parameters) as connection:
        yield connection.channel()


def test_what_is_missing_is_told_and_not_created(rabbitmq, urls, tmp_path):
    config = write(tmp_path, ROUTE + 'queue = "no-such-queue"\ntask = "no.such.task"\n')
    before = rabbitmq.ctl("list_queues", "name"), rabbitmq.ctl("list_exchanges", "name")

    checked = check(*config, *urls)

    assert checked.code == 1
    told = checked.of("queue no-such-queue").text
    assert "celery -A APP worker -n NAME@%h -Q no-such-queue" in told and "did you mean" not in told
    assert "api.core.main" in checked.of("task no.such.task").text
    after = rabbitmq.ctl("list_queues", "name"), rabbitmq.ctl("list_exchanges", "name")
    assert after == before


@pytest.mark.parametrize("exists", [False, True])
def test_a_misspelt_queue_is_told_with_the_one_that_was_meant(channel, urls, tmp_path, exists):
    if exists:
        channel.queue_declare("celry", durable=True)
    try:
        checked = check(*write(tmp_path, ROUTE + 'queue = "celry"\n'), *urls)
    finally:
        channel.queue_delete("celry")
    assert checked.code == 1
    text = checked.of("queue celry").text
    assert text.startswith("no worker consumes it" if exists else "there is no such queue")
    remove = ", and type: gateway check --delete-queue celry" if exists else ""
    start = "start a worker: celery -A APP worker -n NAME@%h -Q celry"
    assert f"did you mean celery? Then correct `queue` there{remove}. Otherwise {start}" in text


def test_a_queue_is_deleted_only_if_nobody_needs_it(channel, urls, tmp_path):
    def delete(name: str, own: str = "other") -> tuple[int, str]:
        config = write(tmp_path, f'{ROUTE}queue = "{own}"\n')
        checked = check(*config, *urls, "--delete-queue", name)
        (line,) = checked.lines
        assert line.check == f"queue {name}"
        return checked.code, line.text

    channel.queue_declare("celry", durable=True)
    assert delete("celry", own="celry") == (
        1,
        "not deleted: the route / names it, so it would be declared again; correct `queue` there, "
        "and reload the gateway (SIGHUP) first",
    )
    channel.basic_publish("", "celry", b"precious")
    until(lambda: delete("celry")[1].startswith("not deleted: it has 0 consumers, 1 message"))
    assert channel.basic_get("celry", auto_ack=True)[2] == b"precious"
    assert delete("celry") == (0, "deleted: it was empty, and no worker consumed it")
    assert delete("celry") == (1, "not deleted: NOT_FOUND - no queue 'celry' in vhost '/'")
    code, text = delete("celery")
    assert code == 1 and text.startswith("not deleted: it has 1 consumer, 0 messages waiting; stop")
    channel.queue_declare("celry", durable=True, arguments={"x-queue-type": "quorum"})
    code, text = delete("celry")
    channel.queue_delete("celry")
    assert code == 1 and text.endswith("rabbitmqctl delete_queue celry")
    nobody = f"amqp://me:hidden@127.0.0.1:{free_port()}//"
    checked = check(*write(tmp_path, ROUTE), *urls, "--broker", nobody, "--delete-queue", "celry")
    text = checked.of("queue celry").text
    assert checked.code == 1 and text.startswith(f"not deleted: {nobody.replace('hidden', '**')}: ")
    assert text.endswith("; start it, or correct broker_url (GATEWAY_BROKER_URL, --broker)")


def test_a_queue_of_another_route_may_be_the_one_that_was_meant(channel, urls, tmp_path):
    channel.queue_declare("invoices", durable=True)
    other = '[[routes]]\npath = "/other"\nqueue = "invoices"\n'
    try:
        checked = check(*write(tmp_path, ROUTE + 'queue = "invoice"\n' + other), *urls)
    finally:
        channel.queue_delete("invoices")
    assert "did you mean invoices?" in checked.worst("queue invoice").text
    assert "did you mean" not in checked.of("queue invoices").text


@pytest.mark.parametrize(
    ("own", "route"),
    [
        ({"x-queue-type": "quorum"}, ""),
        ({}, 'queue_type = "quorum"\n'),
        ({"x-max-length": 1000}, ""),
        ({"x-overflow": "reject-publish"}, 'queue_arguments = { x-overflow = "drop-head" }\n'),
        ({}, "queue_arguments = { x-max-length = 5 }\n"),
    ],
)
def test_a_queue_that_is_not_what_the_route_declares(channel, urls, tmp_path, own, route):
    channel.queue_declare("other", durable=True, arguments=own)
    text = ROUTE + 'queue = "other"\n'
    try:
        checked = check(*write(tmp_path, text + route), *urls)
        problems = [line.text for line in checked.lines if line.check == "queue other"]
        (problem,) = (text for text in problems if "inequivalent" in text)
        mended = check(*write(tmp_path, text + mend(problem)), *urls)
    finally:
        channel.queue_delete("other")
    assert checked.code == 1
    assert "inequivalent" not in str(mended)


def mend(problem: str) -> str:
    """Return the keys of the route that the remedy asks for."""
    if found := re.search(r"set (queue_type = \S+) in the route", problem):
        return found[1]
    if found := re.search(r"add (\S+ = \S+) to queue_arguments", problem):
        return f"queue_arguments = {{ {found[1]} }}"
    assert re.search(r"take \S+ out of queue_arguments", problem)
    return ""


def test_a_queue_that_deletes_itself_or_is_another_connections_own(channel, urls, tmp_path):
    channel.queue_declare("passing", durable=True, auto_delete=True)
    channel.queue_declare("mine", exclusive=True)
    config = write(tmp_path, ROUTE + 'queue = "passing"\n[[routes]]\npath = "/m"\nqueue = "mine"\n')
    checked = check(*config, *urls)
    channel.queue_delete("passing")
    texts = [line.text for line in checked.lines if line.check == "queue passing"]
    assert checked.code == 1
    assert any("'auto_delete'" in text and "delete_queue passing" in text for text in texts)
    assert "exclusive to another connection" in checked.of("queue mine").text


def test_arguments_of_somebody_elses_queue_are_theirs(channel, urls, tmp_path):
    channel.queue_declare("theirs", durable=True, arguments={"x-max-length": 1000})
    config = write(tmp_path, ROUTE + 'queue = "theirs"\ndeclare = false\n')
    checked = check(*config, *urls)
    channel.queue_delete("theirs")
    assert "inequivalent" not in str(checked) and "no worker consumes" in checked.of("queue").text


def test_a_queue_without_consumers_keeps_its_messages(channel, urls, tmp_path):
    channel.queue_declare("full", durable=True, arguments={"x-max-length": 1})
    channel.basic_publish("", "full", b"precious")
    limits = "queue_arguments = { x-max-length = 1 }\n"
    checked = check(*write(tmp_path, ROUTE + 'queue = "full"\n' + limits), *urls)
    _, _, body = channel.basic_get("full", auto_ack=True)
    channel.queue_delete("full")
    assert body == b"precious"
    assert "no worker consumes it, with 1 message waiting" in checked.of("queue full").text


def test_of_dynamic_queues_the_static_one_is_examined(rabbitmq, urls, tmp_path):
    text = ROUTE.replace('path = "/"', 'path = "/{session}"')
    text += 'queue = "session-{param:session}"\nqueue_pattern = "session-.+"\n'
    before = rabbitmq.ctl("list_queues", "name")

    checked = check(*write(tmp_path, text), *urls)

    assert checked.of("queue celery").status == "ok"
    found = checked.of("queue session-{param:session}")
    assert found.status == "ok"
    assert "at most 100 queues" in found.text
    assert "workers on celery" in found.text
    assert rabbitmq.ctl("list_queues", "name") == before


# What hangs ------------------------------------------------------------------------------------


# A resolver that does not answer, as seen by whoever looks up a name.
NO_RESOLVER = """\
import socket, threading
_true = socket.getaddrinfo
def getaddrinfo(host, *args, **kwargs):
    if host in ("nobody.invalid", b"nobody.invalid"):
        threading.Event().wait()
    return _true(host, *args, **kwargs)
socket.getaddrinfo = getaddrinfo
"""


@pytest.mark.parametrize(
    ("limit", "low", "usual"),
    [("vm_memory_high_watermark", "0", "0.6"), ("disk_free_limit", "999GB", "50MB")],
)
def test_an_alarm(rabbitmq, urls, limit, low, usual):
    rabbitmq.ctl(f"set_{limit}", low)
    try:
        checked = check(*urls)
        line = checked.of("broker")
        assert checked.code == 1 and line.status == "FAIL" and "takes no messages" in line.text
        assert checked.of("results").status == "ok"
        apply(rabbitmq, line.text)
        assert check(*urls).well
    finally:
        rabbitmq.ctl(f"set_{limit}", usual)


@pytest.mark.parametrize("frozen", [("broker",), ("store",), ("broker", "store")], ids="-".join)
def test_frozen_servers(rabbitmq, redis_server, urls, tmp_path, frozen):
    chosen = [s for n, s in {"broker": rabbitmq, "store": redis_server}.items() if n in frozen]
    for server in chosen:
        server.freeze()
    try:
        checked = check(*write(tmp_path, KEYED), *urls)
    finally:
        for server in chosen:
            server.thaw()
    assert checked.code == 1
    for name, check_name in [("broker", "broker"), ("store", "results"), ("store", "state")]:
        # There may be more: other tests' gateways have used the same Redis.
        said = [line.text for line in checked.lines if line.check.startswith(check_name)]
        assert said and any("no answer within" in text for text in said) == (name in frozen)
    if "broker" in frozen:
        assert checked.of("queues, workers and tasks").status == "skip"
    else:
        assert checked.of("stored results").status == "skip"
        assert checked.of("task").status == "ok"


def test_a_frozen_worker(urls, worker):
    with worker.frozen():
        checked = check(*urls)
    line = checked.of("workers")
    assert checked.code == 1 and line.status == "FAIL" and "frozen" in line.text
    assert checked.of("task").status == "skip"
    assert check(*urls).well


def test_one_of_several_workers_is_frozen(stack, rabbitmq, redis_server, urls):
    other = stack.worker(rabbitmq.url, redis_server.url)
    other.freeze()
    try:
        checked = check(*urls)
    finally:
        other.kill()
    line = checked.of("workers")
    assert (checked.code, line.status) == (0, "warn")
    assert "1 of 2 consumers of celery did not answer" in line.text
    assert checked.of("stored results").status == "skip"
    assert checked.of("task").status == "ok"


@pytest.mark.parametrize("place", ["broker", "results"])
def test_a_name_that_nobody_resolves(rabbitmq, redis_server, tmp_path, place):
    (tmp_path / "sitecustomize.py").write_text(NO_RESOLVER)
    broker, store = rabbitmq.url, redis_server.url
    if place == "broker":
        broker = "amqp://nobody.invalid//"
    else:
        store = "redis://nobody.invalid/0"
    checked = check(*servers_at(broker, store), PYTHONPATH=str(tmp_path))
    assert checked.of(place).status == "FAIL"
    assert checked.of("results" if place == "broker" else "broker").status == "ok"
