"""What is done to servers is what the schedule says, and is put right."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError

from tests.faults.faults import CLIENTS, FROZEN, KILLED, SUBSCRIBERS, Fault, Injection
from tests.support.stack import Server, Stack


@pytest.fixture
def redis(stack: Stack, start) -> Server:
    server = start(stack.redis)
    yield server
    server.kill()


def test_each_fault_ends_with_a_server_that_serves(redis: Server):
    injection = Injection({"redis": [redis]})
    before = redis.pid
    faults = [Fault(0.0, "redis", FROZEN, 0.3), Fault(0.1, "redis", KILLED, 0.2)]

    injection.run(faults)

    assert redis.pid != before
    assert Redis.from_url(redis.url).ping()
    told = [(one.target, one.kind, one.detail) for one in injection.done]
    assert told == [("redis", FROZEN, "for 0.3 s"), ("redis", KILLED, "for 0.2 s")]
    first, second = injection.done
    # The second one has waited for the end of the first.
    assert first.began + 0.3 <= first.ended <= second.began
    assert injection.problems == []


def test_clients_and_subscribers_are_cut_apart(redis: Server):
    with Redis.from_url(redis.url) as client, Redis.from_url(redis.url) as other:
        subscriber = other.pubsub()
        subscriber.subscribe("channel")
        name = client.client_id()

        Injection({"redis": [redis]}).run([Fault(0.0, "redis", SUBSCRIBERS, 0.0)])
        with pytest.raises(ConnectionError):
            while subscriber.parse_response(timeout=10):
                pass
        assert client.client_id() == name

        Injection({"redis": [redis]}).run([Fault(0.0, "redis", CLIENTS, 0.0)])
        assert client.client_id() != name


def test_a_server_that_does_not_come_back_is_a_finding(stack: Stack, tmp_path: Path):
    allowed = tmp_path / "allowed"
    allowed.touch()
    server = stack.spawn(
        "once", ["/bin/sh", "-c", f"test -e {allowed} && echo ready && exec sleep 600"],
        ready="ready",
    )  # fmt: skip
    allowed.unlink()

    injection = Injection({"worker-1": [server]})
    injection.run([Fault(0.0, "worker-1", KILLED, 0.0)])

    (problem,) = injection.problems
    assert problem.startswith("worker-1 killed, at 0.0 s: once exited with 1")
    assert len(injection.done) == 1


def test_who_is_interrupted_begins_no_further_fault(redis: Server):
    injection = Injection({"redis": [redis]})
    main = threading.main_thread().ident
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        injection.run([Fault(3600.0, "redis", KILLED, 0.0)])

    assert injection.done == []
