"""`gateway check` ends in time whatever hangs, and says what it could not look at."""

from __future__ import annotations

import pytest

from tests.integration.checking import KEYED, apply, check, servers_at, write

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

pytestmark = pytest.mark.usefixtures("worker")


@pytest.mark.parametrize(
    ("alarm", "end"),
    [
        (("set_vm_memory_high_watermark", "0"), ("set_vm_memory_high_watermark", "0.6")),
        (("set_disk_free_limit", "999GB"), ("set_disk_free_limit", "50MB")),
    ],
    ids=["memory", "disk"],
)
def test_an_alarm(rabbitmq, urls, alarm, end):
    rabbitmq.ctl(*alarm)
    try:
        checked = check(*urls)
        line = checked.of("broker")
        assert checked.code == 1 and line.status == "FAIL" and "takes no messages" in line.text
        assert checked.of("results").status == "ok"
        apply(rabbitmq, line.text)
        assert check(*urls).well
    finally:
        rabbitmq.ctl(*end)


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
    worker.freeze()
    try:
        checked = check(*urls)
    finally:
        worker.thaw()
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
