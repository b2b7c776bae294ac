"""Secrets that cannot be used are found when the configuration is read, and not quoted."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from pydantic import ValidationError

from gateway.delivery import Request
from gateway.sources.base import Draft, Signed
from tests.unit.sources.examples import NOW, public
from tests.unit.sources.sending import URL, received, receiver, send, sender, unverified


def refused(scheme: str, **changes) -> str:
    with pytest.raises(ValidationError) as error:
        sender(scheme, **changes)
    return str(error.value)


@pytest.mark.parametrize(
    ("scheme", "secret", "valid"),
    [
        ("standard", "whsec_==", "base64"),
        ("standard", "whsec_MfKQ9r8GKYq!", "base64"),
        ("standard", "no base64", "base64"),
        ("standard", "größe", "base64"),
        ("standard", "abcde", "base64"),
        ("standard", "whpk_" + base64.b64encode(bytes(31)).decode(), "32 bytes"),
        ("standard", "whpk_" + base64.b64encode(bytes(33)).decode(), "32 bytes"),
        ("standard", "whpk_d75a980182b10ab7d54bfed3c964073a0ee172f3daa6232g", "32 bytes"),
        ("standard", "whsk_" + base64.b64encode(bytes(32)).decode(), "whpk_"),
        ("discord", "d75a980182b10ab7d54bfed3c964073a", "64 hexadecimal digits"),
        ("discord", "g" * 64, "64 hexadecimal digits"),
        ("discord", f"a{' ' * 62}b", "64 hexadecimal digits"),
        ("discord", "٣" * 64, "64 hexadecimal digits"),
        ("telegram", "with spaces", "letters, digits"),
        ("telegram", "a" * 257, "256"),
    ],
)
def test_a_secret_of_no_use_is_refused_with_what_would_be_valid(scheme, secret, valid):
    text = refused(scheme, secrets=[sender(scheme).options.secrets[0], secret])
    assert valid in text
    assert secret not in text


@pytest.mark.parametrize("secret", ["whsec_", "whpk_", "whsec_==", "whsec_ ="])
def test_a_prefix_alone_is_no_key(secret):
    assert "base64" in refused("standard", secrets=secret)


def test_meta_has_no_empty_verify_token():
    assert "verify_token" in refused("meta", verify_token="")


@pytest.mark.parametrize(
    "secret",
    ["whsec_MfKQ9r8G", "MfKQ9r8G", "whsec_MfKQ9r8GKQ==", "MfKQ9r8GKQ", "v1,whsec_MfKQ9r8G"],
)
def test_standard_secrets_with_and_without_prefix_and_padding(secret):
    text = secret.removeprefix("v1,").removeprefix("whsec_").rstrip("=")
    padded = "whsec_" + text + "=" * (-len(text) % 4)
    assert receiver("standard", secrets=padded).verify(send("standard", secrets=secret))


def test_a_secret_of_polar_is_the_key_itself():
    secret = "polar_whs_MfKQ9r8G"
    text = "whsec_" + base64.b64encode(secret.encode()).decode()
    assert receiver("standard", secrets=secret).verify(send("standard", secrets=text))


def test_standard_takes_shared_and_public_keys_side_by_side():
    seed, encode = bytes(range(32)), base64.b64encode
    shared = "whsec_" + encode(b"old").decode()
    keys = ["whpk_" + encode(public(each)).decode() for each in (bytes(32), seed)]
    source = receiver("standard", secrets=[shared, *keys])
    for secret in (shared, "whpk_" + encode(seed).decode()):
        assert source.verify(send("standard", secrets=secret))


def test_a_public_keys_signature_has_one_spelling():
    seed = base64.b64encode(bytes(range(32))).decode()
    key = base64.b64encode(public(bytes(range(32)))).decode()
    source = receiver("standard", secrets=f"whpk_{key}")
    request = send("standard", secrets=f"whpk_{seed}")
    assert source.verify(request)
    signature = request.headers["webhook-signature"]
    assert signature[-3] in "AQgw"  # the next ones differ in bits that no byte has
    other_bits = signature[:-3] + chr(ord(signature[-3]) + 1) + "=="
    for spelled in (other_bits, signature[:-1], signature + "="):
        headers = {**request.headers, "webhook-signature": spelled}
        unverified(source, replace(request, headers=headers))


def test_standard_looks_at_ten_signatures():
    headers = sender("standard").sign(Draft(b"{}", URL, NOW)).headers

    def after(count: int) -> Request:
        proof = "v1a,x " * count + headers["webhook-signature"]
        return received(Signed(b"{}", {**headers, "webhook-signature": proof}))

    assert receiver("standard").verify(after(9))
    unverified(receiver("standard"), after(10))


@pytest.mark.parametrize(
    ("scheme", "header"),
    [
        ("discord", "x-signature-timestamp"),
        ("slack", "x-slack-request-timestamp"),
        ("standard", "webhook-timestamp"),
        ("hmac", "x-time"),
    ],
)
@pytest.mark.parametrize("tolerance", [0, 300])
def test_a_timestamp_is_decimal_digits_and_not_too_many(scheme, header, tolerance):
    request, source = send(scheme), receiver(scheme, tolerance=tolerance)
    for text in (
        *("-", "-1", "+1", "1.0", "1e9", "0x1", "1_0", "٣", "²", "nan", "inf", "1800000000."),
        *("999999999999", "", "9" * 10_000),
    ):
        unverified(source, replace(request, headers={**request.headers, header: text}))


@pytest.mark.parametrize(
    "header",
    [
        "v1={v1}", "t=,v1={v1}", "t={t}", "t={t},v0={v1}", "t={t},v1 ={v1}", "t={t},t={t},v1={v1}",
        "t={t};v1={v1}", "t= {t},v1={v1}", "T={t},V1={v1}", "t={t},v1={v1},t=1", ",,,",
    ],
)  # fmt: skip
def test_stripes_header_has_one_time_and_a_v1(header):
    request = send("stripe")
    t, v1 = (field.split("=")[1] for field in request.headers["stripe-signature"].split(","))
    good = replace(request, headers={"stripe-signature": f"v0=1,v1=abc,t={t},v1={v1},v2=,x"})
    assert receiver("stripe").verify(good)
    bad = replace(request, headers={"stripe-signature": header.format(t=t, v1=v1)})
    unverified(receiver("stripe"), bad)


def test_twilio_signs_the_body_that_is_no_form_through_the_url():
    request = send("twilio", b'{"a": 1}')
    assert receiver("twilio").verify(request).body == b'{"a": 1}'
    without = replace(request, query_string=request.query_string.partition("&bodySHA256")[0])
    for changed in (replace(request, body=b'{"a": 2}'), without):
        unverified(receiver("twilio"), changed)


def test_twilio_reads_a_thousand_fields():
    body = b"&".join(b"a=%d" % i for i in range(1_000))
    assert receiver("twilio").verify(send("twilio", body)).body == body


@pytest.mark.parametrize("body", [b"a=%", b"a=%z0", b"%4", b"a=1&b=%u0126", b"a=1&" * 1_001])
def test_twilio_signs_no_form_that_cannot_be_read(body):
    unverified(receiver("twilio"), replace(send("twilio"), body=body))
