"""The schemes against the senders' published vectors, and each byte of those changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from gateway.delivery import Request
from gateway.errors import Unverified
from gateway.sources import find

VECTORS = {
    vector["name"]: vector
    for vector in json.loads(
        (Path(__file__).parents[2] / "vectors" / "webhooks.json").read_text("utf-8")
    )
}


@dataclass(frozen=True)
class Case:
    """A request as its sender made it, received at `now`."""

    scheme: str
    secret: str
    headers: dict[str, str]
    body: bytes
    url: str = "https://hooks.example.com/hook"
    now: float = 0.0

    def verify(self, **changes: Any) -> Any:
        """Verify it with something changed."""
        case = replace(self, **changes)
        found = find(case.scheme)
        options = found.options_class(scheme=case.scheme, secrets=[case.secret])
        # The receiver is where it is, whatever URL was signed.
        parts, own = urlsplit(case.url), urlsplit(self.url)
        source = found(options, f"{own.scheme}://{own.netloc}")
        request = Request(
            "POST", parts.path, parts.query, case.headers, case.body, "", 0.0, case.now
        )
        return source.verify(request)


def _cases() -> Iterator[Any]:
    github, shopify, stripe = VECTORS["github"], VECTORS["shopify"], VECTORS["stripe"]
    for scheme in ("github", "meta"):
        headers = {"x-hub-signature-256": github["signature"]}
        yield Case(scheme, github["secret"], headers, github["body"].encode())
    headers = {"x-shopify-hmac-sha256": shopify["signature"]}
    yield Case("shopify", shopify["secret"], headers, shopify["body"].encode())
    headers = {"stripe-signature": stripe["header"]}
    yield Case("stripe", stripe["secret"], headers, stripe["body"].encode(), now=1700000000)
    standard = VECTORS["standard-webhooks-v1"]
    for secret in (standard["secret"], standard["secret"].removeprefix("whsec_")):
        for prefix in ("webhook", "svix"):
            yield _standard(secret, standard, prefix)
    twilio = VECTORS["twilio-form"]
    headers = {"x-twilio-signature": twilio["signature"]}
    body = urlencode(twilio["params"]).encode()
    yield Case("twilio", twilio["token"], headers, body, url=twilio["url"])
    discord = VECTORS["ed25519-rfc8032-key1"]["discord"]
    headers = {
        "x-signature-ed25519": discord["signature_hex"],
        "x-signature-timestamp": discord["timestamp"],
    }
    public = VECTORS["ed25519-rfc8032-key1"]["public_hex"]
    yield Case("discord", public, headers, discord["body"].encode(), now=1700000000)
    v1a = VECTORS["ed25519-rfc8032-key1"]["standard_webhooks_v1a"]
    yield _standard(v1a["public"], v1a, "webhook")


def _standard(secret: str, vector: dict[str, str], prefix: str) -> Case:
    headers = {f"{prefix}-{name}": vector[name] for name in ("id", "timestamp", "signature")}
    now = float(vector["timestamp"])
    return Case("standard", secret, headers, vector["body"].encode(), now=now)


CASES = list(_cases())
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.scheme)


def others(text: str, by: str, only: bool = False) -> Iterator[str]:
    """Yield `text` with each character changed, into those in `by` and, or `only`, others."""
    for i, character in enumerate(text):
        more = "" if only else character.swapcase() + chr(ord(character) ^ 1) + "\xff"
        for other in {*by, *more} - {character}:
            yield text[:i] + other + text[i + 1 :]


@every_case
def test_the_vector_is_verified(case):
    assert case.verify().body == case.body


@every_case
def test_each_byte_of_its_body_counts(case):
    for i, byte in enumerate(case.body):
        for by in {byte ^ 1, byte ^ 0x80, 0, 255} - {byte}:
            with pytest.raises(Unverified):
                case.verify(body=case.body[:i] + bytes([by]) + case.body[i + 1 :])
    for body in (b"", case.body[:-1], case.body[1:], case.body + b"\0", case.body * 2):
        with pytest.raises(Unverified):
            case.verify(body=body)


@every_case
def test_each_character_of_its_headers_counts(case):
    for name, value in case.headers.items():
        for changed in others(value, "0A"):
            with pytest.raises(Unverified):
                case.verify(headers={**case.headers, name: changed})


@every_case
def test_each_header_is_needed(case):
    for name in case.headers:
        with pytest.raises(Unverified):
            case.verify(headers={k: v for k, v in case.headers.items() if k != name})


@every_case
def test_each_character_of_its_secret_counts(case):
    prefix = case.secret[:6] if case.secret.startswith(("whsec_", "whpk_")) else ""
    prefix = "" if case.scheme == "stripe" else prefix
    # Those that a key may have; the last one of base64 before `=` has bits that say nothing.
    by = {"standard": "+/", "discord": "01"}.get(case.scheme, "a\xff")
    for secret in others(case.secret.removeprefix(prefix).rstrip("="), by, only=True):
        with pytest.raises(Unverified):
            case.verify(secret=prefix + secret)


def test_each_character_of_twilios_url_counts():
    case = next(case for case in CASES if case.scheme == "twilio")
    start = case.url.index("/", len("https://"))
    for end in others(case.url[start + 1 :], "/"):
        if not set(end) & set("#\r\n\t"):  # which no request target has
            with pytest.raises(Unverified):
                case.verify(url=case.url[: start + 1] + end)
