"""Standard Webhooks, which Svix and GitLab (with a signing token) send as well.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Sequence
from uuid import uuid4

from pydantic import SecretStr, field_validator

from gateway.delivery import Request
from gateway.errors import SignatureMismatch
from gateway.sources import base, ed25519
from gateway.sources.base import Draft, Example, Sample, Signed, Source, Verified
from gateway.sources.fields import identity, name, read_if_json
from gateway.sources.signatures import check_time, header, mac, raw

PUBLIC = "whpk_"
#: Polar's secret is the key itself, all of it. https://github.com/polarsource/polar-python
POLAR = "polar_whs_"
VALID = (
    "a Standard Webhooks secret is base64, with or without `whsec_` or `v1,whsec_` before it, "
    "or `whpk_` and the base64 of an Ed25519 key's 32 bytes"
)
#: Signatures that are checked: there are two while keys are replaced, and each costs CPU time.
MAX_SIGNATURES = 10


class Key(ABC):
    """A key that makes and verifies signatures of one version."""

    version: bytes

    @abstractmethod
    def verifies(self, given: Sequence[bytes], signed: bytes) -> bool:
        """Is one of the `given` signatures, each with its version, made by this key?"""

    @abstractmethod
    def sign(self, signed: bytes) -> bytes:
        """Return the signature with its version."""


class SharedKey(Key):
    """HMAC-SHA256."""

    def __init__(self, key: bytes):
        self._key = hmac.new(key, digestmod="sha256")

    def verifies(self, given: Sequence[bytes], signed: bytes) -> bool:
        expected = self.sign(signed)
        return any(hmac.compare_digest(signature, expected) for signature in given)

    def sign(self, signed: bytes) -> bytes:
        return b"v1," + b64encode(mac(self._key, [signed]))


class PublicKey(Key):
    """Ed25519; `sign` uses the key as the private one."""

    def __init__(self, key: bytes):
        self._seed = key
        self._key = ed25519.public_key(key)

    def verifies(self, given: Sequence[bytes], signed: bytes) -> bool:
        return any(
            ed25519.verifies(self._key, signature, signed)
            for signature in map(_signature, given)
            if signature
        )

    def sign(self, signed: bytes) -> bytes:
        return b"v1a," + b64encode(ed25519.sign(self._seed, signed))


class Options(base.Options):
    """The secrets are the sender's: ``whsec_...``, or a public key, ``whpk_...``."""

    @field_validator("secrets")
    @classmethod
    def _keys(cls, secrets: list[SecretStr]) -> list[SecretStr]:
        for secret in secrets:
            try:
                _key(secret.get_secret_value())
            except ValueError:
                raise ValueError(VALID) from None
        return secrets


class Standard(Source):
    """Signs the id, the time and the body.

    The event is the JSON's ``type`` where the body is JSON and has one; with it ``webhook-id``
    identifies the delivery.
    """

    samples = {
        "": Sample("invoice.paid", '{"type":"$event","timestamp":$time,"data":{"id":"$id"}}')
    }
    example = Example(
        {"secrets": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
        other_secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSx",
        proof="webhook-signature",
        opaque=True,
        timed=True,
    )

    options_class = Options
    options: Options
    deadline = 14.0
    secret_headers = frozenset(["webhook-signature", "svix-signature"])

    def __init__(self, options: Options, public_url: str = ""):
        super().__init__(options, public_url)
        self._keys = [_key(secret.get_secret_value()) for secret in options.secrets]

    def verify(self, request: Request) -> Verified:
        prefix = "svix" if "svix-id" in request.headers else "webhook"
        key = header(request, f"{prefix}-id")
        timestamp = header(request, f"{prefix}-timestamp")
        check_time(timestamp, request.received_at, self.options.tolerance)
        given = raw(header(request, f"{prefix}-signature")).split(b" ")[:MAX_SIGNATURES]
        signed = b"%b.%b.%b" % (raw(key), raw(timestamp), request.body)
        if not any(key.verifies(given, signed) for key in self._keys):
            raise SignatureMismatch
        event = name(read_if_json(request.body).get("type"))
        return Verified(request.body, identity(key, event), event)

    def sign(self, draft: Draft) -> Signed:
        key = draft.identity or f"msg_{uuid4().hex}"
        timestamp = str(int(draft.now))
        signed = b"%b.%b.%b" % (raw(key), timestamp.encode(), draft.body)
        headers = {
            "webhook-id": key,
            "webhook-timestamp": timestamp,
            "webhook-signature": self._keys[0].sign(signed).decode(),
        }
        return Signed(draft.body, headers)


def _key(secret: str) -> Key:
    """Decode the key in `secret`. Raises ValueError."""
    if secret.startswith(PUBLIC):
        return PublicKey(_base64(secret.removeprefix(PUBLIC)))
    if secret.startswith(POLAR):
        return SharedKey(secret.encode())
    # Supabase shows the version before it.
    return SharedKey(_base64(secret.removeprefix("v1,").removeprefix("whsec_")))


def _base64(text: str) -> bytes:
    """Decode base64 with or without padding. Raises ValueError, also where it is empty."""
    key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    if not key:
        raise ValueError("empty")
    return key


def _signature(given: bytes) -> bytes:
    """Return the bytes of an Ed25519 signature; empty where it is not one in canonical base64."""
    version, _, text = given.partition(b",")
    if version != b"v1a":
        return b""
    try:
        signature = b64decode(text, validate=True)
    except ValueError:
        return b""
    return signature if b64encode(signature) == text else b""
