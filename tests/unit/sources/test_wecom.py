"""WeCom: everything is encrypted, also the handshake; against wechatpy in both directions."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from dataclasses import replace

import pytest
import xmltodict
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from wechatpy.enterprise.crypto import WeChatCrypto
from wechatpy.replies import deserialize_reply

from gateway.answer import Answer
from gateway.errors import Unverified
from gateway.sources.base import Draft
from gateway.sources.wechat_crypto import Opened, seal, signature
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import (
    each_character,
    get,
    post,
    said,
    send,
    source,
    text_message,
    texts,
    xml,
)
from tests.unit.sources.sending import unverified

OPTIONS = {
    "secrets": "QDG6eK",
    "aes_key": "jWmYm7qr5nMoAUwZRjGtBxmz3KA1tkAj3ykkR6q2B2C",
    "receive_id": "wx5823bf96d3bd56c7",
}
MESSAGE = text_message(ToUserName="wx5823bf96d3bd56c7", FromUserName="mycreate", AgentID=218)
TIME = str(int(NOW))


def wecom(**options):
    return source("wecom", **{**OPTIONS, **options})


def library(receive_id=OPTIONS["receive_id"]):
    return WeChatCrypto(OPTIONS["secrets"], OPTIONS["aes_key"], receive_id)


def sealed(message: bytes, receive_id: str = OPTIONS["receive_id"]) -> dict[str, str]:
    """Return the parameters of a handshake that says `message`."""
    key = b64decode(OPTIONS["aes_key"] + "=")
    found = seal(Opened(message, receive_id, OPTIONS["secrets"], key), TIME)
    query = {"msg_signature": found.signature, "timestamp": TIME, "nonce": found.nonce}
    return {**query, "echostr": found.encrypted}


@pytest.mark.parametrize("echostr", [b"1616140317555161061", b'\xef\xbb\xbf"x"\r\n', b"", b"\xff"])
def test_the_handshake_is_answered_by_exactly_what_was_encrypted(echostr):
    answer = wecom().handshake(get({**sealed(echostr), "more": "1"}))
    assert answer == Answer(200, "text/plain; charset=utf-8", echostr)


def test_each_character_of_a_handshake_counts():
    for query in each_character(sealed(b"1616140317555161061")):
        with pytest.raises(Unverified):
            wecom().handshake(get(query))


def test_wechats_handshake_is_not_wecoms():
    query = {"timestamp": TIME, "nonce": "1", "echostr": "x"}
    with pytest.raises(Unverified):
        wecom().handshake(get({**query, "signature": signature("QDG6eK", TIME, "1")}))


def test_a_handshake_may_come_from_any_of_the_receive_ids():
    several = wecom(receive_id=["wx5823bf96d3bd56c7", "suite"])
    assert several.handshake(get(sealed(b"1", "suite"))).body == b"1"
    for receive_id in ("", "other"):
        with pytest.raises(Unverified):
            several.handshake(get(sealed(b"1", receive_id)))


def test_a_plain_message_is_never_taken():
    assert wecom().covers_body
    plain = source("wechat", secrets=OPTIONS["secrets"])
    for body in (xml(**MESSAGE), json.dumps(MESSAGE).encode()):
        unverified(wecom(), send(plain, body))
    for options in ({"plain": True}, {"aes_key": []}, {"receive_id": []}):
        with pytest.raises(ValidationError):
            wecom(**options)


def test_a_message_has_no_signature_but_its_own():
    assert sorted(wecom().sign(Draft(b"<xml/>", "", NOW)).query) == [
        "msg_signature", "nonce", "timestamp",
    ]  # fmt: skip
    request = send(wecom(), xml(**MESSAGE))
    query = request.query_string.replace("msg_signature", "signature")
    unverified(wecom(), replace(request, query_string=query))


@given(texts, st.text("0123456789", min_size=1, max_size=10))
def test_we_verify_what_wechatpy_encrypts_and_it_reads_our_reply(text, nonce):
    message = xml(**{**MESSAGE, "Content": text.replace("]]>", "")})
    body = library().encrypt_message(message.decode(), nonce, TIME)
    query = {
        "msg_signature": xmltodict.parse(body)["xml"]["MsgSignature"],
        "timestamp": TIME,
        "nonce": nonce,
    }

    verified = wecom().verify(post(query, body.encode()))
    assert verified.body == message

    answer = wecom().reply(said("hi"), verified, NOW)
    fields = xmltodict.parse(answer.body)["xml"]
    reply = library().decrypt_message(
        answer.body.decode(), fields["MsgSignature"], fields["TimeStamp"], fields["Nonce"]
    )
    assert answer.content_type == "text/xml"
    assert (deserialize_reply(reply).content, deserialize_reply(reply).target) == ("hi", "mycreate")


def test_an_intelligent_robot_speaks_json_and_names_nobody():
    """https://developer.work.weixin.qq.com/document/path/101033"""
    robot = wecom(receive_id="")
    message = b'{"msgid":"CAIQ16","aibotid":"AIBOT","from":{"userid":"u"},"msgtype":"text"}'
    sign = sealed(message, "")
    body = json.dumps({"encrypt": sign.pop("echostr")}).encode()

    verified = robot.verify(post(sign, body))
    assert (verified.body, verified.event, verified.account) == (message, "text", "")
    assert verified.identity == hashlib.sha256(message).hexdigest()

    own = {"msgtype": "stream", "stream": {"id": "1", "finish": True, "content": "hi"}}
    answer = robot.reply(said(own), verified, NOW)
    fields = json.loads(answer.body)
    assert sorted(fields) == ["encrypt", "msgsignature", "nonce", "timestamp"]
    about = (str(fields[name]) for name in ("msgsignature", "timestamp", "nonce"))
    reply = library("").decrypt_message({"Encrypt": fields["encrypt"]}, *about)
    assert (answer.content_type, json.loads(reply)) == ("application/json", own)
