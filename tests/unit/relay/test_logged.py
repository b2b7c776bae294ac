"""What the log says of requests that start no task: that no route takes, or that are refused."""

from __future__ import annotations

import hmac
import logging
import time
from time import monotonic

import pytest

from gateway.delivery import Request

SECRET = "open-sesame"
SOURCES = {"forge": {"scheme": "github", "secrets": SECRET}}
ROUTE = {"path": "/forge", "source": "forge", "idempotency": "none"}
ROUTES = [
    {**ROUTE, "events": ["push"], "when": {"json:/status": "paid"}},
    {"path": "/plain", "args": ["json:/id"]},
]


@pytest.fixture(params=[True, False], ids=["log_requests", "no log_requests"])
def log_requests(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def ask(relaying, caplog: pytest.LogCaptureFixture, log_requests: bool):
    """Relay a request, and return its answer."""
    caplog.set_level(logging.INFO)
    return relaying(sources=SOURCES, routes=ROUTES, log_requests=log_requests).send


def proof(body: bytes) -> str:
    return "sha256=" + hmac.digest(SECRET.encode(), body, "sha256").hex()


def forged(event: str, body: bytes, signature: str) -> Request:
    headers = {"x-github-event": event, "x-hub-signature-256": signature}
    return Request("POST", "/forge", "", headers, body, "127.0.0.1", monotonic(), time.time())


def lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


@pytest.mark.parametrize(
    ("event", "reason"),
    [("push", "the `when` of no route takes it"), ("star", "no route takes the event 'star'")],
)
def test_a_delivery_that_no_route_takes_has_its_reason_in_its_line(
    ask, caplog, log_requests, event, reason
):
    body = b'{"status": "open"}'

    assert ask(forged(event, body, proof(body))).status == 204

    assert len(caplog.records) == log_requests
    for line in lines(caplog, "requests"):
        assert line.startswith("POST /forge 204 ") and line.endswith(f": {reason}")


def test_a_delivery_that_a_route_takes_has_no_reason(ask, caplog, log_requests):
    body = b'{"status": "paid"}'
    assert ask(forged("push", body, proof(body))).status == 200
    assert [": " in line for line in lines(caplog, "requests")] == [False] * log_requests


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (f"sha256={'0' * 64}", "The signature does not match."),
        ("", "The header x-hub-signature-256 is missing."),
    ],
)
def test_why_a_401_was_given_is_logged_and_no_secret_is(
    ask, caplog, log_requests, signature, reason
):
    body = b'{"status": "paid"}'

    answer = ask(forged("push", body, signature))

    assert answer.status == 401
    (warning,) = lines(caplog, "gateway.relay.in_flight")
    assert warning.startswith(f"401 unverified: {reason} (route /forge, delivery ")
    assert caplog.records[0].levelname == "WARNING"
    told = lines(caplog, "requests")
    assert [line.endswith(f": unverified: {reason}") for line in told] == [True] * log_requests
    for secret in (SECRET, proof(body).removeprefix("sha256=")):
        assert secret not in caplog.text


def test_what_lacks_a_value_has_its_reason_in_its_line(ask, caplog, log_requests):
    request = Request("POST", "/plain", "", {}, b"{}", "127.0.0.1", monotonic(), time.time())

    assert ask(request).status == 400

    (line,) = lines(caplog, "gateway.relay.in_flight")
    assert line.startswith("400 bad-request: json:/id is missing. (route /plain, delivery ")
    assert line.endswith(", task none, source none, POST /plain from 127.0.0.1)")
    assert caplog.records[0].levelname == "INFO"
    told = lines(caplog, "requests")
    reason = ": bad-request: json:/id is missing."
    assert [line.endswith(reason) for line in told] == [True] * log_requests
