"""What identifies a delivery, and what kind of event it is: sender by sender."""

from __future__ import annotations

import json
from hashlib import sha256
from urllib.parse import urlencode

import pytest

from gateway.errors import Unverified
from gateway.sources.base import Draft, Signed
from tests.unit.sources.examples import NOW
from tests.unit.sources.sending import URL, received, receiver, sender


def verified(scheme: str, body, headers: dict[str, str] | None = None):
    """Verify `body` as its sender signs it, with other headers of the sender beside."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    signed = sender(scheme).sign(Draft(body, URL, NOW))
    with_more = Signed(signed.body, {**signed.headers, **(headers or {})}, signed.query)
    return receiver(scheme).verify(received(with_more))


def names(scheme: str, body, headers: dict[str, str] | None = None) -> tuple[str, str]:
    found = verified(scheme, body, headers)
    return key(found.identity), found.event


def key(identity: str) -> str:
    """Return the sender's own id in an identity, or the digest that stands for it."""
    return str(json.loads(identity)[0]) if identity.startswith("[") else identity


def digest(body) -> str:
    return sha256(json.dumps(body).encode()).hexdigest()


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"X-GitHub-Event": "push"}, b'{"ref":"refs/heads/main"}', "push"),
        ({"X-GitHub-Event": "issues"}, b'{"action":"opened","issue":{}}', "issues.opened"),
        ({"X-GitHub-Event": "issues"}, b'{"issue":{}, "action" : "closed"}', "issues.closed"),
        # Only the outermost object's.
        ({"X-GitHub-Event": "push"}, b'{"commit":{"action":"x"},"to":"\\"action\\""}', "push"),
        (
            {"X-GitHub-Event": "issues"},
            b"payload=%7B%22action%22%3A%22opened%22%7D",
            "issues.opened",
        ),
        ({"X-GitHub-Event": "push"}, b"payload=", "push"),
        ({"X-GitHub-Event": "push"}, b"payload=%zz", "push"),
        ({"X-GitHub-Event": "push"}, b"Hello, World!", "push"),
        ({"X-GitHub-Event": "push"}, b'{"action":"a","action":3}', "push.3"),
        ({"X-GitHub-Event": "push"}, b'{"action":["a"]}', "push"),
        ({}, b'{"action":"opened"}', ""),
    ],
)
def test_github_event_is_the_header_and_the_action(headers, body, expected):
    assert names("github", body, {**headers, "X-GitHub-Delivery": "d1"}) == ("d1", expected)


def test_github_sends_the_event_without_the_action():
    signed = sender("github").sign(Draft(b"{}", URL, NOW, event="issues.opened"))
    assert signed.headers["x-github-event"] == "issues"
    assert "x-github-delivery" not in signed.headers


@pytest.mark.parametrize(
    ("headers", "identity"),
    [
        ({"Idempotency-Key": "k1", "X-Gitlab-Event-UUID": "u1"}, "k1"),
        ({"X-Gitlab-Event-UUID": "u1"}, "u1"),
        ({}, ""),
    ],
)
def test_gitlab(headers, identity):
    headers = {**headers, "X-Gitlab-Event": "Merge Request Hook"}
    assert names("gitlab", b"any", headers) == (identity, "Merge Request Hook")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"id": "evt_1", "type": "charge.succeeded"}, ("evt_1", "charge.succeeded")),
        ({"id": 7, "type": None}, ("7", "")),
        ({"id": True, "type": 1.5}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_stripe(body, expected):
    assert names("stripe", body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}},
            ("Ev1", "app_mention"),
        ),
        ({"type": "app_rate_limited", "team_id": "T1"}, ("", "app_rate_limited")),
        (b"token=t&command=%2Fweather&text=94070&trigger_id=1.2", ("", "/weather")),
        (urlencode({"payload": '{"type": "block_actions"}'}).encode(), ("", "block_actions")),
        ({"type": ["x"], "event": "text"}, ("", "")),
    ],
)
def test_slack(body, expected):
    assert names("slack", body) == expected


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"text=hi", b"payload=%5B%5D", b"payload=x"])
def test_what_slack_sends_beside_objects_and_known_forms_has_no_event(body):
    assert names("slack", body) == ("", "")


def test_slack_is_read_by_its_body_and_not_by_its_type_which_is_not_signed():
    body = {"event_id": "Ev1", "event": {"type": "message"}}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert names("slack", body, headers) == ("Ev1", "message")


def test_shopify():
    headers = {"X-Shopify-Topic": "orders/create", "X-Shopify-Event-Id": "e1"}
    assert names("shopify", b"no JSON", headers) == ("e1", "orders/create")
    assert names("shopify", b"no JSON") == ("", "")


@pytest.mark.parametrize(
    ("body", "event"),
    [
        (b"CallSid=CA1&CallStatus=in-progress", "in-progress"),
        (b"MessageSid=SM1&MessageStatus=delivered", "delivered"),
        (b"Body=hi+there&MediaUrl0=", ""),
        (b"", ""),
        (b'{"CallStatus":"ringing"}', ""),
        (b"CallStatus=%ff", "\ufffd"),
    ],
)
def test_twilio(body, event):
    assert names("twilio", body, {"I-Twilio-Idempotency-Token": "t1"}) == ("t1", event)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"update_id": 1, "message": {}}, ("1", "message")),
        ({"callback_query": {}, "update_id": 2}, ("2", "callback_query")),
        ({"update_id": 3}, ("3", "")),
        ({}, ("", "")),
    ],
)
def test_telegram(body, expected):
    assert names("telegram", body) == expected


def _feed(*fields):
    return {"object": "page", "entry": [{"changes": [{"field": field}]} for field in fields]}


@pytest.mark.parametrize(
    ("body", "event"),
    [
        (_feed("feed"), "page.feed"),
        (_feed("feed", "feed"), "page.feed"),
        (_feed("feed", "mention"), "page.feed,page.mention"),
        ({"object": "page", "entry": [{"messaging": [{}]}]}, "page"),
        ({"entry": None}, ""),
        ([1], ""),
    ],
)
def test_meta(body, event):
    assert names("meta", body) == (digest(body), event)


def test_x_has_no_events():
    assert names("x", {"tweet_create_events": []}) == (digest({"tweet_create_events": []}), "")


def _event(kind):
    return {"version": 1, "application_id": "1", "type": 1, "event": {"type": kind}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"id": "8", "type": 2}, ("8", "APPLICATION_COMMAND")),
        ({"id": "8", "type": 5}, ("8", "MODAL_SUBMIT")),
        ({"id": "8", "type": 77}, ("8", "77")),
        ({"id": "8", "type": [2]}, ("8", "")),
        (
            _event("APPLICATION_AUTHORIZED"),
            (digest(_event("APPLICATION_AUTHORIZED")), "APPLICATION_AUTHORIZED"),
        ),
    ],
)
def test_discord(body, expected):
    found = verified("discord", body)
    assert (key(found.identity), found.event) == expected
    assert found.challenge is None


@pytest.mark.parametrize(
    ("body", "event"),
    [
        ({"type": "invoice.paid"}, "invoice.paid"),
        ({"kind": "other"}, ""),
        (["x"], ""),
        (b"no JSON", ""),
        (b'{"type": NaN}', ""),
        (b'{"type": "x", "amount": NaN}', "x"),
    ],
)
def test_standard(body, event):
    found = verified("standard", body)
    assert found.event == event
    assert key(found.identity).startswith("msg_")


@pytest.mark.parametrize("scheme", ["discord", "slack", "stripe", "telegram"])
def test_nothing_is_read_before_it_is_verified(scheme):
    with pytest.raises(Unverified):
        request = received(sender(scheme).sign(Draft(b"{}", URL, NOW)))
        request.headers = {name: value[::-1] + "0" for name, value in request.headers.items()}
        request.body = b"{"
        receiver(scheme).verify(request)
