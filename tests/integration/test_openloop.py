"""The client that sends at a constant rate keeps its schedule, and counts what comes of it."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable
from email.message import Message
from time import monotonic

import pytest

from gateway.stack.programs import find
from loadtest import openloop
from loadtest.envelope import GITHUB, SECRET
from loadtest.wrk import WrkError
from tests.integration.faulty_server import LATER, STALL, server


@pytest.fixture(autouse=True)
def wrk(start: Callable) -> None:
    """Skip where wrk is missing, unless all tests have to run."""
    start(lambda: find("wrk", "wrk"))


def send(url: str, rate: float, seconds: float, connections: int = openloop.OPEN) -> dict:
    with openloop.schedule(url, rate, seconds, connections) as generator:
        return generator.send(timeout=60)


def faults(found: dict) -> dict[str, int]:
    counts = {"wrong": found["wrong_answers"], **found["errors"]}
    return {kind: number for kind, number in counts.items() if number}


def test_a_server_that_stalls_is_late_for_all_that_was_due_meanwhile():
    # Given a server that answers nobody for a second, with the 50th request and the 100th,
    with server("stall") as url:
        found = send(url, rate=100, seconds=1)

    # then all that were due are sent when they are due, over more connections,
    assert found["requests"] == 100 and not faults(found)
    assert found["schedule"]["connections"] > openloop.OPEN
    # and nearly all of the second half are late; a closed loop would have seen two.
    assert found["latency_ms"]["max"] > STALL * 1e3
    assert found["latency_ms"]["p90"] > STALL * 1e3 / 2


def test_late_answers_do_not_hold_up_other_requests():
    # Given a server that answers the 50th request when it has others, and the 100th,
    with server("late") as url:
        found = send(url, rate=200, seconds=0.6, connections=1)

    # then those come when they are due, over more connections, and all are answered.
    assert found["requests"] == 120 and not faults(found)
    assert found["schedule"]["sent"] > 20
    assert found["latency_ms"]["max"] >= LATER / 200 * 1e3


def test_a_server_that_is_gone_is_asked_once_a_request():
    # Given a server that ends with all its connections, before the first request,
    with socket.create_server(("127.0.0.1", 0)) as gone:
        url = f"http://127.0.0.1:{gone.getsockname()[1]}/"
        with openloop.schedule(url, rate=50, seconds=0.2, connections=2) as generator:
            gone.close()
            found = generator.send(timeout=2)

    # then no request is forgotten, and none asks for more than one connection.
    counted = faults(found)
    assert found["requests"] == 0
    assert counted.get("missing", 0) + counted.get("read", 0) + counted.get("write", 0) == 10
    assert 0 < counted["connect"] <= 10


def test_no_server_is_told_in_a_line():
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
    with pytest.raises(WrkError, match="unable to connect"), openloop.schedule(url, 50, 1):
        pass


def test_a_client_that_ends_early_is_told(monkeypatch: pytest.MonkeyPatch):
    with server("none") as url, openloop.schedule(url, rate=50, seconds=9) as generator:
        ended = 0.1, generator.close
        with pytest.raises(WrkError, match=r"openloop\.lua: "):
            generator.send(timeout=1, marks=[ended])


def test_signed_deliveries_are_signed_and_one_of_25_is_a_later_try():
    # Given a server that keeps what comes, and some more requests than lie between two tries,
    seen: list[tuple[Message, bytes]] = []
    with (
        server("none", seen) as url,
        openloop.schedule(url, rate=550, seconds=2, envelope=GITHUB) as generator,
    ):
        found = generator.send(timeout=60)

    # when they are answered,
    assert found["requests"] == len(seen) == 1100
    assert not faults(found)

    # then each is signed as GitHub would, and each identity stands for one body.
    bodies: dict[str, set[bytes]] = {}
    for headers, body in seen:
        signature = hmac.digest(SECRET, body, "sha256").hex()
        assert headers["X-Hub-Signature-256"] == f"sha256={signature}"
        bodies.setdefault(headers["X-GitHub-Delivery"], set()).add(body)
    assert {len(each) for each in bodies.values()} == {1}
    assert len(seen) - len(bodies) == 1100 // 50 + 2


def test_a_rate_is_kept_by_as_many_requests_as_are_nearest_to_it():
    with server("none") as url:
        found = send(url, rate=1.4, seconds=1)
    assert found["requests"] == 1
    assert found["schedule"]["sent"] == found["schedule"]["rate"] == 1.4


def test_marks_are_told_when_they_are_reached():
    reached: list[tuple[float, float]] = []
    # The last one after the last answer.
    marks = [(at, lambda at=at: reached.append((at, monotonic()))) for at in (0.1, 0.7)]
    with server("none") as url, openloop.schedule(url, 100, 0.5) as generator:
        began = monotonic()
        assert generator.send(60, marks)["requests"] == 50
    assert [at for at, when in reached if when - began >= at] == [0.1, 0.7]
