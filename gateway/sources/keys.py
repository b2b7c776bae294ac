"""Keys: what a sender's secret is, and how it makes and verifies signatures."""

from __future__ import annotations

import hashlib
import hmac
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from binascii import hexlify
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.errors import Unverified
from gateway.sources.signatures import mac

#: Stand for the key, and for the name before it in a secret, in the parts of a signed text.
KEY, NAME = b"\0key", b"\0name"
#: The prefixes of Standard Webhooks: of a public key, and of its signatures.
PUBLIC, PUBLIC_VERSION = "whpk_", b"v1a,"
#: How the public keys begin that are texts.
PUBLIC_TEXTS = (PUBLIC, "-----BEGIN PUBLIC KEY", "-----BEGIN CERTIFICATE")
#: Polar's secret is the key itself, all of it. https://github.com/polarsource/polar-python
POLAR = "polar_whs_"

Parts = Sequence[bytes]


class Encoding(NamedTuple):
    """How bytes are written; `decode` raises ValueError."""

    encode: Callable[[bytes], bytes]
    decode: Callable[[bytes], bytes]


ENCODINGS = {
    "hex": Encoding(hexlify, lambda text: bytes.fromhex(text.decode("ascii"))),
    "HEX": Encoding(
        lambda data: data.hex().upper().encode(), lambda text: bytes.fromhex(text.decode())
    ),
    "base64": Encoding(b64encode, lambda text: b64decode(text, validate=True)),
    "base64url": Encoding(
        lambda data: urlsafe_b64encode(data).rstrip(b"="),
        lambda text: urlsafe_b64decode(text + b"=" * (-len(text) % 4)),
    ),
    "base64url-padded": Encoding(urlsafe_b64encode, urlsafe_b64decode),
}
_HASHES = ("sha1", "sha256", "sha384", "sha512")
#: HMACs, and the plain hash of a text that has the key in it.
SHARED = (*(f"hmac-{name}" for name in _HASHES), *_HASHES)
PUBLIC_KEYS = (
    *(f"rsa-{name}" for name in _HASHES), *(f"rsa-pss-{name}" for name in _HASHES[1:]),
    *(f"ecdsa-{name}" for name in _HASHES), "ed25519",
)  # fmt: skip
#: The secret itself is sent, or it is sent as Basic authentication (a secret is `name:password`).
TOKENS = ("equal", "basic")
#: A JSON Web Token: the key's kind decides which algorithms it may name.
JWT = "jwt"
ALGORITHMS = (*SHARED, *PUBLIC_KEYS, *TOKENS, JWT)
#: The HMACs of JSON Web Tokens, with the prefixes of `gateway.sources.jwt.Token.signature`.
JWT_SHARED = {f"HS{size}.".encode(): f"hmac-sha{size}" for size in (256, 384, 512)}
#: The kinds of keys, with what a secret has to be.
KINDS = {
    "utf8": "a text",
    "hex": "a key in hexadecimal digits",
    "base64": "a key in base64",
    "whsec": "a Standard Webhooks secret is base64, with or without `whsec_` or `v1,whsec_` before "
    "it, or `whpk_` and the base64 of an Ed25519 key's 32 bytes",
    "pem": "a public key or a certificate in PEM, also on one line",
    "spki": "a public key in base64 (SubjectPublicKeyInfo), or in PEM",
    "raw-hex": "a public key is 64 hexadecimal digits",
    "raw-base64": "a public key is the base64 of 32 bytes",
}
PUBLIC_KINDS = ("pem", "spki", "raw-hex", "raw-base64")


def joined(parts: Parts, secrets: Parts) -> list[bytes]:
    """Join the parts of a text, once for each of the `secrets` if it has one in it."""
    if KEY not in parts:
        return [b"".join(parts)]
    return [b"".join([each if part is KEY else part for part in parts]) for each in secrets]


class Key(ABC):
    """A key of one sender; signatures have a prefix and an encoding."""

    @abstractmethod
    def sign(self, parts: Parts) -> bytes:
        """Return the signature of the joined `parts` with its prefix."""

    def verifies(self, given: Parts, parts: Parts) -> bool:
        """Is one of the `given` signatures, with their prefix, this key's for `parts`?"""
        expected = self.sign(parts)
        for each in given:  # noqa: SIM110 - a generator takes longer
            if hmac.compare_digest(each, expected):
                return True
        return False


class SharedKey(Key):
    """Both sides have the key: HMAC, or a plain hash.

    `inside`: the signed text has the key in it, or the `name` that belongs to the key.
    """

    def __init__(
        self,
        key: bytes,
        algorithm: str,
        prefix: bytes,
        encoding: Encoding,
        inside: bool,
        name: bytes = b"",
    ):
        self._key, self._name, self._prefix, self._encode = key, name, prefix, encoding.encode
        kind, _, self._hash = algorithm.rpartition("-")
        self._hmac = hmac.new(key, digestmod=self._hash) if kind else None
        self._inside = inside

    def sign(self, parts: Parts) -> bytes:
        if self._hmac is None and parts[-1] is not KEY:
            _check_utf8(b"".join([part for part in parts if part is not KEY]))
        if self._inside:
            own = {id(KEY): self._key, id(NAME): self._name}
            parts = [own.get(id(part), part) for part in parts]
        if self._hmac is not None:
            return self._prefix + self._encode(mac(self._hmac, parts))
        return self._prefix + self._encode(hashlib.new(self._hash, b"".join(parts)).digest())


def _check_utf8(text: bytes) -> None:
    """Raise `Unverified` unless a text that is hashed behind its key is UTF-8.

    Who has the hash, and not the key, can continue it behind the padding, which is no UTF-8.
    """
    try:
        text.decode()
    except UnicodeDecodeError as exc:
        raise Unverified("The signed text is not UTF-8.") from exc


class Token(Key):
    """The secret is sent, and signs nothing."""

    def __init__(self, sent: bytes):
        self._sent = sent

    def sign(self, parts: Parts) -> bytes:
        return self._sent


def decoded(text: str, encoding: str, valid: str) -> bytes:
    """Decode a key; base64 with or without padding. Raises ValueError, also where it is empty."""
    padded = text + "=" * (-len(text) % 4) if encoding == "base64" else text
    try:
        key = ENCODINGS[encoding].decode(padded.encode())
    except ValueError:
        key = b""
    if not key:
        raise ValueError(valid)
    return key
