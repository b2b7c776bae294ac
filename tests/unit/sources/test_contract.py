"""What `gateway.sources.base.Source` promises, of every scheme in the table."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import parse_qsl
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.delivery import Request
from gateway.errors import BadRequest, Unverified
from gateway.sources import BLOCKS, OWN, SCHEMES, find
from gateway.sources.base import as_list
from tests.support.each import for_each
from tests.unit.sources.examples import EXAMPLES, IN_BODY, NOW
from tests.unit.sources.sending import PUBLIC_URL, ends, receiver, send, sender, unverified

EVERY = sorted(set(SCHEMES) - IN_BODY)
every_scheme = for_each("scheme", EVERY)
timed = for_each("scheme", sorted(s for s in EXAMPLES if EXAMPLES[s].timed))


def changed(request: Request, name: str, value: str | None) -> Request:
    """Return `request` with the header or the query parameter `name` changed, or without it."""
    if name in request.headers:
        headers = {**request.headers, name: value}
        if value is None:
            del headers[name]
        return replace(request, headers=headers)
    fields = [field.partition("=") for field in request.query_string.split("&")]
    fields = [(k, "=", value if k == name else v) for k, _, v in fields]
    query = "&".join("".join(field) for field in fields if field[2] is not None)
    return replace(request, query_string=query)


@pytest.mark.parametrize("text", ["7", "007", "same-1", 'a"b\\c', "a&b=c%d", "<a]]>", "größe"])
def test_samples_can_be_read_whatever_their_id_is(text):
    for scheme in SCHEMES:
        _, body = ends(scheme)[0].sample("", text, NOW, text)
        if body.startswith((b"{", b"[")):
            json.loads(body)
        elif body.startswith(b"<"):
            assert text in "".join(ElementTree.fromstring(body).itertext())
        else:
            assert any(text in value for _, value in parse_qsl(body.decode(), strict_parsing=True))


@every_scheme
def test_what_a_sender_signs_is_verified(scheme):
    example = EXAMPLES[scheme]
    verified = receiver(scheme).verify(send(scheme))
    assert verified.body == example.body
    assert verified.event == example.event
    assert example.identity in verified.identity
    assert verified.challenge is None


@pytest.mark.parametrize("scheme", EVERY)
@given(data=st.data())
def test_any_body_comes_through_as_it_was_sent(scheme, data):
    body = data.draw(EXAMPLES[scheme].bodies)
    assert ends(scheme)[1].verify(send(scheme, body)).body == body


@every_scheme
def test_a_second_try_has_the_same_identity_and_another_delivery_none_of_it(scheme):
    source = receiver(scheme)
    first, second = (source.verify(send(scheme, at=NOW - before)) for before in (5, 0))
    assert first.identity == second.identity
    assert bool(first.identity) == source.identifies


@for_each("scheme", sorted(SCHEMES))
def test_any_of_several_secrets_verifies_and_another_one_does_not(scheme):
    example = EXAMPLES[scheme]
    given = as_list((example.receiver or example.options)["secrets"])
    for secrets in ([*given, example.other_secret], [example.other_secret, *given]):
        assert receiver(scheme, secrets=secrets).verify(send(scheme))
    unverified(receiver(scheme, secrets=[example.other_secret, *given[1:]]), send(scheme))


def proof_of(scheme: str, request: Request) -> str:
    name = EXAMPLES[scheme].proof
    query = dict(field.split("=", 1) for field in request.query_string.split("&"))
    return request.headers.get(name) or query[name]


@every_scheme
def test_another_secret_does_not_verify_and_why_not_tells_nothing_secret(scheme):
    example, request = EXAMPLES[scheme], send(scheme)
    # Where a public key is not enough, with the same id.
    others = as_list((example.receiver or example.options)["secrets"])[1:]
    with pytest.raises(Unverified) as error:
        receiver(scheme, secrets=[example.other_secret, *others]).verify(request)
    proof = proof_of(scheme, request)
    for secret in (*as_list(example.options["secrets"]), example.other_secret, proof):
        assert secret not in str(error.value)


@every_scheme
def test_no_proof_or_no_such_proof_is_unverified(scheme):
    source, request = receiver(scheme), send(scheme)
    for value in (None, "", " ", "a", "ÿ" * 40, "€", "a" * 16_000):
        unverified(source, changed(request, EXAMPLES[scheme].proof, value))


@every_scheme
def test_each_character_of_the_proof_counts(scheme):
    source, request = receiver(scheme), send(scheme)
    proof = proof_of(scheme, request)
    for i, character in enumerate(proof):
        # Another one, which may stand in all encodings but is never the same in any.
        other = "b" if character in "aA" else "a"
        for by in {other, character.swapcase(), "", "é"} - {character}:
            spoilt = proof[:i] + by + proof[i + 1 :]
            unverified(source, changed(request, EXAMPLES[scheme].proof, spoilt))


@every_scheme
def test_each_byte_of_a_covered_body_counts(scheme):
    source, request = receiver(scheme), send(scheme)
    if not source.covers_body:
        if scheme != "paypal":  # which covers a checksum of it
            assert source.verify(replace(request, body=request.body + b" ")).body != request.body
        return
    for i, byte in enumerate(request.body):
        body = request.body[:i] + bytes([byte ^ 1]) + request.body[i + 1 :]
        with pytest.raises((Unverified, BadRequest)):
            source.verify(replace(request, body=body))


@timed
def test_a_proof_from_another_time_is_unverified(scheme):
    tolerance = receiver(scheme).options.tolerance
    for off in (-2 - tolerance, 2 + tolerance, -(10**9), 10**9):
        request = send(scheme, at=NOW + off)
        unverified(receiver(scheme), request)
        assert receiver(scheme, tolerance=0).verify(request).body == EXAMPLES[scheme].body


@timed
def test_clocks_may_differ_by_the_tolerance(scheme):
    for off in (-299, 299):
        receiver(scheme).verify(send(scheme, at=NOW + off))
        unverified(receiver(scheme, tolerance=298), send(scheme, at=NOW + off))


@every_scheme
def test_what_proves_a_request_is_kept_from_the_task(scheme):
    request, proof = send(scheme), EXAMPLES[scheme].proof
    assert proof in receiver(scheme).secret_headers or proof not in request.headers
    assert all(name == name.lower() for name in receiver(scheme).secret_headers)


@every_scheme
def test_no_secret_is_a_configuration_error(scheme):
    for secrets in ([], "", [""], ["", "x"], None):
        with pytest.raises(ValidationError):
            sender(scheme, secrets=secrets)


@every_scheme
def test_secrets_do_not_show(scheme):
    secret = as_list(EXAMPLES[scheme].options["secrets"])[0]
    options = sender(scheme).options
    assert secret not in f"{options!r}{options}{options.model_dump()}{options.model_dump_json()}"
    with pytest.raises(ValidationError) as error:
        sender(scheme, secrets=[secret, ""], tolerance=-1, nonsense=secret)
    assert secret not in str(error.value)


@every_scheme
def test_habits_are_those_of_a_sender(scheme):
    found = find(scheme)
    assert found.deadline is None or 0 < found.deadline <= 60
    assert found.deadline is not None or scheme in (*BLOCKS, OWN)
    assert found.tries >= 1
    assert (found.tries > 1) == (found.retry_after > 0)
    assert found.fallback is None or isinstance(found.fallback, str)
    assert found(sender(scheme).options, PUBLIC_URL).public_url == PUBLIC_URL


@pytest.mark.parametrize("scheme", sorted({*SCHEMES} - {*BLOCKS, OWN}))
def test_its_documentation_says_what_is_signed(scheme):
    assert "ign" in find(scheme).__doc__
    assert find(scheme).__doc__.splitlines()[0].endswith((".", ":", ","))
