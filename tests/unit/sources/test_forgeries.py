"""What a hostile or careless sender can do with a block: each of these was possible once."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.delivery import Request
from gateway.errors import BadRequest, BodyTooLarge, SignatureMismatch, SignatureMissing, Unverified
from gateway.sources import declared, find, places, proofs, reading
from gateway.sources.base import Draft, Signed, Source
from gateway.sources.reading import MISSING
from tests.unit.sources.examples import NOW
from tests.unit.sources.sending import URL, own, received, receiver, sender, unverified


def request(method: str, query: str) -> Request:
    return Request(method, "/in", query, {}, b"", "192.0.2.1", 0.0, NOW)


def verified(scheme: str, message: Any, url: str = URL, **headers: str) -> Any:
    """Return what is known of a message that the sender of `scheme` has signed."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    signed = sender(scheme).sign(Draft(body, url, NOW))
    signed.headers.update(headers)
    return receiver(scheme).verify(received(signed, url))


@pytest.mark.parametrize(
    ("scheme", "message", "event"),
    [
        ("sendgrid", [{"event": "open"}, {"event": "bounce"}, {"event": "open"}], "open,bounce"),
        ("sendgrid", [{"event": "open"}, {"other": 1}], "open"),
        ("sendgrid", [], ""),
        ("hubspot", [{"subscriptionType": "a"}, {"subscriptionType": "b"}], "a,b"),
        ("meta",
         {"object": "page", "entry": [{"changes": [{"field": "feed"}, {"field": "mention"}]}]},
         "page.feed,page.mention"),
        ("xero",
         {"events": [
             {"eventCategory": "CONTACT", "eventType": "UPDATE"},
             {"eventCategory": "INVOICE", "eventType": "CREATE"},
             {"eventCategory": "INVOICE"}, {"eventType": "UPDATE"}, 1,
         ]},
         "CONTACT.UPDATE,INVOICE.CREATE,INVOICE"),
    ],
)  # fmt: skip
def test_a_batch_has_the_events_of_all_its_items(scheme, message, event):
    assert verified(scheme, message).event == event


#: A megabyte of JSON that takes long to parse.
LARGE = b"[" + b"{}," * 340_000 + b"{}]"
HANDSHAKE = {"method": "POST", "signed": False, "when": {"json:/a": "b"}}


@pytest.mark.parametrize(
    ("scheme", "options", "error"),
    [
        ("linear", {}, SignatureMismatch),
        ("pusher", {}, SignatureMismatch),
        ("adyen", {}, BodyTooLarge),
        ("mailgun", {}, BodyTooLarge),
        ("dropbox_sign", {}, BodyTooLarge),
        ("hmac", {"handshakes": [HANDSHAKE]}, SignatureMissing),
        ("hmac", {"signed": "{time}{body|sortedform}"}, BodyTooLarge),
        ("hmac", {"signature": "form:a|json:/b"}, BodyTooLarge),
    ],
)
def test_nobody_has_a_large_body_parsed_without_a_signature(monkeypatch, scheme, options, error):
    for module in (declared, places):
        monkeypatch.setattr(module, "read_loosely", lambda _body: pytest.fail("was parsed"))
    found = receiver(scheme, **options)
    proof = {found.block.signature[0].partition(":")[2]: "0"} if "handshakes" not in options else {}
    with pytest.raises(error):
        found.verify(received(Signed(LARGE, {**proof, "X-Time": "1"})))


def test_a_block_may_say_that_its_sender_sends_larger_bodies():
    large = json.dumps({"sig": "0", "x": "x" * 200_000}).encode()
    for most, error in ((None, BodyTooLarge), (300_000, SignatureMismatch)):
        found = own(signature="json:/sig", max_body=most)
        with pytest.raises(error):
            found.verify(received(Signed(large)))


def identities(source: Source, *requests: tuple[bytes, str, dict[str, str]]) -> set[str]:
    """Return the identities of bodies with further queries and headers, all signed."""
    found = set()
    for body, query, headers in requests:
        url = f"{URL}&{query}"
        signed = source.sign(Draft(body, url, NOW))
        both = {**signed.headers, **headers}
        found.add(source.verify(received(Signed(signed.body, both), url)).identity)
    return found


ONE, OTHER = b'{"id":7,"a":1}', b'{"id":7,"a":2}'


@pytest.mark.parametrize(
    ("block", "requests"),
    [
        ({"identity": "digest", "event": "header:X-Event"},
         [(ONE, "", {"X-Event": "a"}), (ONE, "", {"X-Event": "b"})]),
        ({"identity": "digest", "apart": ["header:X-Shop"]},
         [(ONE, "", {"X-Shop": "a"}), (ONE, "", {"X-Shop": "b"})]),
        ({"identity": "query:id"}, [(ONE, "id=7", {}), (OTHER, "id=7", {})]),
        ({"identity": "json:/id", "signed": "{header:X-A}"},
         [(ONE, "", {"X-A": ""}), (OTHER, "", {"X-A": ""})]),
        ({"identity": "json:/id", "algorithm": "equal"}, [(ONE, "", {}), (OTHER, "", {})]),
        ({"identity": ["digest", "json:/id"]}, [(ONE, "", {}), (OTHER, "", {})]),
        ({"identity": "digest", "signed": "{url}{body}"}, [(ONE, "a=1", {}), (ONE, "a=2", {})]),
        ({"identity": "json:/id", "signed": "{body|json:/id}"}, [(ONE, "", {}), (OTHER, "", {})]),
        ({"identity": "form:id", "signed": "{body|sortedform}"},
         [(b"id=7&a=bc", "", {}), (b"id=7&ab=c", "", {})]),
    ],
)  # fmt: skip
def test_two_deliveries_have_two_identities(block, requests):
    found = identities(own(**block), *requests)
    assert len(found) == 2 and "" not in found


def test_an_id_that_is_signed_is_enough():
    assert len(identities(own(identity="json:/id"), (ONE, "", {}), (OTHER, "a=1", {}))) == 1
    by_url = own(identity="query:id", signed="{url}{body}")
    assert len(identities(by_url, (ONE, "id=7", {}), (OTHER, "id=7", {}))) == 1


def test_lines_identity_has_the_ids_of_all_its_events():
    one, other = ({"events": [{"webhookEventId": each} for each in ids]} for ids in ("1", "12"))
    assert verified("line", one).identity != verified("line", other).identity


SIGNED = {"handshakes": [{"method": "GET", "body": "{hmac:query:c}"}]}
PUBLIC = find("sendgrid").block.example["public"]
WEAK = "01" + 31 * "00"


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"time": "sig:t", "list": ",", "pick": "v1"}, "time: sig:t is not signed; write {time}"),
        ({"time": "query:t"}, "time: query:t is not signed"),
        ({"time": "form:t", "signed": "{url}"}, "time: form:t is not signed"),
        ({"time": "json:/t", "signed": "{json:/a}"}, "time: json:/t is not signed"),
        ({"time": "form:t", "signed": "{body|sortedform}"}, "time: form:t is not signed"),
        # No handshake gives the secret away, or fails on its key.
        ({**SIGNED, "algorithm": "equal"}, "handshakes: {hmac:...} needs an hmac algorithm, not"),
        ({**SIGNED, "algorithm": "basic", "secrets": "a:b"}, "needs an hmac algorithm, not basic"),
        ({**SIGNED, "algorithm": "sha256", "signed": "{key}{body}"},
         "needs an hmac algorithm, not sha256"),
        ({**SIGNED, "algorithm": "ecdsa-sha256", "key": "spki", "secrets": PUBLIC},
         "needs an hmac algorithm, not ecdsa-sha256"),
        ({**SIGNED, "key": "whsec", "secrets": f"whpk_{b64encode(bytes(31) + b'2').decode()}"},
         "a public key cannot sign the handshake's answer"),
        ({"handshakes": [{"headers": {"X": "a\r\nY: b"}}]}, "handshakes.0.headers"),
        ({"handshakes": [{"headers": {"X\r\nY": "b"}}]}, "handshakes.0.headers"),
        # A key proves something.
        ({"key": "spki", "secrets": PUBLIC}, "algorithm: spki is a public key"),
        ({"key": "raw-hex", "secrets": "aa" * 32, "algorithm": "equal"}, "algorithm: raw-hex is"),
        ({"key": "hex", "secrets": "aa", "algorithm": "ed25519"}, "key: ed25519 needs a public"),
        ({"secrets": "whpk_aaaa"}, "secrets: a public key is no secret"),
        ({"secrets": "-----BEGIN PUBLIC KEY-----"}, "secrets: a public key is no secret"),
        ({"key": "raw-hex", "algorithm": "ed25519", "secrets": WEAK}, "anybody can make"),
        ({"key": "raw-hex", "algorithm": "ed25519", "secrets": "00" * 32}, "anybody can make"),
        ({"secrets": " "}, "begins or ends with a space or a line end"),
        ({"secrets": ["a", "k\n"]}, "begins or ends with a space or a line end"),
        ({"secrets": "name", "algorithm": "basic"}, "a secret is name:password"),
        ({"secret_form": ["("]}, "secret_form: a regular expression, and what to say"),
        ({"secret_form": ["(", "x"]}, "secret_form: a regular expression, and what to say"),
        ({"secret_form": ["a"]}, "secret_form: a regular expression, and what to say"),
    ],
)  # fmt: skip
def test_a_block_that_would_protect_nothing_is_refused(block, text):
    with pytest.raises(ValidationError, match=re.escape(text)):
        own(**block)


@pytest.mark.parametrize(
    ("signed", "covers"),
    [
        ("{body}", True), ("{body|sha256hex}", True), ("{body|sortedform}", False),
        ("{body|json:/id}", False), ("{body|base64}", False), ("{json:/id}", False),
    ],
)  # fmt: skip
def test_only_all_of_the_body_covers_it(signed, covers):
    assert own(signed=signed).covers_body == covers


@pytest.mark.parametrize("form", ["base64", "sortedform", "sortedform|sha256hex"])
def test_a_body_that_cannot_be_read_as_it_is_signed_is_unverified(form):
    found = own(signed=f"{{body|{form}}}")
    proof = found.sign(Draft(b"", URL, NOW)).headers
    for body in (b"evil=%zz", b"&" * 1_200 + b"evil=1"):
        with pytest.raises(Unverified, match="cannot be read as|signature"):
            found.verify(received(Signed(body, proof)))


def test_dropbox_signs_tries_are_one_delivery_and_other_json_is_another():
    source, event_time = receiver("dropbox_sign"), str(int(NOW) - 100_000)
    key = b"A-secret_token"
    proof = hmac.digest(key, f"{event_time}sent".encode(), "sha256").hex()
    event = {"event_type": "sent", "event_time": event_time, "event_hash": proof}
    found = []
    for boundary, account in (("a", 1), ("b", 1), ("b", 2)):
        text = json.dumps({"event": event, "account": account})
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="json"\r\n\r\n'
        body = f"{head}{text}\r\n--{boundary}--\r\n".encode()
        found.append(source.verify(received(Signed(body))))
    assert {each.event for each in found} == {"sent"}
    assert found[0].identity == found[1].identity != found[2].identity


@pytest.mark.parametrize("scheme", ["linear", "mailgun"])
def test_a_try_with_another_time_is_the_same_delivery(scheme):
    def identity(at: float, number: int) -> str:
        source = receiver(scheme)
        time = int(at * 1_000) if scheme == "linear" else str(int(at))
        message = {
            "webhookTimestamp": time, "createdAt": "2026-01-01", "data": {"id": number},
            "signature": {"timestamp": time, "token": f"t{time}"},
            "event-data": {"id": "E1", "n": number},
        }  # fmt: skip
        signed = source.sign(Draft(json.dumps(message).encode(), URL, at))
        return source.verify(received(signed)).identity

    assert identity(NOW, 1) == identity(NOW + 60, 1) != identity(NOW, 2)


@pytest.mark.parametrize(("scheme", "age"), [("pusher", 400), ("mailgun", 28_800)])
def test_a_try_that_repeats_its_time_is_accepted(scheme, age):
    source = receiver(scheme)
    event, body = source.sample("", "1", NOW - age)
    assert source.verify(received(source.sign(Draft(body, URL, NOW - age, event)))).identity
    options = {"scheme": scheme, "secrets": "A-secret_token", "tolerance": 9}
    assert source.options_class.model_validate(options).tolerance == 9


@pytest.mark.parametrize("query", ["c=a%0d%0aSet-Cookie:%20x=1", "c=%e4%b8%ad", "c=%00"])
def test_no_handshake_sends_more_headers_than_it_has(query):
    echo = {"method": "GET", "when": {"query:c": "*"}, "headers": {"X-Echo": "{query:c}"}}
    found = own(handshakes=[echo])
    with pytest.raises(Unverified, match="visible ASCII"):
        found.handshake(request("GET", query))
    assert found.handshake(request("GET", "c=a%20b")).headers == {"x-echo": "a b"}


def test_a_signed_handshake_is_answered_with_the_key_that_signed_it():
    signed = {"when": {"json:/a": "b"}, "body": "{hmac:json:/a}"}
    found, body = own(secrets=["old", "new"], handshakes=[signed]), b'{"a":"b"}'
    proof = hmac.digest(b"new", body, "sha256").hex()
    answer = found.verify(received(Signed(body, {"X-Sig": proof}))).challenge
    assert answer.body.decode() == hmac.digest(b"new", b"b", "sha256").hex()


def test_the_names_of_secret_headers_may_have_capitals():
    assert own(secret_headers=["X-Old-Sig"]).secret_headers == {"x-sig", "x-old-sig"}


@pytest.mark.parametrize(
    ("scheme", "written"),
    [
        ("twitch", "%Y-%m-%dT%H:%M:%S.123456789Z"), ("zendesk", "%Y-%m-%dT%H:%M:%SZ"),
        ("orb", "%Y-%m-%dT%H:%M:%S.5+00:00"), ("orb", "%Y-%m-%dT%H:%M:%S.5"),
    ],
)  # fmt: skip
def test_nothing_moves_from_the_time_into_the_body(monkeypatch, scheme, written):
    source, body = receiver(scheme), b'{"id":"1","type":"a"}'
    when = datetime.fromtimestamp(NOW, UTC).strftime(written)
    monkeypatch.setattr(source, "_unit", source._unit._replace(write=lambda _now: when))
    headers = source.sign(Draft(body, URL, NOW, "a", "1")).headers
    assert source.verify(received(Signed(body, headers)))
    (name,) = (name for name, value in headers.items() if value == when)
    separator = b":" if scheme == "orb" else b""
    for i in range(1, len(when)):
        rest = when[i:].encode().removeprefix(separator) + separator
        moved = Signed(rest + body, {**headers, name: when[:i]})
        unverified(source, received(moved))


@pytest.mark.parametrize(
    ("block", "id_header"),
    [
        ({"signed": "{id}.{time}.{body}", "id": "header:X-Id", "time": "header:X-Time"}, "X-Id"),
        ({"signed": "{header:X-Nonce}.{body}"}, "X-Nonce"),
    ],
)
def test_nothing_moves_from_the_body_into_the_id(block, id_header):
    found, time = own(**block), str(int(NOW))
    body = f"1.{time}.2".encode()
    headers = found.sign(Draft(body, URL, NOW, identity="i")).headers
    headers[id_header] = "i"
    head, moved = (f"i.{time}.", "2") if "time" in block else ("i.", f"{time}.2")
    headers["X-Sig"] = hmac.digest(b"key", head.encode() + body, "sha256").hex()
    assert found.verify(received(Signed(body, headers)))
    inside = f"{head}1"
    with pytest.raises(Unverified, match=r"contains '\.', which ends it"):
        found.verify(received(Signed(moved.encode(), {**headers, id_header: inside})))


@pytest.mark.parametrize("event", [None, "json:/type"])
def test_of_members_with_one_name_the_last_counts_for_every_reader(event):
    found = own(identity="json:/id", event=[event] if event else [])
    body = b'{"id":"1","id":"2"}'
    verified = found.verify(received(found.sign(Draft(body, URL, NOW))))
    assert json.loads(verified.identity)[0] == "2"


@pytest.mark.parametrize(
    ("scheme", "error"),
    [("dingtalk", BadRequest), ("feishu", SignatureMissing), ("wecom", BadRequest)],
)
def test_no_large_envelope_is_parsed_without_a_signature(monkeypatch, scheme, error):
    monkeypatch.setattr(reading.json, "loads", lambda *_, **__: pytest.fail("was parsed"))
    monkeypatch.setattr(reading, "_decode_loosely", lambda _text: pytest.fail("was parsed"))
    query = f"msg_signature=0&timestamp={int(NOW)}&nonce=1"
    query += "&signature=0" if scheme == "dingtalk" else ""
    with pytest.raises(error):
        receiver(scheme).verify(replace(request("POST", query), body=b'{"a":' + LARGE + b"}"))


def test_a_body_that_is_signed_as_a_whole_may_be_large():
    found = own(id="json:/id", time="json:/t", event="json:/e")
    body = json.dumps({"id": 7, "t": int(NOW), "e": "a", "x": "x" * 200_000}).encode()
    verified = found.verify(received(found.sign(Draft(body, URL, NOW))))
    assert (json.loads(verified.identity), verified.event) == ([7, "a"], "a")


def test_the_hash_of_a_header_takes_no_digests_place():
    block = {"identity": "query:id", "apart": ["header:X-A|sha256hex"]}
    found = identities(own(**block), (ONE, "id=7", {"X-A": "a"}), (OTHER, "id=7", {"X-A": "a"}))
    assert len(found) == 2


def test_mailguns_bodies_without_an_event_are_told_apart():
    message = {"signature": {"timestamp": str(int(NOW)), "token": "t"}}
    one, other = verified("mailgun", message), verified("mailgun", {**message, "x": 1})
    assert "" != one.identity != other.identity


@pytest.mark.parametrize("signed", ["{key}{body}", "{key}{method}{body}", "{body}{key}"])
def test_nobody_continues_a_plain_hash(signed):
    found = own(algorithm="sha256", signed=signed)
    # After a body comes SHA-256's own padding, and then what somebody appends.
    for body in ("größe".encode(), b"[1]\x80\0\0\0\0\0\0\x30[2]"):
        text = signed.format(key="key", method="POST", body="\n").encode().replace(b"\n", body)
        request = received(Signed(body, {"X-Sig": hashlib.sha256(text).hexdigest()}))
        if signed.endswith("{key}") or b"[" not in body:
            assert found.verify(request)
        else:
            with pytest.raises(Unverified, match="not UTF-8"):
                found.verify(request)


def form(body: bytes) -> Request:
    return replace(request("POST", ""), body=body)


@pytest.mark.parametrize("altered", [b"a=1%26b=2", b"a=1&b.c=2&d%3D3%26e=4", b"a%3D1%26b=2&c=3"])
def test_fields_that_are_written_as_one_are_not_the_signed_ones(altered):
    source = own(signature="header:x-sig", signed="{body|pairs:sign}", identity="form:a")
    plain = altered.replace(b"%26", b"&").replace(b"%3D", b"=")
    signed = source.sign(Draft(plain, URL, NOW))
    assert source.verify(received(signed)).body == plain
    unverified(source, received(replace(signed, body=altered)))


GRAPH = [{"clientState": "old", "changeType": "a"}, {"clientState": "new", "changeType": "b"}]


@pytest.mark.parametrize("state", ["other", "", None, ["old"], MISSING])
def test_each_item_of_a_batch_needs_a_secret(state):
    block = {"secrets": ["old", "new"], "signature": "json:/value/*/clientState"}
    proven = own(**block, algorithm="equal", event="json:/value/*/changeType")
    required = own(signature="header:x-sig", require={"json:/value/*/clientState": "old"})
    foreign: Any = {"changeType": "c"} | ({} if state is MISSING else {"clientState": state})
    for source, good in ((proven, GRAPH), (required, [GRAPH[0]])):
        for items in (good, [*good, foreign], [foreign, *good], [*good, 1], []):
            body = json.dumps({"value": items}).encode()
            signed = required.sign(Draft(body, URL, NOW))
            if items is good:
                assert source.verify(received(signed)).body == body
            else:
                unverified(source, received(signed))


def test_of_each_item_only_a_secret_is_read():
    with pytest.raises(ValidationError, match="it is the secret of each item"):
        own(signature="json:/value/*/sig", algorithm="hmac-sha256")


def test_a_secret_may_have_any_characters_at_any_place():
    wanted, written = "größe \u4e2d", "\\u4e2d"
    for place in ("json:/a", "query:a", "form:a"):
        source = own(secrets=[wanted, written], signature=place, algorithm="equal")
        body = b'{"b": 1}' if place.startswith("json") else b"b=1"
        assert source.verify(received(source.sign(Draft(body, URL, NOW))))
        other = own(secrets="\u4e2d", signature=place, algorithm="equal")
        unverified(source, received(other.sign(Draft(body, URL, NOW))))


def test_a_token_in_the_body_whose_claims_are_no_base64_is_unverified():
    source = own(signature="body", algorithm="jwt", tolerance=0)
    unverified(source, form(b"eyJhbGciOiJIUzI1NiJ9.A.sig"))


def test_a_text_like_the_sign_for_a_key_is_a_text():
    assert proofs.joined([b"\0key", b"a"], []) == [b"\0keya"]
    assert proofs.joined([proofs.KEY, b"a"], [b"k", b"l"]) == [b"ka", b"la"]


def test_what_is_required_of_a_value_that_is_not_there_is_not_met():
    source = own(id=["header:x-id", "header:y-id"], require={"header:z": "{id}"})
    signed = source.sign(Draft(b"{}", URL, NOW))
    without = {name: text for name, text in signed.headers.items() if name.lower() == "x-sig"}
    unverified(source, received(replace(signed, headers={**without, "z": "some"})))


def test_an_envelope_with_many_references_is_refused_unread():
    body = b"<xml><Encrypt>" + b"&#65;" * 2_000 + b"</Encrypt></xml>"
    query = f"msg_signature=1&timestamp={NOW:.0f}&nonce=1"
    with pytest.raises(BadRequest):
        receiver("wecom").verify(replace(form(body), query_string=query))


def test_lists_of_events_are_paired_only_where_they_are_one():
    own(signature="header:x", event="json:/a/*/b", subevent="json:/a/*/c")
    with pytest.raises(ValidationError, match="subevent: with"):
        own(signature="header:x", event="json:/a/*/b", subevent="json:/d/*/c")
