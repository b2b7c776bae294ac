"""WeChat's messages: what they are known by, and what cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.sources.base import Draft
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
from tests.unit.sources.odd_bodies import ODD_JSON, ODD_XML, spoilt


def known(**fields):
    return source("wechat", secrets="t").verify(send(source("wechat", secrets="t"), xml(**fields)))


def test_a_message_is_known_by_its_msg_id_and_account():
    verified = known(**text_message())
    assert verified.identity == "gh_7f083739789a::5993973467416297472"
    assert (verified.event, verified.account) == ("text", "gh_7f083739789a")
    assert known(**text_message(Content="other")).identity == verified.identity
    receiver = source("wechat", secrets="t")
    in_json = receiver.verify(send(receiver, json.dumps(text_message()).encode()))
    assert in_json.identity == verified.identity
    for field in ({"MsgId": 1}, {"ToUserName": "gh_other"}):
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


def test_an_id_or_a_type_may_not_be_endless():
    for name in ("MsgId", "MsgType", "Event"):
        with pytest.raises(BadRequest):
            known(
                **{
                    **text_message(MsgType="event" if name == "Event" else "text"),
                    name: "9" * 2_000,
                }
            )


ODD = {name: body for name, body in {**ODD_XML, **ODD_JSON}.items() if name != "JSON"}


@pytest.mark.parametrize("options", [{"secrets": "AAAAA"}, SAFE], ids=["plain", "safe"])
@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_what_cannot_be_read_is_a_bad_request(options, body):
    receiver = source("wechat", **options)
    signed = receiver.sign(Draft(xml(**text_message()), "", NOW))
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
