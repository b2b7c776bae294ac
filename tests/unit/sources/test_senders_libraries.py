"""The schemes against the senders' own libraries, both ways, on random messages.

Where a sender has no library, against a few lines that follow its documentation.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import quote, quote_plus, urlencode

import pytest
import standardwebhooks
from hypothesis import assume, given
from hypothesis import strategies as st
from nacl.encoding import HexEncoder
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey
from slack_sdk.signature import SignatureVerifier
from stripe import SignatureVerificationError, WebhookSignature
from twilio.request_validator import RequestValidator

from gateway.errors import BadRequest
from gateway.sources.base import Draft, Signed, Source
from gateway.sources.senders.twilio import SETTINGS
from tests.unit.sources.examples import NOW, public
from tests.unit.sources.messages import is_secret
from tests.unit.sources.messages import source as of_scheme
from tests.unit.sources.sending import PUBLIC_URL, URL, received, receiver, send, sender, unverified

characters = st.characters(codec="utf-8", exclude_categories=["C"])
secrets = st.text(characters, min_size=1, max_size=40).filter(is_secret)
keys = st.binary(min_size=1, max_size=80)
# Where a public key is expected, some of these would be of no use.
seeds = st.binary(min_size=32, max_size=32).filter(lambda seed: len(set(seed)) > 2)
texts = st.text(max_size=300)
# Whatever it is, these senders send an object.
objects = texts.map(lambda text: "{" + text)
visible = st.characters(codec="ascii", categories=["L", "N", "P"], exclude_characters=".")
ids = st.text(visible, min_size=1, max_size=40)
times = st.integers(int(NOW) - 299, int(NOW) + 299)


def accepted(scheme: str, source: Source, signed: Signed) -> None:
    """The request is verified, though its JSON may not be readable."""
    request = received(signed)
    try:
        source.verify(request)
    except BadRequest:
        assert scheme in ("discord", "slack", "stripe")
    for body in (request.body + b"\0", request.body[1:], b"x" + request.body):
        if body != request.body:
            unverified(source, replace(request, body=body))


@given(keys, ids, times, texts)
def test_standard_webhooks_verifies_what_its_library_signs(key, identity, time, body):
    secret = "whsec_" + base64.b64encode(key).decode()
    at = datetime.fromtimestamp(time, UTC)
    signature = standardwebhooks.Webhook(secret).sign(identity, at, body)
    headers = {"webhook-id": identity, "webhook-timestamp": str(time)}
    headers["webhook-signature"] = f"v1,AAAA v2,BBBB {signature}"
    accepted("standard", sender("standard", secrets=secret), Signed(body.encode(), headers))


@given(keys, ids, texts)
def test_standard_webhooks_library_verifies_what_we_sign(key, identity, body):
    secret = base64.b64encode(key).decode()
    now = datetime.now(UTC).timestamp()
    source = sender("standard", secrets=secret)
    signed = source.sign(Draft(body.encode(), URL, now, identity=identity))
    library = standardwebhooks.Webhook(secret)
    library.verify(signed.body, signed.headers, json_parse=False)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        library.verify(signed.body + b" ", signed.headers, json_parse=False)


@given(seeds, ids, times, st.binary(max_size=300))
def test_standard_webhooks_v1a_agrees_with_libsodium(seed, identity, time, body):
    key = SigningKey(seed)
    source = sender("standard", secrets="whpk_" + base64.b64encode(public(seed)).decode())
    message = f"{identity}.{time}.".encode() + body
    headers = {"svix-id": identity, "svix-timestamp": str(time)}
    headers["svix-signature"] = "v1a," + base64.b64encode(key.sign(message).signature).decode()
    accepted("standard", source, Signed(body, headers))
    ours = sender("standard", secrets="whpk_" + base64.b64encode(seed).decode())
    signed = ours.sign(Draft(body, URL, time, identity=identity))
    version, _, signature = signed.headers["webhook-signature"].partition(",")
    assert version == "v1a"
    key.verify_key.verify(message, base64.b64decode(signature))


@given(secrets, times, objects)
def test_stripe_verifies_what_its_library_signs(secret, time, body):
    header = WebhookSignature.generate_signature_header(body, secret, time)
    signed = Signed(body.encode(), {"Stripe-Signature": f"{header},v1={'0' * 64},v0=abc"})
    accepted("stripe", sender("stripe", secrets=secret), signed)


@given(secrets.filter(str.strip), times, objects)
def test_stripes_library_verifies_what_we_sign(secret, time, body):
    signed = sender("stripe", secrets=secret).sign(Draft(body.encode(), URL, time))
    header = signed.headers["stripe-signature"]
    assert WebhookSignature.verify_header(signed.body, header, secret)
    with pytest.raises(SignatureVerificationError):
        WebhookSignature.verify_header(signed.body + b" ", header, secret)


class Clock:
    def now(self) -> float:
        return NOW


@given(secrets.filter(str.strip), times, objects)
def test_slack_agrees_with_its_library(secret, time, body):
    library = SignatureVerifier(secret, Clock())
    source = sender("slack", secrets=secret)
    headers = {
        "X-Slack-Request-Timestamp": str(time),
        "X-Slack-Signature": library.generate_signature(timestamp=str(time), body=body),
    }
    accepted("slack", source, Signed(body.encode(), headers))
    signed = source.sign(Draft(body.encode(), URL, time))
    assert library.is_valid_request(signed.body, signed.headers)
    assert not library.is_valid_request(signed.body + b" ", signed.headers)


@given(seeds, times, objects)
def test_discord_agrees_with_libsodium(seed, time, body):
    message = f"{time}{body}".encode()
    key = SigningKey(seed)
    headers = {
        "X-Signature-Ed25519": key.sign(message, HexEncoder).signature.decode(),
        "X-Signature-Timestamp": str(time),
    }
    source = sender("discord", secrets=public(seed).hex())
    accepted("discord", source, Signed(body.encode(), headers))
    signed = sender("discord", secrets=seed.hex()).sign(Draft(body.encode(), URL, time))
    signature = bytes.fromhex(signed.headers["x-signature-ed25519"])
    VerifyKey(public(seed)).verify(message, signature)
    with pytest.raises(BadSignatureError):
        VerifyKey(public(seed)).verify(message + b" ", signature)


def as_documented(scheme: str, secret: str, body: bytes) -> dict[str, str]:
    """Return the header that the sender's documentation has one compute."""
    mac = hmac.new(secret.encode(), body, hashlib.sha256)
    in_base64 = base64.b64encode(mac.digest()).decode()
    return {
        "github": {"X-Hub-Signature-256": "sha256=" + mac.hexdigest()},
        "meta": {"X-Hub-Signature-256": "sha256=" + mac.hexdigest()},
        "shopify": {"X-Shopify-Hmac-Sha256": in_base64},
        "x": {"x-twitter-webhooks-signature": "sha256=" + in_base64},
    }[scheme]


@pytest.mark.parametrize("scheme", ["github", "meta", "shopify", "x"])
@given(secret=secrets, body=st.binary(max_size=300).map(lambda body: b"{" + body))
def test_signatures_of_the_body_are_as_documented(scheme, secret, body):
    source, headers = sender(scheme, secrets=secret), as_documented(scheme, secret, body)
    accepted(scheme, source, Signed(body, headers))
    signed = source.sign(Draft(body, URL, NOW)).headers
    assert signed == {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize(
    ("scheme", "header"),
    [("gitlab", "X-Gitlab-Token"), ("telegram", "X-Telegram-Bot-Api-Secret-Token")],
)
@given(data=st.data())
def test_tokens_are_sent_as_documented(scheme, header, data):
    secret = data.draw(
        secrets if scheme == "gitlab" else st.from_regex(r"[A-Za-z0-9_-]{1,256}", fullmatch=True)
    )
    on_the_wire = secret.encode().decode("latin-1")
    source = sender(scheme, secrets=secret)
    assert source.verify(received(Signed(b"{}", {header: on_the_wire}))).body == b"{}"
    assert source.sign(Draft(b"{}", URL, NOW)).headers == {header.lower(): on_the_wire}
    unverified(source, received(Signed(b"{}", {header: on_the_wire + "-"})))


class Form(list):
    """A form's fields as Twilio's library wants them: it knows Flask's and Django's classes."""

    def __iter__(self):
        return iter({key for key, _ in super().__iter__()})

    def getall(self, name: str) -> list[str]:
        return [value for key, value in super().__iter__() if key == name]


names = st.sampled_from(["From", "To", "Body", "Body1", "MediaUrl0", "ä", "a b", "x"]) | st.text(
    max_size=5
)
forms = st.lists(st.tuples(names, st.text(max_size=20)), max_size=8)
paths = st.text(max_size=20).map(lambda text: "/in" + quote(text))
queries = st.lists(st.tuples(ids, st.text(max_size=10)), max_size=3).map(urlencode)
public_urls = st.sampled_from(
    [
        PUBLIC_URL, "http://example.com", "http://example.com:8080", "https://example.com:443",
        "https://example.com/prefix", "https://example.com:8443/prefix/",
    ]
)  # fmt: skip


def twilio(token: str, public_url: str) -> Source:
    return of_scheme("twilio", public_url, secrets=token)


def urlencoded(form: list[tuple[str, str]]) -> bytes:
    return "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in form).encode()


@given(secrets, forms, paths, queries, public_urls, st.booleans(), st.sampled_from([1, 256]))
def test_twilio_verifies_what_its_library_signs(token, form, path, query, url, port, bits):
    target = f"{path}?{query}" if query else path
    signed_url = url.rstrip("/") + target
    host = url.split("/")[2]
    if port and ":" in host:
        signed_url = signed_url.replace(host, host.split(":")[0], 1)
    elif port:
        added = f"{host}:{443 if url.startswith('https') else 80}"
        signed_url = signed_url.replace(host, added, 1)
    algorithm, library = f"HMAC_SHA{bits}", RequestValidator(token)
    proof = library.compute_signature(signed_url, Form(form), algorithm)
    headers = {"X-Twilio-Signature": proof}
    if bits == 256:
        headers[SETTINGS] = f"key=k1,algorithm={algorithm}"
    body = urlencoded(form)
    request = received(Signed(body, headers), target)
    source = twilio(token, url)
    assert source.verify(request).body == body
    for changed in (
        replace(request, body=body + b"&Body=other"),
        replace(request, path=path + "/"),
        replace(request, query_string=query + "&a=b"),
        replace(request, headers={**request.headers, SETTINGS: "algorithm=HMAC_MD5"}),
    ):
        unverified(source, changed)


@given(secrets, forms, paths, queries, public_urls)
def test_twilios_library_verifies_what_we_sign(token, form, path, query, url):
    source = twilio(token, url)
    target = f"{path}?{query}" if query else path
    # Sent to where the gateway listens, signed for where senders see it.
    signed = source.sign(Draft(urlencoded(form), f"http://127.0.0.1:8000{target}", NOW))
    library, signature = RequestValidator(token), signed.headers["x-twilio-signature"]
    whole = url.rstrip("/") + target
    assert library.validate(whole, Form(form), signature)
    assert not library.validate(whole, Form([*form, ("Body", "other")]), signature)


@given(secrets, objects, paths, queries, public_urls)
def test_twilio_agrees_with_its_library_on_json(token, body, path, query, url):
    assume("bodySHA256" not in query)  # Twilio adds it, and its library looks at one only
    source = twilio(token, url)
    target = f"{path}?{query}" if query else path
    signed = source.sign(Draft(body.encode(), f"http://127.0.0.1{target}", NOW))
    request = received(signed, target)
    whole = f"{url.rstrip('/')}{path}?{request.query_string}"
    library, signature = RequestValidator(token), signed.headers["x-twilio-signature"]
    assert library.validate(whole, body, signature)
    assert not library.validate(whole, body + " ", signature)
    assert library.compute_signature(whole, {}) == signature
    assert source.verify(received(signed, target)).body == signed.body


def test_a_field_without_an_equals_sign_is_refused_although_the_signed_text_is_the_same():
    request = send("twilio")
    assert b"CallStatus=ringing" in request.body
    body = request.body.replace(b"CallStatus=ringing", b"CallStatusringing")
    unverified(receiver("twilio"), replace(request, body=body))
