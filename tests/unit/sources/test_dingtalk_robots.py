"""DingTalk's robots: two headers, which sign no body."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from gateway.sources.base import Draft
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import changes, post, said, send, source
from tests.unit.sources.odd_bodies import ODD_JSON
from tests.unit.sources.sending import unverified

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
    headers = signed("1800000000250")
    for name, value in headers.items():
        lacking = {key: value for key, value in headers.items() if key != name}
        for changed in ({**headers, name: text} for text in changes(value)):
            unverified(robot(), post("", TEXT, headers=changed))
        unverified(robot(), post("", TEXT, headers=lacking))
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
