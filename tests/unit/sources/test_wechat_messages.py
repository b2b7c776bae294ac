"""WeChat's passive replies, encrypted as the message was, and what messages are known by."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import xmltodict
from hypothesis import given
from hypothesis import strategies as st
from wechatpy.crypto import WeChatCrypto
from wechatpy.replies import deserialize_reply

from gateway.answer import Answer
from gateway.errors import BadRequest, ResultUnusable
from gateway.sources.base import Draft
from gateway.sources.wechat_message import Message
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import (
    SAFE,
    aes_keys,
    received,
    safe,
    said,
    send,
    source,
    text_message,
    texts,
    tokens,
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

in_each_mode = pytest.mark.parametrize(
    "receiver", [source("wechat", secrets="AAAAA"), safe()], ids=["plain", "safe"]
)


def reply(receiver, result, message=None, as_json=False):
    """Return the content type and the plain text of the reply to `message`."""
    message = message or text_message()
    body = json.dumps(message).encode() if as_json else xml(**message)
    verified = receiver.verify(send(receiver, body))
    answer = receiver.reply(said(result), verified, NOW)
    if not receiver.covers_body or answer.body in (b"", b"success"):
        return answer.content_type, answer.body
    fields = json.loads(answer.body) if as_json else xmltodict.parse(answer.body)["xml"]
    assert sorted(fields) == ["Encrypt", "MsgSignature", "Nonce", "TimeStamp"]
    assert fields["TimeStamp"] == (1_800_000_000 if as_json else "1800000000")
    crypto = WeChatCrypto(SAFE["secrets"], SAFE["aes_key"], SAFE["receive_id"])
    text = crypto.decrypt_message(
        fields, fields["MsgSignature"], str(fields["TimeStamp"]), fields["Nonce"]
    )
    return answer.content_type, text.encode()


@in_each_mode
@pytest.mark.parametrize("as_json", [False, True])
def test_success_and_nothing_are_not_encrypted(receiver, as_json):
    assert reply(receiver, "success", as_json=as_json) == ("text/plain; charset=utf-8", b"success")
    assert reply(receiver, "", as_json=as_json) == reply(receiver, None) == ("", b"")


@in_each_mode
def test_text_becomes_a_passive_reply(receiver):
    content_type, body = reply(receiver, "Grüße]]>\x00\x08, 您好 <b>&amp;")
    found = deserialize_reply(body.decode())
    assert content_type == "text/xml"
    assert found.content == "Grüße]]>\ufffd\ufffd, 您好 <b>&amp;"
    assert (found.target, found.source) == ("oia2TjuEGTNoeX76QEjQNrcURxG8", "gh_7f083739789a")
    assert int(xmltodict.parse(body)["xml"]["CreateTime"]) == 1_800_000_000


@in_each_mode
def test_text_becomes_a_passive_reply_in_json_where_the_message_is(receiver):
    content_type, body = reply(receiver, 'Grüße ]]> "', as_json=True)
    assert content_type == "application/json"
    assert json.loads(body) == {
        "ToUserName": "oia2TjuEGTNoeX76QEjQNrcURxG8", "FromUserName": "gh_7f083739789a",
        "CreateTime": 1_800_000_000, "MsgType": "text", "Content": 'Grüße ]]> "',
    }  # fmt: skip


@in_each_mode
def test_what_is_a_passive_reply_stays_as_it_is(receiver):
    own = " \n<xml><MsgType>text</MsgType>\n<Content>ä</Content></xml>"
    assert reply(receiver, own) == ("text/xml", own.encode())
    assert reply(receiver, own.encode()) == ("text/xml", own.encode())
    for own in ('{"demo_resp" : "good luck"}', '{"MsgType": "x",  "ToUserName": "y"}'):
        expected = ("application/json", own.encode())
        assert reply(receiver, own, as_json=True) == expected
        assert reply(receiver, own.encode(), as_json=True) == expected
        assert reply(receiver, json.loads(own), as_json=True)[0] == "application/json"


@in_each_mode
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("text", ["<xml>", '{"a":', '["a"]', "0", "success ", " "])
def test_any_other_text_is_text(receiver, as_json, text):
    _, body = reply(receiver, text, as_json=True)
    assert json.loads(body)["Content"] == text
    if not text.startswith("<xml"):
        _, body = reply(receiver, text)
        assert xmltodict.parse(body, strip_whitespace=False)["xml"]["Content"] == text


@in_each_mode
def test_text_that_looks_like_an_object_is_text_where_the_message_is_xml(receiver):
    text = '{"MsgType":"text","Content":"typed by somebody"}'
    assert deserialize_reply(reply(receiver, text)[1].decode()).content == text


@in_each_mode
@pytest.mark.parametrize("value", [[1, "ä"], 7, True])
def test_json_that_is_no_object_is_text(receiver, value):
    text = json.dumps(value, ensure_ascii=False)
    assert deserialize_reply(reply(receiver, value)[1].decode()).content == text


@in_each_mode
def test_an_object_with_a_msg_type_becomes_xml(receiver):
    _, body = reply(receiver, {"MsgType": "image", "Image": {"MediaId": "m]]>1"}})
    found = deserialize_reply(body.decode())
    assert (found.type, found.image) == ("image", "m]]>1")
    assert (found.target, found.source) == ("oia2TjuEGTNoeX76QEjQNrcURxG8", "gh_7f083739789a")

    articles = [
        {"Title": "a", "Description": None, "PicUrl": "http://p", "Url": "http://a?b&c"},
        {"Title": "ü", "Description": "d", "PicUrl": "", "Url": ""},
    ]
    news = {"MsgType": "news", "ArticleCount": 2, "Articles": articles, "FromUserName": "own"}
    _, body = reply(receiver, news)
    found = xmltodict.parse(body)["xml"]
    assert (found["ArticleCount"], found["FromUserName"]) == ("2", "own")
    assert [{k: v or "" for k, v in each.items()} for each in found["Articles"]["item"]] == [
        {k: v or "" for k, v in each.items()} for each in articles
    ]
    assert [a["url"] for a in deserialize_reply(body.decode()).articles] == ["http://a?b&c", None]


@in_each_mode
def test_an_object_with_a_msg_type_is_completed_in_json(receiver):
    _, body = reply(receiver, {"MsgType": "image", "Image": {"MediaId": "m"}}, as_json=True)
    assert json.loads(body) == {
        "ToUserName": "oia2TjuEGTNoeX76QEjQNrcURxG8", "FromUserName": "gh_7f083739789a",
        "CreateTime": 1_800_000_000, "MsgType": "image", "Image": {"MediaId": "m"},
    }  # fmt: skip


@in_each_mode
@pytest.mark.parametrize(
    "result",
    [
        {"demo_resp": "good luck"},
        {"MsgType": "x", "a b": "c"},
        {"MsgType": "x", "": "c"},
        {"MsgType": "x", "a>": "c"},
        {"MsgType": "x", "a": {"b": {"c": {"d": "e"}}}},
        {"MsgType": "x", "a": [[[["e"]]]]},
        b"\xff",
    ],
)
def test_what_xml_has_no_form_for_is_unusable(receiver, result):
    with pytest.raises(ResultUnusable):
        reply(receiver, result)


def test_status_and_headers_of_a_result_are_kept():
    receiver = safe()
    verified = receiver.verify(send(receiver, xml(**text_message())))
    answer = receiver.reply(Answer(201, "text/xml", b"hi", {"ETag": "1"}), verified, NOW)
    assert (answer.status, answer.headers) == (201, {"ETag": "1"})


@given(texts, st.booleans())
def test_any_text_arrives(text, as_json):
    if text in ("", "success") or text.lstrip().startswith(("<xml", "{")):
        return
    _, body = reply(safe(), text, as_json=as_json)
    if as_json:
        assert json.loads(body)["Content"] == text
    else:
        content = xmltodict.parse(body, strip_whitespace=False)["xml"]["Content"]
        assert (content or "") == text


@given(
    st.lists(tokens, min_size=1, max_size=3, unique=True),
    st.lists(aes_keys, min_size=1, max_size=3, unique_by=lambda key: key[:42]),
    st.data(),
)
def test_any_token_goes_with_any_key_and_the_reply_with_both(secrets, keys, data):
    token, key = data.draw(st.sampled_from(secrets)), data.draw(st.sampled_from(keys))
    sender = safe(secrets=token, aes_key=key)
    receiver = safe(secrets=secrets, aes_key=keys)

    verified = receiver.verify(send(sender, xml(**text_message())))
    answer = receiver.reply(said("hi"), verified, NOW)

    fields = xmltodict.parse(answer.body)["xml"]
    crypto = WeChatCrypto(token, key, SAFE["receive_id"])
    text = crypto.decrypt_message(
        answer.body.decode(), fields["MsgSignature"], fields["TimeStamp"], fields["Nonce"]
    )
    assert deserialize_reply(text).content == "hi"


def test_no_two_replies_have_a_nonce_in_common():
    receiver = safe()
    verified = receiver.verify(send(receiver, json.dumps(text_message()).encode()))
    bodies = [json.loads(receiver.reply(said("hi"), verified, NOW).body) for _ in range(50)]
    assert (
        len({body["Nonce"] for body in bodies}) == len({body["Encrypt"] for body in bodies}) == 50
    )


def known(**fields):
    return source("wechat", secrets="t").verify(send(source("wechat", secrets="t"), xml(**fields)))


def test_a_message_has_its_type_and_its_account():
    verified = known(**text_message())
    assert (verified.event, verified.account) == ("text", "gh_7f083739789a")


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
