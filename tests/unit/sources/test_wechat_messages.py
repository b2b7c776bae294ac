"""WeChat's messages: what they are known by, and what cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.sources.base import Draft
from gateway.sources.wechat_message import Message
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import (
    SAFE,
    received,
    safe,
    said,
    send,
    source,
    text_message,
    xml,
)
from tests.unit.sources.odd_bodies import (
    CUT_JSON,
    ODD_JSON,
    ODD_XML,
    SLOPPY_JSON,
    SLOPPY_XML,
    spoilt,
)


def known(**fields):
    return source("wechat", secrets="t").verify(send(source("wechat", secrets="t"), xml(**fields)))


@pytest.mark.parametrize(
    "field",
    [{"MsgId": 1}, {"ToUserName": "gh"}, {"FromUserName": "o"}, {"CreateTime": 2}, {"Content": ""}],
)
def test_a_message_is_known_by_all_that_it_says(field):
    verified = known(**text_message())
    assert (verified.event, verified.account) == ("text", "gh_7f083739789a")
    assert known(**text_message()).identity == verified.identity
    assert known(**text_message(**field)).identity != verified.identity


@pytest.mark.parametrize(
    "field",
    [{"FromUserName": "o"}, {"CreateTime": 2}, {"Event": "b"}, {"EventKey": "k"}, {"TraceId": 2}],
)
def test_an_event_is_known_by_all_that_it_says(field):
    event = {"FromUserName": "sys", "CreateTime": 1, "MsgType": "event", "Event": "a", "MsgID": 7}
    assert known(**event).identity == known(**event).identity
    assert known(**{**event, **field}).identity != known(**event).identity


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        ({"MsgType": "Image"}, "image"),
        ({"MsgType": "event", "Event": "CLICK"}, "event.click"),
        ({"MsgType": "event"}, "event"),
        ({"MsgType": "text", "Event": "click"}, "text"),
        ({"AppId": "wx", "InfoType": "component_verify_ticket"}, "component_verify_ticket"),
        ({}, ""),
    ],
)
def test_events_are_named_in_lower_case(fields, event):
    assert known(**fields).event == event
    body = json.dumps(fields).encode()
    receiver = source("wechat", secrets="t")
    assert receiver.verify(send(receiver, body)).event == event


SLOPPY = {f"XML: {name}": body for name, body in SLOPPY_XML.items()}
SLOPPY |= {f"JSON: {name}": body for name, body in {**CUT_JSON, **SLOPPY_JSON}.items()}


@pytest.mark.parametrize("options", [{"secrets": "AAAAA"}, SAFE], ids=["plain", "safe"])
def test_a_sloppy_message_is_passed_on_as_it_is_and_answered(options):
    receiver = source("wechat", **options)
    for name, body in SLOPPY.items():
        verified = receiver.verify(send(receiver, body))
        assert verified.body == body, name
        assert receiver.reply(said("hi"), verified, NOW).body, name


@pytest.mark.parametrize("user", ["o_\x1d\x10", "o_\ud83d", "o_\ufffe]]>"])
@pytest.mark.parametrize("form", ["xml", "json"])
def test_the_reply_to_an_odd_user_can_be_read(form, user):
    fields = text_message(FromUserName=user)
    if form == "json":
        body = json.dumps(fields).encode()
    else:
        body = xml(
            **{**fields, "FromUserName": user.replace("]]>", "").encode(errors="replace").decode()}
        )
    receiver = source("wechat", secrets="t")
    reply = receiver.reply(said("hi"), receiver.verify(send(receiver, body)), NOW)
    read = Message.read(reply.body)
    if form == "xml":
        ElementTree.fromstring(reply.body)
    assert (read.get("content"), read.get("tousername")[:2]) == ("hi", "o_")


ODD = {name: body for name, body in {**ODD_XML, **ODD_JSON}.items() if name != "JSON"}


@pytest.mark.parametrize("options", [{"secrets": "AAAAA"}, SAFE], ids=["plain", "safe"])
def test_what_cannot_be_read_is_a_bad_request(options):
    receiver = source("wechat", **options)
    signed = receiver.sign(Draft(xml(**text_message()), "", NOW))
    for body in ODD.values():
        with pytest.raises(BadRequest):
            receiver.verify(received(replace(signed, body=body)))
        with pytest.raises(BadRequest):
            receiver.verify(send(receiver, body))


@given(spoilt(st.sampled_from([xml(**text_message()), json.dumps(text_message()).encode()])))
def test_spoilt_messages_in_a_right_envelope_are_refused_or_passed_on(body):
    receiver = safe()
    try:
        verified = receiver.verify(send(receiver, body))
    except BadRequest:
        return
    assert verified.body == body
    assert receiver.reply(said("hi"), verified, NOW).body
