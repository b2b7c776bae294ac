"""DingTalk's events, against its own vectors and wechatpy's crypto, and its robots."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace

import pytest
from wechatpy.crypto import WeChatCrypto

from gateway.answer import Answer
from gateway.errors import BadRequest
from gateway.sources.base import Draft
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import changes, each_character, post, said, send, source
from tests.unit.sources.odd_bodies import ODD_JSON
from tests.unit.sources.sending import unverified

# From the tests of https://github.com/open-dingtalk/DingTalk-Callback-Crypto
SUITE = {
    "secrets": "123456", "aes_key": "4g5j64qlyl3zvetqxz5jiocdr586fn2zvjpa8zls3ij",
    "receive_id": "suite4xxxxxxxxxxxxxxx",
}  # fmt: skip
SUITE_QUERY = {
    "signature": "5a65ceeef9aab2d149439f82dc191dd6c5cbe2c0", "timestamp": "1445827045067",
    "nonce": "nEXhMP4r",
}  # fmt: skip
SUITE_ENCRYPT = (
    "1a3NBxmCFwkCJvfoQ7WhJHB+iX3qHPsc9JbaDznE1i03peOk1LaOQoRz3+nlyGNhwmwJ3vDMG+OzrHMeiZI7gTRWVdUB"
    "mfxjZ8Ej23JVYa9VrYeJ5as7XM/ZpulX8NEQis44w53h1qAgnC3PRzM7Zc/D6Ibr0rgUathB6zRHP8PYrfgnNOS9PhSB"
    "dHlegK+AGGanfwjXuQ9+0pZcy0w9lQ=="
)
CORP = {
    "secrets": "mryue", "aes_key": "Yue0EfdN5900c1ce5cf6A152c63DDe1808a60c5ecd7",
    "receive_id": "ding6ccabc44d2c8d38b",
}  # fmt: skip
CORP_QUERY = {
    "msg_signature": "03044561471240d4a14bb09372dfcfd4fd0e40cb", "timestamp": "1608001896814",
    "nonce": "WL4PK6yA",
}  # fmt: skip
CORP_ENCRYPT = (
    "0vJiX6vliEpwG3U45CtXqi+m8PXbQRARJ8p8BbDuD1EMTDf0jKpQ79QS93qEk7XHpP6u+oTTrd15NRPvNvmBKyDCYxxO"
    "K+HZeKju4yhELOFchzNukR+t8SB/qk4ROMu3"
)
VECTORS = {
    "suite": (SUITE, SUITE_QUERY, SUITE_ENCRYPT, "LPIdSnlF"),
    "corp": (CORP, CORP_QUERY, CORP_ENCRYPT, "success"),
}
EVENT = b'{"EventType":"user_add_org","TimeStamp":43535463645,"UserId":["efefef"],"CorpId":"corp"}'


def dingtalk(**options):
    return source("dingtalk", **{**SUITE, **options})


def envelope(encrypted: str) -> bytes:
    return json.dumps({"encrypt": encrypted}).encode()


def opened(answer: Answer, options: dict = SUITE) -> str:
    """Return what `answer` says, as the sender reads it."""
    assert (answer.status, answer.content_type) == (200, "application/json")
    fields = json.loads(answer.body)
    assert sorted(fields) == ["encrypt", "msg_signature", "nonce", "timeStamp"]
    crypto = WeChatCrypto(options["secrets"], options["aes_key"], options["receive_id"])
    about = (fields[name] for name in ("msg_signature", "timeStamp", "nonce"))
    return crypto.decrypt_message({"Encrypt": fields["encrypt"]}, *about)


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS)
def test_the_published_checks_are_answered_at_once(vector):
    options, query, encrypted, word = vector
    at = int(query["timestamp"]) / 1000
    verified = dingtalk(**options).verify(post(query, envelope(encrypted), at))
    assert verified.event == json.loads(verified.body)["EventType"]
    assert verified.event.startswith("check_")
    assert verified.account == options["receive_id"]
    assert opened(verified.challenge, options) == word


def test_both_names_of_the_signature_count():
    sign = dingtalk().sign(Draft(EVENT, "", NOW))
    proof = sign.query["msg_signature"]
    both = {**sign.query, "signature": proof}
    assert dingtalk().verify(post(both, sign.body)).body == EVENT
    for name in ("signature", "msg_signature"):
        for changed in changes(proof):
            unverified(dingtalk(), post({**both, name: changed}, sign.body))


def test_an_event_is_known_by_its_id_or_by_all_that_it_says():
    def identity(body):
        return dingtalk().verify(send(dingtalk(), body)).identity

    assert identity(b'{"eventId":"e1","EventType":"a"}') == '["e1", "a", ""]'
    assert identity(b'{"eventId":7,"CorpId":"c"}') == '[7, "", "c"]'
    assert identity(EVENT) == identity(EVENT) == hashlib.sha256(EVENT).hexdigest()
    assert identity(EVENT + b" ") != identity(EVENT)


def test_timestamps_are_seconds_or_milliseconds():
    crypto = WeChatCrypto(SUITE["secrets"], SUITE["aes_key"], SUITE["receive_id"])
    for time, off in ((NOW, 0), (NOW * 1000, 0), (NOW, 301), (NOW * 1000, -301)):
        text = crypto.encrypt_message(EVENT.decode(), "n", str(int(time)))
        encrypted, proof = (part.split("]]>")[0] for part in text.split("CDATA[")[1:3])
        query = {"msg_signature": proof, "timestamp": str(int(time)), "nonce": "n"}
        request = post(query, envelope(encrypted), NOW + off)
        assert dingtalk(tolerance=0).verify(request).body == EVENT
        if off:
            unverified(dingtalk(), request)
        else:
            assert dingtalk().verify(request).event == "user_add_org"


@pytest.mark.parametrize("result", ["success", "", None, "hi", {"a": 1}, b"\xff"])
def test_whatever_the_task_returns_an_event_is_answered_by_success_with_its_own_key(result):
    receiver = dingtalk(secrets=["new", SUITE["secrets"]], aes_key=["A" * 43, SUITE["aes_key"]])
    verified = receiver.verify(send(dingtalk(), EVENT))
    assert verified.challenge is None
    assert opened(receiver.reply(said(result), verified, NOW)) == "success"


@pytest.mark.parametrize("body", ODD_JSON.values(), ids=ODD_JSON)
def test_the_envelope_has_to_be_readable_and_the_event_need_not(body):
    request = send(dingtalk(), EVENT)
    with pytest.raises(BadRequest):
        dingtalk().verify(replace(request, body=body))
    verified = dingtalk().verify(send(dingtalk(), body))
    assert (verified.body, verified.event) == (body, "")
    assert verified.identity == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("body", [EVENT, b"{}", b'{"encrypt":1}', b'{"encrypt":null}'])
def test_what_is_not_encrypted_is_unverified(body):
    assert dingtalk().covers_body
    unverified(dingtalk(), replace(send(dingtalk(), EVENT), body=body))


TEXT = b'{"msgtype":"text","msgId":"msg0","robotCode":"ding1","text":{"content":"hallo"}}'


def robot(**options):
    return source("dingtalk", secrets="this is secret", **options)


def signed(timestamp: str, secret: bytes = b"this is secret") -> dict[str, str]:
    mac = hmac.new(secret, timestamp.encode() + b"\n" + secret, hashlib.sha256)
    return {"timestamp": timestamp, "sign": base64.b64encode(mac.digest()).decode()}


def test_a_robots_message_is_verified_by_its_headers():
    verified = robot().verify(post("", TEXT, headers=signed("1800000000250")))
    assert (verified.body, verified.event) == (TEXT, "text")
    assert verified.identity == '["msg0", "", ""]'
    assert verified.account == "ding1"
    assert not robot().covers_body
    assert robot().sign(Draft(TEXT, "", NOW)).headers.items() >= signed("1800000000250").items()


def test_each_character_of_a_robots_headers_counts():
    for headers in each_character(signed("1800000000250")):
        unverified(robot(), post("", TEXT, headers=headers))
    for secret in (b"this is secres", b"", b"\xff"):
        unverified(robot(), post("", TEXT, headers=signed("1800000000250", secret)))


def test_a_robots_message_is_good_for_an_hour():
    for off in (-3590, 3590):
        headers = signed(str(int((NOW + off) * 1000)))
        assert robot().verify(post("", TEXT, headers=headers)).event == "text"
        unverified(robot(tolerance=300), post("", TEXT, headers=headers))
    for off in (-3602, 3602):
        unverified(robot(), post("", TEXT, headers=signed(str(int((NOW + off) * 1000)))))
    # Seconds are not milliseconds.
    unverified(robot(), post("", TEXT, headers=signed(str(int(NOW)))))


def test_a_robot_is_answered_by_what_the_task_returns():
    verified = robot().verify(post("", TEXT, headers=signed("1800000000250")))
    answer = said({"msgtype": "text", "text": {"content": "hi"}})
    assert robot().reply(answer, verified, NOW) is answer


def test_events_and_robots_do_not_pass_for_each_other():
    events = source("dingtalk", secrets="this is secret", aes_key="A" * 43, receive_id="corp")
    unverified(robot(), send(events, TEXT))
    unverified(events, post("", TEXT, headers=signed("1800000000250")))


@pytest.mark.parametrize("body", ODD_JSON.values(), ids=ODD_JSON)
def test_a_robots_message_that_cannot_be_read_is_known_by_its_digest(body):
    verified = robot().verify(post("", body, headers=signed("1800000000250")))
    assert (verified.body, verified.event) == (body, "")
    assert verified.identity == hashlib.sha256(body).hexdigest()
    unverified(robot(), post("", body, headers={**signed("1800000000250"), "sign": "x"}))
