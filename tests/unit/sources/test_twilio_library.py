"""Twilio's scheme against its own library, both ways, on random messages."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote, quote_plus, urlencode

from hypothesis import assume, given
from hypothesis import strategies as st
from twilio.request_validator import RequestValidator

from gateway.sources.base import Draft, Signed, Source
from gateway.sources.senders.twilio import SETTINGS
from tests.unit.sources.examples import NOW
from tests.unit.sources.messages import is_secret
from tests.unit.sources.sending import PUBLIC_URL, received, receiver, send, sender, unverified

characters = st.characters(codec="utf-8", exclude_categories=["C"])
secrets = st.text(characters, min_size=1, max_size=40).filter(is_secret)
objects = st.text(max_size=300).map(lambda text: "{" + text)
ids = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=40)


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
        PUBLIC_URL,
        "http://example.com",
        "http://example.com:8080",
        "https://example.com:443",
        "https://example.com/prefix",
        "https://example.com:8443/prefix/",
    ]
)


def twilio(token: str, public_url: str) -> Source:
    source = sender("twilio", secrets=token)
    return type(source)(source.options, public_url)


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
    algorithm = f"HMAC_SHA{bits}"
    headers = {
        "X-Twilio-Signature": RequestValidator(token).compute_signature(
            signed_url, Form(form), algorithm
        )
    }
    if bits == 256:
        headers[SETTINGS] = f"key=k1,algorithm={algorithm}"
    body = "&".join(f"{quote_plus(k)}={quote_plus(v)}" for k, v in form).encode()
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
    body = "&".join(f"{quote_plus(k)}={quote_plus(v)}" for k, v in form).encode()
    # Sent to where the gateway listens, signed for where senders see it.
    signed = source.sign(Draft(body, f"http://127.0.0.1:8000{target}", NOW))
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
