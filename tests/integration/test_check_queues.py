"""`gateway check` of queues: missing, without consumers, other than the route declares."""

from __future__ import annotations

import re

import pika
import pytest

from tests.integration.checking import ROUTE, check, write
from tests.support.stack import RabbitMQ, free_port
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("worker")


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
    nobody = ["--broker", f"amqp://127.0.0.1:{free_port()}//"]
    checked = check(*write(tmp_path, ROUTE), *urls, *nobody, "--delete-queue", "celry")
    assert (checked.code, checked.of("queue celry").text[:13]) == (1, "not deleted: ")


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
