"""An example of each scheme, for the tests that run over all of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from hypothesis import settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

NOW = 1_800_000_000.25

#: A few hundred cases of each property, more where the profile says so.
cases = settings(max_examples=max(300, settings.default.max_examples), deadline=None)


@dataclass(frozen=True)
class Example:
    """What a sender of one scheme sends.

    `options` are those of [sources.NAME]; `receiver` the ones that the receiving end has
    otherwise (a public key). `proof` names the header or query parameter that has the
    signature; `timed`: it is good for a while only. `bodies` are those that it may send.
    """

    options: dict[str, Any]
    other_secret: str
    body: bytes
    proof: str
    event: str = ""
    identity: str = ""
    timed: bool = False
    receiver: dict[str, Any] | None = None
    bodies: st.SearchStrategy[bytes] = st.binary(max_size=200)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def objects(**fields: Any) -> st.SearchStrategy[bytes]:
    """Any JSON objects with `fields` in them."""
    text = st.text(max_size=20)
    more = st.dictionaries(text, st.none() | st.integers() | text | st.lists(text), max_size=3)
    return more.map(lambda some: _json({**some, **fields}))


def public(seed: bytes) -> bytes:
    return bytes(SigningKey(seed).verify_key)


_SEED = bytes(range(32))
_ISSUE = _json({"action": "opened", "issue": {"title": "größer"}})
_FEED = _json({"object": "page", "entry": [{"id": "1", "changes": [{"field": "feed"}]}]})
_FORM = urlencode({"CallSid": "CA1", "CallStatus": "ringing", "From": "+49 30 1", "Note": ""})
_AES_KEY = "4g5j64qlyl3zvetqxz5jiocdr586fn2zvjpa8zls3ij"
_WECHAT = """<xml><ToUserName><![CDATA[gh_97417a04a28d]]></ToUserName>
<FromUserName><![CDATA[o9AgO5Kd5ggOC-bXrbNODIiE3bGY]]></FromUserName>
<CreateTime>1714112445</CreateTime><MsgType><![CDATA[text]]></MsgType>
<Content><![CDATA[größe]]></Content><MsgId>1234567890123456</MsgId></xml>"""

EXAMPLES = {
    "dingtalk": Example(
        options={"secrets": "123456", "aes_key": _AES_KEY, "receive_id": "suite4xxxxxxxxxxxxxxx"},
        other_secret="123457",
        body=_json({"EventType": "user_add_org", "eventId": "e-1", "UserId": ["größe"]}),
        event="user_add_org",
        identity="e-1",
        proof="msg_signature",
        timed=True,
        bodies=objects(EventType="user_add_org"),
    ),
    "discord": Example(
        options={"secrets": _SEED.hex()},
        receiver={"secrets": public(_SEED).hex()},
        other_secret=public(bytes(32)).hex(),
        body=_json({"id": "846462639134605312", "type": 2, "data": {"name": "höhe"}}),
        event="APPLICATION_COMMAND",
        identity="846462639134605312",
        proof="x-signature-ed25519",
        timed=True,
        bodies=objects(type=2),
    ),
    "feishu": Example(
        options={"secrets": "test key", "verification_token": "v"},
        other_secret="test kez",
        body=_json(
            {
                "schema": "2.0",
                "header": {"event_id": "f7984f25", "event_type": "im.message", "token": "v"},
                "event": {"text": "größe"},
            }
        ),
        event="im.message",
        identity="f7984f25",
        proof="x-lark-signature",
        timed=True,
        bodies=objects(token="v"),
    ),
    "github": Example(
        options={"secrets": "It's a Secret to Everybody"},
        other_secret="It's a Secret to Nobody",
        body=_ISSUE,
        event="issues.opened",
        identity="72d3162e-cc78-11e3-81ab-4c9367dc0958",
        proof="x-hub-signature-256",
    ),
    "gitlab": Example(
        options={"secrets": "glwt-größe"},
        other_secret="glwt-größer",
        body=_json({"object_kind": "push"}),
        event="Push Hook",
        identity="f5e5f430-f57b-4e6e-9fac-d9128cd7232f",
        proof="x-gitlab-token",
    ),
    "hmac": Example(
        options={
            "secrets": "s3cret",
            "header": "X-Signature",
            "algorithm": "sha512",
            "encoding": "base64",
            "prefix": "v1=",
            "signed": "{id}.{timestamp}.{body}",
            "timestamp_header": "X-Time",
            "id_header": "X-Id",
            "event": "header:X-Event",
        },
        other_secret="secret",
        body=b"\x00\xff any bytes",
        event="thing.happened",
        identity="id-1",
        proof="x-signature",
        timed=True,
    ),
    "meta": Example(
        options={"secrets": "app secret", "verify_token": "chosen"},
        other_secret="App secret",
        body=_FEED,
        event="page.feed",
        identity=sha256(_FEED).hexdigest(),
        proof="x-hub-signature-256",
    ),
    "shopify": Example(
        options={"secrets": "Convoy"},
        other_secret="convoy",
        body=_json({"id": 820982911946154508}),
        event="orders/create",
        identity="98880550-7158-44d4-b7cd-2c97c8a091b5",
        proof="x-shopify-hmac-sha256",
    ),
    "slack": Example(
        options={"secrets": "8f742231b10e8888abcd99yyyzzz85a5"},
        other_secret="8f742231b10e8888abcd99yyyzzz85a6",
        body=_json({"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}}),
        event="app_mention",
        identity="Ev1",
        proof="x-slack-signature",
        timed=True,
        bodies=objects(type="event_callback"),
    ),
    "standard": Example(
        options={"secrets": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
        other_secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSx",
        body=_json({"type": "invoice.paid", "data": {}}),
        event="invoice.paid",
        identity="msg_p5jXN8AQM9LWM0D4loKWxJek",
        proof="webhook-signature",
        timed=True,
    ),
    "stripe": Example(
        options={"secrets": "whsec_test_secret"},
        other_secret="whsec_test_secret2",
        body=_json({"id": "evt_1", "type": "charge.succeeded"}),
        event="charge.succeeded",
        identity="evt_1",
        proof="stripe-signature",
        timed=True,
        bodies=objects(object="event"),
    ),
    "telegram": Example(
        options={"secrets": "A-secret_token"},
        other_secret="A-secret_tokem",
        body=_json({"update_id": 10000, "message": {"text": "hallo"}}),
        event="message",
        identity="10000",
        proof="x-telegram-bot-api-secret-token",
        bodies=objects(update_id=1),
    ),
    "twilio": Example(
        options={"secrets": "12345"},
        other_secret="12346",
        body=_FORM.encode(),
        event="ringing",
        identity="bd1d7a9e-9f5c-4ac4-9d2c-b9c8d6a5a8b5",
        proof="x-twilio-signature",
        bodies=st.dictionaries(st.text(), st.text()).map(lambda d: urlencode(d).encode())
        | objects(),
    ),
    "wechat": Example(
        options={"secrets": "AAAAA", "aes_key": "A" * 43, "receive_id": "wxba5fad812f8e6fb9"},
        other_secret="AAAAB",
        body=_WECHAT.encode(),
        event="text",
        identity="gh_97417a04a28d::1234567890123456",
        proof="msg_signature",
        timed=True,
        bodies=objects(MsgType="text"),
    ),
    "wecom": Example(
        options={"secrets": "QDG6eK", "aes_key": _AES_KEY, "receive_id": "wx5823bf96d3bd56c7"},
        other_secret="QDG6eL",
        body=_WECHAT.replace("</xml>", "<AgentID>218</AgentID></xml>").encode(),
        event="text",
        identity="gh_97417a04a28d:218:1234567890123456",
        proof="msg_signature",
        timed=True,
        bodies=objects(MsgType="text"),
    ),
    "x": Example(
        options={"secrets": "consumer secret"},
        other_secret="consumer_secret",
        body=b'{"for_user_id": "2244994945"}',
        identity=sha256(b'{"for_user_id": "2244994945"}').hexdigest(),
        proof="x-twitter-webhooks-signature",
        bodies=objects(),
    ),
}
