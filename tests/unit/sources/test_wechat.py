"""WeChat: its published requests, and its three modes."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.answer import Answer
from gateway.errors import BadRequest, Unverified
from gateway.sources.wechat_crypto import signature
from tests.unit.sources.messages import (
    SAFE,
    SECURE,
    VECTORS,
    changes,
    each_character,
    get,
    post,
    safe,
    send,
    source,
    text_message,
    xml,
)
from tests.unit.sources.odd_bodies import spoilt
from tests.unit.sources.sending import unverified

#: The parameters of the published requests; others come along.
GET, PLAIN = (
    {name: VECTORS[vector][name] for name in ("signature", "timestamp", "nonce")}
    for vector in ("wechat-get", "wechat-plain-post")
)
POST = {
    **{name: SECURE[name] for name in ("signature", "timestamp", "nonce", "msg_signature")},
    "encrypt_type": "aes",
    "openid": "o9AgO5Kd5ggOC-bXrbNODIiE3bGY",
}
BODY = json.dumps({"ToUserName": "gh_97417a04a28d", "Encrypt": SECURE["encrypt"]}).encode()
AT = float(SECURE["timestamp"])


@pytest.mark.parametrize("options", [{"secrets": "AAAAA"}, SAFE], ids=["plain", "safe"])
def test_the_handshake_is_answered_by_its_echostr(options):
    echostr = VECTORS["wechat-get"]["echostr"]
    request = get({**GET, "echostr": echostr, "openid": "o"}, float(GET["timestamp"]))
    answer = source("wechat", **options).handshake(request)
    assert answer == Answer(200, "text/plain; charset=utf-8", echostr.encode())


def test_each_character_of_a_handshake_counts():
    plain = source("wechat", secrets="AAAAA")
    for query in each_character(GET):
        with pytest.raises(Unverified):
            plain.handshake(get({**query, "echostr": "1"}, float(GET["timestamp"])))


def test_the_plain_message_is_verified_and_its_body_is_not():
    at, body = float(PLAIN["timestamp"]), xml(**text_message())
    plain = source("wechat", secrets="AAAAA")
    assert plain.verify(post({**PLAIN, "openid": "o"}, body, at)).body == body
    assert not plain.covers_body
    for query in each_character(PLAIN):
        unverified(plain, post(query, body, at))


def test_the_secure_message_is_decrypted():
    verified = safe().verify(post(POST, BODY, AT))
    assert safe().covers_body
    assert verified.body.decode() == SECURE["plain"]["msg"]
    assert (verified.event, verified.account) == ("event.debug_demo", "wxba5fad812f8e6fb9")
    assert verified.challenge is None
    for late in (-300, 300):
        assert safe().verify(post(POST, BODY, AT + late)).body == verified.body
        unverified(safe(), post(POST, BODY, AT + late * 301 / 300))


def test_each_character_of_a_secure_message_counts():
    for name in ("signature", "timestamp", "nonce", "msg_signature"):
        for changed in changes(POST[name]):
            unverified(safe(), post({**POST, name: changed}, BODY, AT))
    for changed in changes(SECURE["encrypt"]):
        unverified(safe(), post(POST, json.dumps({"Encrypt": changed}).encode(), AT))


def test_each_character_of_the_token_the_key_and_the_receive_id_counts():
    for name in ("secrets", "receive_id"):
        for changed in changes(SAFE[name]):
            unverified(safe(**{name: changed or "?"}), post(POST, BODY, AT))
    for i, by in product(range(43), "Eb7+"):
        # Two bits of the 43rd character are not the key's: A, B, C and D are one key.
        unverified(safe(aes_key="A" * i + by + "A" * (42 - i)), post(POST, BODY, AT))


def test_a_timestamp_is_in_seconds():
    time = POST["timestamp"] + "000"
    query = {"timestamp": time, "nonce": "1", "signature": signature("AAAAA", time, "1")}
    for at in (AT, AT * 1000):
        unverified(source("wechat", secrets="AAAAA"), post(query, b"<xml/>", at))


def test_a_secure_message_may_lack_the_signature_that_is_not_its_own():
    query = {key: value for key, value in POST.items() if key != "signature"}
    assert safe().verify(post(query, BODY, AT)).account == SAFE["receive_id"]


@pytest.mark.parametrize("dropped", ["msg_signature", "signature msg_signature"])
def test_a_secure_message_has_its_own_signature(dropped):
    query = {key: value for key, value in POST.items() if key not in dropped.split()}
    unverified(safe(), post(query, BODY, AT))
    unverified(safe(plain=True), post(query, BODY, AT))


@pytest.mark.parametrize("body", [BODY, b"", b"<xml>", b"{"])
def test_without_any_signature_nothing_is_read(body):
    query = {"timestamp": POST["timestamp"], "nonce": "1"}
    for receiver in (safe(), safe(plain=True), source("wechat", secrets="AAAAA")):
        for request in (post("", body, AT), post(query, body, AT)):
            unverified(receiver, request)


@pytest.mark.parametrize("plain", [False, True])
def test_of_a_compatible_message_only_what_was_encrypted_is_believed(plain):
    forged = text_message(Content="forged", ToUserName="gh_forged", MsgId=1)
    body = json.dumps({**forged, "Encrypt": SECURE["encrypt"]}).encode()
    verified = safe(plain=plain).verify(post(POST, body, AT))
    assert verified == safe().verify(post(POST, BODY, AT))


def test_with_a_key_a_plain_message_is_refused_unless_plain_is_set():
    body = xml(**text_message())
    request = send(source("wechat", secrets="AAAAA"), body)
    with pytest.raises(Unverified, match="not encrypted"):
        safe().verify(request)

    both = safe(plain=True)
    assert both.verify(request).body == body
    assert both.verify(send(safe(), body)).body == body
    assert not both.covers_body


def test_a_plain_message_needs_the_signature_that_is_its_own():
    request = send(safe(), xml(**text_message()))
    query = "&".join(p for p in request.query_string.split("&") if not p.startswith("signature"))
    body = xml(**text_message(Content="forged"))
    unverified(safe(plain=True), replace(request, query_string=query, body=body))


def test_without_a_key_an_encrypted_message_is_refused():
    plain = source("wechat", secrets="AAAAA")
    compatible = {**text_message(), "Encrypt": SECURE["encrypt"]}
    for body in (BODY, json.dumps(compatible).encode(), xml(**compatible)):
        with pytest.raises(Unverified, match="aes_key"):
            plain.verify(post(POST, body, AT))


def test_the_receive_id_is_one_of_the_configured_or_anybodys():
    request = post(POST, BODY, AT)
    for receive_id in (["wx0", "wxba5fad812f8e6fb9"], "*", ["wx0", "*"]):
        assert safe(receive_id=receive_id).verify(request).account == "wxba5fad812f8e6fb9"
    for receive_id in ("", "wx0", "wxba5fad812f8e6fb", "wxba5fad812f8e6fb9 "):
        unverified(safe(receive_id=receive_id), request)
    assert safe(receive_id="").verify(send(safe(receive_id="*"), b"{}")).body == b"{}"


def test_what_cannot_be_decrypted_is_refused_in_one_way():
    """Whatever is wrong behind a right signature: no oracle."""
    sealed = b64decode(SECURE["encrypt"])
    bodies = [sealed[:16], sealed[:-16], sealed[:-1], sealed[:-1] + b"\0", sealed[16:], b"", b"x"]
    details = set()
    for body in bodies:
        encrypted = b64encode(body).decode()
        proof = signature("AAAAA", POST["timestamp"], POST["nonce"], encrypted)
        with pytest.raises(Unverified) as error:
            query = {**POST, "msg_signature": proof}
            safe().verify(post(query, xml(Encrypt=encrypted), AT))
        details.add(error.value.detail)
    with pytest.raises(Unverified) as error:
        safe(receive_id="wx0").verify(post(POST, BODY, AT))
    # An empty Encrypt is none at all.
    assert len({*details, error.value.detail} - {"The message is not encrypted."}) == 1


@pytest.mark.parametrize("options", [{"aes_key": "A" * 42}, {"plain": "maybe"}, {"nonsense": 1}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValidationError):
        safe(**options)


queries = st.text(max_size=80) | st.dictionaries(
    st.sampled_from([*POST, "echostr"]), st.sampled_from([*POST.values(), "", "ü", "17e9"])
)


@given(
    queries, spoilt(st.sampled_from([BODY, xml(**text_message()), xml(Encrypt=SECURE["encrypt"])]))
)
def test_spoilt_requests_are_refused_or_say_what_they_said(query, body):
    expected = safe().verify(post(POST, BODY, AT))
    for receiver in (safe(), safe(plain=True), source("wechat", secrets="AAAAA")):
        for request in (post(query, body, AT), post(POST, body, AT)):
            try:
                verified = receiver.verify(request)
            except (BadRequest, Unverified):
                continue
            assert not receiver.covers_body or verified == replace(
                expected, context=verified.context
            )
        try:
            receiver.handshake(get(query, AT))
        except (BadRequest, Unverified):
            continue
        assert query == {**query, **{name: POST[name] for name in GET}}
