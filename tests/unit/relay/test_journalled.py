"""What the journal and the log get of requests that start no task."""

from __future__ import annotations

import hmac
import json
import logging
import time
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest

from gateway.answer import Answer
from gateway.celery_message import Message
from gateway.config.settings import Config
from gateway.delivery import Request
from gateway.journal.entry import IGNORED, REFUSED, Entry
from gateway.journal.refusals import SENDER, Kept
from gateway.journal.store import Refusal
from gateway.journal.writing import Journal

MISSING = "json:/id"
#: Settings for which the route's own task has no message without the value.
OWN: list[dict[str, Any]] = [
    {"args": [MISSING]},
    {"kwargs": {"id": MISSING}},
    {"message_headers": {"id-of": MISSING}},
    {"priority": MISSING},
    {"queue": "q-{json:/id}", "queue_pattern": "q-.+"},
]
#: Settings for which it has one.
OTHERS: list[dict[str, Any]] = [
    {"also": [{"task": "other", "args": [MISSING]}]},
    {"idempotency": MISSING},
]


@pytest.fixture
def send(relaying):
    """Send a delivery without the value to such a route, and return the answer."""

    def send(route: dict[str, Any], headers: dict[str, str], journal: int = 10) -> Answer:
        made = relaying(routes=[{"path": "/{shop}", **route}], journal=journal)
        request = Request("POST", "/a", "b=1", headers, b"{}", "127.0.0.1", monotonic(), 0.0)
        return made.send(request)

    return send


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    found: list[Entry] = []

    def write(
        _: Journal, message: Message, task_id: str, _id: str, state: str, given: Any, whole: bool
    ) -> None:
        status, seconds, _, error, _ = given
        assert whole
        answer = int(status), float(seconds)
        about = (message.delivery, message.task, task_id, message.queue, *answer)
        found.append(Entry(*about, message.body, error, state=state))

    monkeypatch.setattr(Journal, "write", write)
    return found


@pytest.mark.parametrize("route", OWN + OTHERS, ids=lambda route: min(route))
def test_each_delivery_that_lacks_a_value_is_kept(send, entries, route, monkeypatch):
    monkeypatch.setattr(Config, "dynamic_paths", [])

    answer = send(route, {"x": "y"})

    (entry,) = entries
    assert answer.status == entry.status == 400
    assert entry.error.startswith(f"bad-request: {MISSING} ")
    assert entry.arguments() == ([{"b": "1"}, {"x": "y"}, "{}"], {})
    assert entry.delivery["params"] == {"shop": "a"} and entry.task_id
    assert (not entry.unsendable) is (route in OTHERS)


@pytest.mark.parametrize(
    ("headers", "journal"), [({"__type__": "a", "__value__": "b"}, 10), ({}, 0)]
)
def test_what_can_be_no_argument_and_all_without_a_journal_is_not_kept(
    send, entries, headers, journal
):
    answer = send({"args": [MISSING]}, headers, journal)
    assert answer.status == 400 and b"json:/id is missing" in answer.body
    assert entries == []


IGNORED_BY: dict[str, dict[str, Any]] = {
    "event": {"source": "forge", "events": ["order/*"]},
    "when": {"source": "forge", "when": {"json:/kind": "x"}},
    "unsigned": {"when": {"header:x-env": "live"}},
    "status": {"source": "strict", "events": ["order/*"]},
    "fallback": {"source": "phone", "events": ["order/*"]},
}
SOURCES = {
    "forge": {"scheme": "github", "secrets": "s"},
    "strict": {"scheme": "github", "secrets": "s", "unrouted": 410},
    "phone": {"scheme": "meta", "secrets": "s"},
}
BODY = b'{"object":"page","note":"gr\xc3\xb6\xc3\x9fe"}'


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Refusal]:
    found: list[Refusal] = []
    monkeypatch.setattr(Journal, "_keep", lambda _, refusal: found.append(refusal))
    return found


@pytest.fixture
def ignore(relaying):
    def ignore(route: dict[str, Any], body: bytes = BODY, **settings: Any) -> Answer:
        made = relaying(routes=[{"path": "/{shop}", **route}], sources=SOURCES, **settings)
        proof = f"sha256={hmac.digest(b's', body, 'sha256').hex()}"
        headers = {"x-hub-signature-256": proof, "x-github-event": "push", "x-api-key": "k"}
        return made.send(Request("POST", "/a", "b=1", headers, body, "192.0.2.1", monotonic(), 0.0))

    return ignore


@pytest.mark.parametrize("refused", [True, False])
@pytest.mark.parametrize("kind", IGNORED_BY)
def test_what_no_route_takes_is_kept_as_ignored_with_the_reason(ignore, kept, kind, refused):
    route = IGNORED_BY[kind]
    answer = ignore(route, journal=10, journal_refused=refused)

    (entry,) = kept
    assert entry.state == IGNORED and entry.status == answer.status
    assert answer.status == {"status": 410, "fallback": 200}.get(kind, 204)
    assert answer.headers["X-Delivery-ID"] == entry.id
    event = {"fallback": "page"}.get(kind, "push" if "source" in route else "")
    why = "no route takes the event" if "events" in route else "the `when` of no route takes it"
    assert entry.error.startswith(why)
    about = json.loads(entry.about)
    assert (about["delivery"]["event"], about["delivery"]["route"]) == (event, "/{shop}")
    assert (about["queue"], about["request"]["path"]) == ("", "/a")
    assert b"gr\xc3\xb6\xc3\x9fe" in entry.call or b"gr\\u00f6" in entry.call
    assert b"x-api-key" not in entry.call and b"x-hub-signature" not in entry.call


def test_what_cannot_be_read_is_refused_and_not_ignored(ignore, kept):
    asked = {"when": {"json:/kind": "x"}}
    answers = [
        ignore(asked, BODY[:-1], journal=10, journal_refused=refused) for refused in (True, False)
    ]
    assert [answer.status for answer in answers] == [400, 400]
    assert [(each.state, each.status) for each in kept] == [(REFUSED, 400)]


@pytest.mark.parametrize(
    ("journal", "route"),
    [(0, {}), (9, {}), (10, {"journal": False})],
    ids=["no journal", "no room", "not this route"],
)
def test_what_no_route_takes_is_not_kept_where_there_is_no_room(ignore, kept, journal, route):
    assert ignore({**IGNORED_BY["event"], **route}, journal=journal).status == 204
    assert kept == []


def test_of_one_event_only_some_are_kept_and_none_of_another_is_lost(relaying, kept):
    made = relaying(routes=[{"path": "/{shop}", "when": {"header:x": "y"}}], journal=1_000)
    journal = made.relay.context.journal
    assert journal is not None and journal.refusals is not None
    request = Request("POST", "/a", "", {}, b"", "192.0.2.1", monotonic(), 0.0)
    for event in ["often"] * 100 + ["seldom"]:
        journal.refusals.write(
            request, Kept("id", IGNORED, "/{shop}", "", event), 204, 0.0, "no route"
        )
    events = [json.loads(each.about)["delivery"]["event"] for each in kept]
    assert events == ["often"] * SENDER[0] + ["seldom"]


# What is logged -----------------------------------------------------------------------------------


SECRET, WRONG = "open-sesame", f"sha256={'0' * 64}"
FORGE = {"forge": {"scheme": "github", "secrets": SECRET}}
ROUTE = {"path": "/forge", "source": "forge", "idempotency": "none"}
LOGGED = [
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
    return relaying(sources=FORGE, routes=LOGGED, log_requests=log_requests).send


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
    ("path", "signature", "status", "level", "reason"),
    [
        ("/forge", WRONG, 401, "WARNING", "unverified: The signature does not match."),
        ("/forge", "", 401, "WARNING", "unverified: The header x-hub-signature-256 is missing."),
        ("/plain", "", 400, "INFO", "bad-request: json:/id is missing."),
    ],
)
def test_why_one_is_refused_is_logged_and_no_secret_is(
    ask, caplog, log_requests, path, signature, status, level, reason
):
    body = b'{"status": "paid"}'

    assert ask(replace(forged("push", body, signature), path=path)).status == status

    (line,) = lines(caplog, "gateway.relay.in_flight")
    source = "forge" if path == "/forge" else "none"
    assert line.startswith(f"{status} {reason} (route {path}, delivery ")
    assert line.endswith(f", task none, source {source}, POST {path} from 127.0.0.1)")
    assert caplog.records[0].levelname == level
    told = lines(caplog, "requests")
    assert [each.endswith(f": {reason}") for each in told] == [True] * log_requests
    for secret in (SECRET, proof(body).removeprefix("sha256=")):
        assert secret not in caplog.text
