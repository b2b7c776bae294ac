"""What a sender has verified is relayed as it is, whatever nobody has to read in it."""

from __future__ import annotations

import time
from time import monotonic
from typing import Any

import pytest
from kombu.utils.json import loads

from gateway.celery_message import Message
from gateway.outcome import SUCCESS, Outcome
from gateway.relay.routes import MAX_EVENT
from gateway.sources.base import Draft, Signed
from tests.unit.sources.examples import DEEP, EXAMPLES, PUBLIC_URL
from tests.unit.sources.odd_bodies import SENT_JSON
from tests.unit.sources.sending import received, sender

#: The scheme `hmac` with an identity and an event in the body's JSON.
IN_JSON = {
    "signed": "{body}", "identity": "json:/id", "event": "json:/type", "time": [], "id": [],
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {scheme: {} for scheme in DEEP} | {
    "hmac": IN_JSON,
    "feishu": {"verification_token": None},
}
FORMS = {
    "odd percents": b"payload=%zz&command=%",
    "1,001 fields": b"a=b&" * 1_001 + b"a=b",
    "no known field": b"text=hi",
    "a payload that is a list": b"payload=%5B1%5D",
    "a long command": b"command=%2F" + b"x" * 5_000,
}
XML_BODIES = {
    "control characters": b"<xml><MsgType><![CDATA[text\x10]]></MsgType><A>\x1d</A></xml>",
    "a control character by number": b"<xml><MsgType>text</MsgType><Content>&#x1d;</Content></xml>",
    "half an emoji": b"<xml><MsgType>text</MsgType><Content><![CDATA[\xf0\x9f]]></Content></xml>",
    "a long event": b"<xml><MsgType>event</MsgType><Event>%b</Event></xml>" % (b"x" * 5_000),
}
#: Twilio signs a form's fields, which therefore have to be readable. What X signs may not be a
#: handshake's token.
BODIES = {scheme: {**SENT_JSON, **FORMS} for scheme in DEEP} | {
    "wechat": XML_BODIES, "wecom": XML_BODIES,
    "twilio": {"a long status": b"CallStatus=" + b"x" * 5_000},
}  # fmt: skip
BODIES["x"] = {
    name: body
    for name, body in BODIES["x"].items()
    if name not in ("a number", "null", "no known field")
}


@pytest.fixture(scope="module")
def send(relaying):
    """Send to a relay with a route for each scheme, and return the message."""
    sources, routes = {}, []
    for scheme in DEEP:
        example = EXAMPLES[scheme]
        options = {**example.options, **(example.receiver or {}), **CHANGES[scheme]}
        sources[scheme] = {"scheme": scheme, **options}
        routes.append({"path": f"/{scheme}", "source": scheme, "idempotency": "none"})
    made = relaying(sources=sources, routes=routes, public_url=PUBLIC_URL)
    made.strategy.task = lambda _: Outcome(SUCCESS, "success")

    def send(scheme: str, body: bytes, query: str = "") -> Message:
        url = f"{PUBLIC_URL}/{scheme}" + (f"?{query}" if query else "")
        signed = sender(scheme, **CHANGES[scheme]).sign(Draft(body, url, time.time()))
        request = received(Signed(signed.body, signed.headers, signed.query), url)
        request.arrived, request.received_at = monotonic(), time.time()
        answer = made.send(request)
        assert answer.status == 200, answer.body
        return made.strategy.sent.get_nowait().message

    return send


@pytest.mark.parametrize("scheme", sorted(DEEP))
def test_what_nobody_has_to_read_is_relayed_as_it_is(send, scheme):
    for name, body in BODIES[scheme].items():
        message = send(scheme, body)
        _, _, relayed = loads(message.body)[0]
        assert (relayed if isinstance(relayed, bytes) else relayed.encode()) == body, name
        # The event is part of a header of AMQP, and bounded there.
        assert len(message.delivery["event"].encode()) <= MAX_EVENT, name


def test_a_long_event_is_cut(send):
    message = send("stripe", b'{"type":"%b"}' % (b"x" * 5_000))
    assert message.delivery["event"] == "x" * MAX_EVENT


def test_a_senders_url_need_not_be_utf_8(send):
    message = send("github", b"{}", query="a=%ff&b=1")
    assert loads(message.body)[0][0] == {"a": "\ufffd", "b": "1"}
    assert message.delivery["query_string"] == "a=%ff&b=1"
