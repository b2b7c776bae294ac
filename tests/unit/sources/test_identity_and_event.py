"""What identifies a delivery, and what kind of event it is: sender by sender."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import pytest

from gateway.errors import Unverified
from gateway.sources.base import Draft, Signed, Verified
from tests.unit.sources.examples import NOW
from tests.unit.sources.sending import URL, received, receiver, sender

DIGEST = "the digest of the body"  # in the place of an identity


def verified(scheme: str, body: Any, headers: dict[str, str]) -> Verified:
    """Verify `body` as its sender signs it, with other headers of the sender beside."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    signed = sender(scheme).sign(Draft(body, URL, NOW))
    with_more = Signed(signed.body, {**signed.headers, **headers}, signed.query)
    return receiver(scheme).verify(received(with_more))


def key(found: Verified) -> str:
    """Return the sender's own id in an identity, or what stands for it."""
    known = found.identity
    own = str(json.loads(known)[0]) if known.startswith("[") else known
    return DIGEST if own == sha256(found.body).hexdigest() else own


def github(event: str) -> dict[str, str]:
    return {"X-GitHub-Delivery": "d1", "X-GitHub-Event": event}


def feed(*fields: str) -> dict[str, Any]:
    return {"object": "page", "entry": [{"changes": [{"field": field}]} for field in fields]}


GITLAB = {"X-Gitlab-Event": "Merge Request Hook"}
SHOPIFY = {"X-Shopify-Topic": "orders/create", "X-Shopify-Event-Id": "e1"}
MENTION = {"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
TWILIO = {"I-Twilio-Idempotency-Token": "t1"}
AUTHORIZED = {
    "version": 1, "application_id": "1", "type": 1, "event": {"type": "APPLICATION_AUTHORIZED"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "headers", "body", "identity", "event"),
    [
        ("github", github("push"), b'{"ref":"refs/heads/main"}', "d1", "push"),
        ("github", github("issues"), b'{"action":"opened","issue":{}}', "d1", "issues.opened"),
        ("github", github("issues"), b'{"issue":{}, "action" : "closed"}', "d1", "issues.closed"),
        # Only the outermost object's.
        ("github", github("push"), b'{"commit":{"action":"x"},"to":"\\"action\\""}', "d1", "push"),
        ("github", github("issues"), b"payload=%7B%22action%22%3A%22opened%22%7D", "d1",
         "issues.opened"),
        ("github", github("push"), b"payload=", "d1", "push"),
        ("github", github("push"), b"payload=%zz", "d1", "push"),
        ("github", github("push"), b"Hello, World!", "d1", "push"),
        ("github", github("push"), b'{"action":"a","action":3}', "d1", "push.3"),
        ("github", github("push"), b'{"action":["a"]}', "d1", "push"),
        ("github", {"X-GitHub-Delivery": "d1"}, b'{"action":"opened"}', "d1", ""),
        ("gitlab", {"Idempotency-Key": "k1", "X-Gitlab-Event-UUID": "u1", **GITLAB}, b"any", "k1",
         "Merge Request Hook"),
        ("gitlab", {"X-Gitlab-Event-UUID": "u1", **GITLAB}, b"any", "u1", "Merge Request Hook"),
        ("gitlab", GITLAB, b"any", "", "Merge Request Hook"),
        ("stripe", {}, {"id": "evt_1", "type": "charge.succeeded"}, "evt_1", "charge.succeeded"),
        ("stripe", {}, {"id": 7, "type": None}, "7", ""),
        ("stripe", {}, {"id": True, "type": 1.5}, "", ""),
        ("stripe", {}, {}, "", ""),
        ("slack", {}, MENTION, "Ev1", "app_mention"),
        ("slack", {}, {"type": "app_rate_limited", "team_id": "T1"}, "", "app_rate_limited"),
        ("slack", {}, b"token=t&command=%2Fweather&text=94070&trigger_id=1.2", "", "/weather"),
        ("slack", {}, urlencode({"payload": '{"type": "block_actions"}'}).encode(), "",
         "block_actions"),
        ("slack", {}, {"type": ["x"], "event": "text"}, "", ""),
        *(("slack", {}, body, "", "")
          for body in (b"", b"[]", b"null", b"text=hi", b"payload=%5B%5D", b"payload=x")),
        # It is read by its body and not by its type, which is not signed.
        ("slack", FORM, {"event_id": "Ev1", "event": {"type": "message"}}, "Ev1", "message"),
        ("shopify", SHOPIFY, b"no JSON", "e1", "orders/create"),
        ("shopify", {}, b"no JSON", "", ""),
        ("twilio", TWILIO, b"CallSid=CA1&CallStatus=in-progress", "t1", "in-progress"),
        ("twilio", TWILIO, b"MessageSid=SM1&MessageStatus=delivered", "t1", "delivered"),
        ("twilio", TWILIO, b"Body=hi+there&MediaUrl0=", "t1", ""),
        ("twilio", TWILIO, b"", "t1", ""),
        ("twilio", TWILIO, b'{"CallStatus":"ringing"}', "t1", ""),
        ("twilio", TWILIO, b"CallStatus=%ff", "t1", "\ufffd"),
        ("telegram", {}, {"update_id": 1, "message": {}}, "1", "message"),
        ("telegram", {}, {"callback_query": {}, "update_id": 2}, "2", "callback_query"),
        ("telegram", {}, {"update_id": 3}, "3", ""),
        ("telegram", {}, {}, "", ""),
        ("meta", {}, feed("feed"), DIGEST, "page.feed"),
        ("meta", {}, feed("feed", "feed"), DIGEST, "page.feed"),
        ("meta", {}, feed("feed", "mention"), DIGEST, "page.feed,page.mention"),
        ("meta", {}, {"object": "page", "entry": [{"messaging": [{}]}]}, DIGEST, "page"),
        ("meta", {}, {"entry": None}, DIGEST, ""),
        ("meta", {}, [1], DIGEST, ""),
        ("x", {}, {"tweet_create_events": []}, DIGEST, ""),
        ("discord", {}, {"id": "8", "type": 2}, "8", "APPLICATION_COMMAND"),
        ("discord", {}, {"id": "8", "type": 5}, "8", "MODAL_SUBMIT"),
        ("discord", {}, {"id": "8", "type": 77}, "8", "77"),
        ("discord", {}, {"id": "8", "type": [2]}, "8", ""),
        ("discord", {}, AUTHORIZED, DIGEST, "APPLICATION_AUTHORIZED"),
    ],
)  # fmt: skip
def test_what_identifies_a_delivery_and_its_event(scheme, headers, body, identity, event):
    found = verified(scheme, body, headers)
    assert (key(found), found.event, found.challenge) == (identity, event, None)


@pytest.mark.parametrize(
    ("body", "event"),
    [
        ({"type": "invoice.paid"}, "invoice.paid"), ({"kind": "other"}, ""), (["x"], ""),
        (b"no JSON", ""), (b'{"type": NaN}', ""), (b'{"type": "x", "amount": NaN}', "x"),
    ],
)  # fmt: skip
def test_standard_has_an_id_of_its_own(body, event):
    found = verified("standard", body, {})
    assert (key(found)[:4], found.event) == ("msg_", event)


def test_github_sends_the_event_without_the_action():
    signed = sender("github").sign(Draft(b"{}", URL, NOW, event="issues.opened"))
    assert signed.headers["x-github-event"] == "issues"
    assert "x-github-delivery" not in signed.headers


@pytest.mark.parametrize("scheme", ["discord", "slack", "stripe", "telegram"])
def test_nothing_is_read_before_it_is_verified(scheme):
    with pytest.raises(Unverified):
        request = received(sender(scheme).sign(Draft(b"{}", URL, NOW)))
        request.headers = {name: value[::-1] + "0" for name, value in request.headers.items()}
        request.body = b"{"
        receiver(scheme).verify(request)
