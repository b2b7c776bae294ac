"""Two deliveries are never taken for one, and the tries of one are: sender by sender.

Each row of `APART` changes one thing by which a sender tells two deliveries apart; each row of
`TRIES` changes what a sender changes from try to try.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import pytest

from gateway.delivery import Request
from gateway.errors import Unverified
from gateway.sources.base import Draft, Signed, Verified
from tests.unit.sources.examples import DEEP, EXAMPLES, NOW
from tests.unit.sources.messages import xml
from tests.unit.sources.sending import URL, received, receiver, sender


@dataclass(frozen=True)
class One:
    """A delivery: a JSON object, a form or XML, with headers that are not signed."""

    scheme: str
    body: dict[str, Any] | bytes
    headers: dict[str, str] = field(default_factory=dict)
    url: str = URL
    options: dict[str, Any] = field(default_factory=dict)

    def identity(self, at: float = NOW) -> str:
        """Sign and encrypt it as the sender does, and return its identity."""
        source = receiver(self.scheme, **self.options)
        verified = source.verify(self._request(at))
        assert (verified.identity + verified.event + verified.account).encode()
        return json.dumps([verified.account, verified.identity]) if verified.identity else ""

    def _request(self, at: float) -> Request:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        signed = sender(self.scheme, **self.options).sign(Draft(body, self.url, at))
        both = {**signed.headers, **self.headers}
        # The header with an id that `sign` makes up is this one's, if it is signed.
        return received(Signed(signed.body, both, signed.query), self.url)


VOICE = {
    "ToUserName": "gh_1", "FromUserName": "o_1", "CreateTime": 1_700_000_000, "MsgType": "voice",
    "MediaId": "m1", "Content": "c1", "MsgId": 23_000_000_000_000_001,
}  # fmt: skip
CLICK = {
    "ToUserName": "gh_1", "FromUserName": "o_1", "CreateTime": 1_700_000_000, "MsgType": "event",
    "Event": "CLICK", "EventKey": "k1", "TraceId": "t1",
}  # fmt: skip
GITHUB = {
    "X-GitHub-Delivery": "d1", "X-GitHub-Event": "push", "X-GitHub-Hook-ID": "1",
    "X-GitHub-Hook-Installation-Target-Type": "integration",
    "X-GitHub-Hook-Installation-Target-ID": "7",
}  # fmt: skip
GITLAB = {"Idempotency-Key": "k1", "X-Gitlab-Event": "Push Hook", "X-Gitlab-Instance": "https://a"}
OLD_GITLAB = {"X-Gitlab-Event-UUID": "u1", "X-Gitlab-Event": "Push Hook"}
SHOPIFY = {
    "X-Shopify-Event-Id": "e1", "X-Shopify-Webhook-Id": "w1", "X-Shopify-Topic": "orders/create",
    "X-Shopify-Shop-Domain": "a.myshopify.com",
}  # fmt: skip
STRIPE = {
    "id": "evt_1", "type": "charge.succeeded", "account": "acct_1", "context": "c1",
    "api_version": "1", "livemode": True, "pending_webhooks": 2,
}  # fmt: skip
SLACK = {
    "type": "event_callback", "event_id": "Ev1", "team_id": "T1", "api_app_id": "A1",
    "event": {"type": "message"},
}  # fmt: skip
FEISHU = {
    "schema": "2.0",
    "header": {
        "event_id": "e1", "event_type": "im.message.receive_v1", "app_id": "cli_1",
        "tenant_key": "t1", "create_time": "1", "token": "v",
    },
    "event": {},
}  # fmt: skip
OLD_FEISHU = {
    "uuid": "u1", "token": "v", "type": "event_callback",
    "event": {"type": "message", "app_id": "cli_1", "tenant_key": "t1"},
}  # fmt: skip
DINGTALK = {"eventId": "e1", "EventType": "user_add_org", "CorpId": "c1", "TimeStamp": 1}
ROBOT = {
    "msgId": "m1", "msgtype": "text", "robotCode": "r1", "conversationId": "c1", "senderId": "s1",
}  # fmt: skip
TWILIO = b"MessageSid=SM1&MessageStatus=sent&AccountSid=AC1"
TOKEN = {"I-Twilio-Idempotency-Token": "t1"}
INTERACTION = {"id": "8", "type": 2, "application_id": "1"}
UPDATE = {"update_id": 1, "message": {"message_id": 1, "chat": {"id": 1}}}
HMAC = {"signed": "{time}.{body}", "id": []}
BY_BODY = {**HMAC, "identity": "json:/id", "event": "json:/type"}
BY_HEADER = {**HMAC, "identity": "header:X-Id", "event": "header:X-Event"}

ONES = {
    "dingtalk": One("dingtalk", DINGTALK),
    "dingtalk robot": One("dingtalk", ROBOT, options={"aes_key": [], "receive_id": []}),
    "discord": One("discord", INTERACTION),
    "discord event": One("discord", {"type": 1, "event": {"type": "A", "timestamp": "1"}}),
    "feishu": One("feishu", FEISHU),
    "feishu 1.0": One("feishu", OLD_FEISHU),
    "github": One("github", {"ref": "a"}, GITHUB),
    "gitlab": One("gitlab", {"ref": "a"}, GITLAB),
    "gitlab before 17.4": One("gitlab", {"ref": "a"}, OLD_GITLAB),
    "hmac": One("hmac", {"id": "1", "type": "a"}, options=BY_BODY),
    "hmac header": One("hmac", {"n": 1}, {"X-Id": "1", "X-Event": "a"}, options=BY_HEADER),
    "meta": One("meta", {"object": "page", "entry": [{"id": "1", "time": 1}]}),
    "shopify": One("shopify", {"id": 1}, SHOPIFY),
    "shopify without X-": One("shopify", {"id": 1}, {k[2:]: v for k, v in SHOPIFY.items()}),
    "slack": One("slack", SLACK),
    "standard": One("standard", {"type": "a"}),
    "stripe": One("stripe", STRIPE),
    "telegram": One("telegram", UPDATE),
    "twilio": One("twilio", TWILIO, TOKEN),
    "twilio JSON": One("twilio", {"CallSid": "CA1"}, TOKEN),
    "wechat": One("wechat", xml(**VOICE)),
    "wechat event": One("wechat", xml(**CLICK)),
    "wechat JSON": One("wechat", VOICE),
    "wechat plain": One("wechat", xml(**VOICE), options={"aes_key": [], "receive_id": []}),
    "wecom": One("wecom", xml(**VOICE, AgentID=1)),
    "x": One("x", {"for_user_id": "1", "tweet_create_events": []}),
}


def changed(value: Any, path: tuple[str, ...], by: Any) -> Any:
    """Return the JSON object `value` with another value at `path`."""
    name, *rest = path
    return {**value, name: changed(value[name], tuple(rest), by) if rest else by}


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all texts and numbers in a JSON object."""
    if not isinstance(value, dict):
        return [path]
    return [each for name, inner in value.items() for each in leaves(inner, (*path, name))]


#: What may differ between tries, or never differs; all else in `ONES` tells two deliveries apart.
NOT_APART = {
    "stripe": {("pending_webhooks",)},
    "feishu": {("header", "create_time"), ("header", "token"), ("schema",)},
    "feishu 1.0": {("token",), ("type",)},
    "dingtalk": {("TimeStamp",)},
    "dingtalk robot": {("msgtype",)},
    "slack": {("type",)},
}
WITHOUT_FIELDS = {"wechat": VOICE, "wechat event": CLICK, "wechat plain": VOICE, "wecom": VOICE}


def apart() -> list[Any]:
    """Return each of `ONES` with each delivery that differs from it in one thing."""
    found = []
    for name, one in ONES.items():
        others = [One(one.scheme, one.body, {**one.headers, key: "other"}, one.url, one.options)
                  for key in one.headers]  # fmt: skip
        if isinstance(one.body, dict):
            for path in sorted(set(leaves(one.body)) - NOT_APART.get(name, set())):
                by = 99 if path in (("update_id",), ("type",)) and one.scheme != "standard" else "z"
                body = changed(one.body, path, by)
                others.append(One(one.scheme, body, one.headers, one.url, one.options))
        for key in WITHOUT_FIELDS.get(name, {}):
            more = {"AgentID": 1} if name == "wecom" else {}
            body = xml(**{**WITHOUT_FIELDS[name], **more, key: "text" if key == "MsgType" else "9"})
            others.append(One(one.scheme, body, one.headers, one.url, one.options))
        found += [pytest.param(one, other, id=f"{name}-{i}") for i, other in enumerate(others)]
    twilio = ONES["twilio"]
    for body in (TWILIO.replace(b"SM1", b"SM2"), TWILIO.replace(b"sent", b"delivered")):
        found.append(pytest.param(twilio, One("twilio", body, TOKEN), id=f"twilio-{body.decode()}"))
    elsewhere = One("twilio", TWILIO, TOKEN, URL + "&step=2")
    found.append(pytest.param(twilio, elsewhere, id="twilio-query"))
    agent = One("wecom", xml(**VOICE, AgentID=2))
    return [*found, pytest.param(ONES["wecom"], agent, id="wecom-agent")]


@pytest.mark.parametrize(("one", "other"), apart())
def test_two_deliveries_that_differ_in_one_thing_are_two(one, other):
    assert one.identity() != other.identity() != ""


def test_every_scheme_has_a_delivery_here():
    assert {one.scheme for one in ONES.values()} == set(DEEP) - {"hubspot", "mux", "orb"}


@pytest.mark.parametrize("name", sorted(set(ONES) - {"standard"}))
def test_a_later_try_is_the_same_delivery(name):
    # Later: with another time, nonce and encryption, and so another signature.
    assert ONES[name].identity(NOW - 200) == ONES[name].identity() != ""


TRIES = {
    "stripe": [One("stripe", {**STRIPE, "pending_webhooks": 1})],
    "slack": [One("slack", SLACK, {"X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "timeout"})],
    "gitlab": [One("gitlab", {"ref": "a"}, {**GITLAB, "X-Gitlab-Webhook-UUID": "new"})],
    "shopify": [One("shopify", {"id": 1}, {**SHOPIFY, "X-Shopify-Triggered-At": "later"})],
    "feishu": [One("feishu", changed(FEISHU, ("header", "create_time"), "2"))],
    "dingtalk": [One("dingtalk", {**DINGTALK, "TimeStamp": 2})],
    "twilio": [One("twilio", b"AccountSid=AC1&MessageStatus=sent&MessageSid=SM1", TOKEN)],
    "hmac": [One("hmac", {"id": "1", "type": "a", "attempt": 2}, options=BY_BODY)],
}


@pytest.mark.parametrize("name", sorted(TRIES))
def test_what_a_sender_changes_from_try_to_try_makes_no_other_delivery(name):
    assert {each.identity() for each in TRIES[name]} == {ONES[name].identity()}


def test_a_signed_id_and_the_type_identify_a_standard_webhook():
    def identity(key: str, at: float, body: bytes = b'{"type":"a","n":1}') -> str:
        signed = sender("standard").sign(Draft(body, URL, at, identity=key))
        return receiver("standard").verify(received(signed)).identity

    assert identity("msg_1", NOW - 100) == identity("msg_1", NOW)
    assert identity("msg_1", NOW) == identity("msg_1", NOW, b'{"type":"a","n":2}')
    assert identity("msg_1", NOW) != identity("msg_2", NOW)
    assert identity("msg_1", NOW) != identity("msg_1", NOW, b'{"type":"b","n":1}')


def test_a_signed_id_identifies_a_delivery_of_hmac():
    def identity(key: str, body: bytes = b"1", at: float = NOW) -> str:
        signed = sender("hmac").sign(Draft(body, URL, at, identity=key))
        return receiver("hmac").verify(received(signed)).identity

    assert identity("1") == identity("1", b"2", NOW - 100) != identity("2")


def test_shopifys_headers_without_x_are_as_good():
    signed = sender("shopify").sign(Draft(b"{}", URL, NOW, event="orders/paid", identity="e1"))
    newer = {name.removeprefix("x-"): value for name, value in signed.headers.items()}
    verified = receiver("shopify").verify(received(signed))
    assert receiver("shopify").verify(received(Signed(b"{}", newer))) == verified
    assert verified.event == "orders/paid"
    assert receiver("shopify").secret_headers == {"x-shopify-hmac-sha256", "shopify-hmac-sha256"}
    only = {"shopify-hmac-sha256": newer["shopify-hmac-sha256"], "Shopify-Webhook-Id": "w1"}
    assert receiver("shopify").verify(received(Signed(b"{}", only))).identity != ""


@pytest.mark.parametrize("scheme", sorted(set(DEEP) - {"standard"}))
def test_without_an_id_there_is_an_identity_only_where_the_digest_is_one(scheme):
    by_digest = {"dingtalk", "discord", "feishu", "hubspot", "meta", "wechat", "wecom", "x"}
    body = EXAMPLES[scheme].body if scheme in by_digest else b"a=b"
    signed = sender(scheme).sign(Draft(body, URL, NOW))
    known = {name: value for name, value in signed.headers.items() if name != "x-id"}
    headers = signed.headers if scheme == "hmac" else known
    verified = receiver(scheme).verify(received(Signed(signed.body, headers, signed.query)))
    assert (verified.identity != "") == (scheme in by_digest | {"hmac"})


# Identities and events, sender by sender ----------------------------------------------------------


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


MERGE = {"X-Gitlab-Event": "Merge Request Hook"}
CREATED = {"X-Shopify-Topic": "orders/create", "X-Shopify-Event-Id": "e1"}
MENTION = {"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
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
        ("gitlab", {"Idempotency-Key": "k1", "X-Gitlab-Event-UUID": "u1", **MERGE}, b"any", "k1",
         "Merge Request Hook"),
        ("gitlab", {"X-Gitlab-Event-UUID": "u1", **MERGE}, b"any", "u1", "Merge Request Hook"),
        ("gitlab", MERGE, b"any", "", "Merge Request Hook"),
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
        ("shopify", CREATED, b"no JSON", "e1", "orders/create"),
        ("shopify", {}, b"no JSON", "", ""),
        ("twilio", TOKEN, b"CallSid=CA1&CallStatus=in-progress", "t1", "in-progress"),
        ("twilio", TOKEN, b"MessageSid=SM1&MessageStatus=delivered", "t1", "delivered"),
        ("twilio", TOKEN, b"Body=hi+there&MediaUrl0=", "t1", ""),
        ("twilio", TOKEN, b"", "t1", ""),
        ("twilio", TOKEN, b'{"CallStatus":"ringing"}', "t1", ""),
        ("twilio", TOKEN, b"CallStatus=%ff", "t1", "\ufffd"),
        ("telegram", {}, {"update_id": 1, "message": {}}, "1", "message"),
        ("telegram", {}, {"callback_query": {}, "update_id": 2}, "2", "callback_query"),
        ("telegram", {}, {"update_id": 3}, "3", ""),
        ("telegram", {}, {}, "", ""),
        ("meta", {}, feed("feed"), DIGEST, "page.feed"),
        ("meta", {}, feed("feed", "feed"), DIGEST, "page.feed"),
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
