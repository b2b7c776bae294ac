"""Public keys: RSA, ECDSA and Ed25519, in the forms in which senders show them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509 import load_der_x509_certificate

from gateway.sources.keys import Encoding, Key, Parts, decoded

_armoured = re.compile(r"\s*-----BEGIN ([A-Z ]+)-----(.*?)-----END \1-----\s*", re.S).match
_KINDS: dict[str, Any] = {
    "rsa": rsa.RSAPublicKey,
    "ecdsa": ec.EllipticCurvePublicKey,
    "ed25519": ed25519.Ed25519PublicKey,
}


_PRIME = 2**255 - 19
# The y of two of the four points of order 8; that of the others is its opposite.
_OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826


class Pair(NamedTuple):
    """A public key and, where it is known, its private key."""

    public: Any
    private: Any = None


class PublicKey(Key):
    """The sender signs with its private key; `sign` needs that one for a secret."""

    def __init__(self, keys: Pair, algorithm: str, prefix: bytes, encoding: Encoding):
        if not isinstance(keys.public, _KINDS[algorithm.partition("-")[0]]):
            raise ValueError(f"is a key of another kind than {algorithm} needs")
        if algorithm == "ed25519" and _is_weak(keys.public.public_bytes_raw()):
            raise ValueError("is a key of which anybody can make signatures")
        self._keys, self._prefix, self._encoding = keys, prefix, encoding
        self._how = _how(algorithm)

    def verifies(self, given: Parts, parts: Parts) -> bool:
        text = b"".join(parts)
        return any(self._verifies(each, text) for each in given)

    def _verifies(self, given: bytes, text: bytes) -> bool:
        try:
            signature = self._encoding.decode(given.removeprefix(self._prefix))
            self._keys.public.verify(signature, text, *self._how)
        except (InvalidSignature, ValueError):
            return False
        # Each signature has one spelling only.
        return self._prefix + self._encoding.encode(signature) == given

    def sign(self, parts: Parts) -> bytes:
        if self._keys.private is None:
            raise ValueError("a public key signs nothing; give the private one")
        signature = self._keys.private.sign(b"".join(parts), *self._how)
        return self._prefix + self._encoding.encode(signature)


def _is_weak(key: bytes) -> bool:
    """Is it a point of a small order of Curve25519, for which some signature fits most texts?"""
    at = int.from_bytes(key, "little") % 2**255 % _PRIME
    return min(at, _PRIME - at) in (0, 1, _OF_ORDER_8)


def _how(algorithm: str) -> tuple[Any, ...]:
    """Return what `verify` and `sign` of a key take beside the text."""
    family, _, name = algorithm.rpartition("-")
    if not family:
        return ()
    chosen = getattr(hashes, name.upper())()
    if family == "ecdsa":
        return (ec.ECDSA(chosen),)
    if family == "rsa":
        return padding.PKCS1v15(), chosen
    return padding.PSS(padding.MGF1(chosen), padding.PSS.DIGEST_LENGTH), chosen


def public(secret: str, kind: str, valid: str) -> Pair:
    """Read a public key, or the private one. Raises ValueError with the text `valid`."""
    if kind.startswith("raw-"):
        key = decoded(secret, kind.removeprefix("raw-"), valid)
        if len(key) != 32:
            raise ValueError(valid)
        # The private key's seed may be in place of the public key.
        seed = ed25519.Ed25519PrivateKey.from_private_bytes(key)
        return Pair(ed25519.Ed25519PublicKey.from_public_bytes(key), seed)
    armour = _armoured(secret.replace("\\n", "\n"))
    if not armour and kind == "pem":
        raise ValueError(valid)
    label, text = (armour[1], armour[2]) if armour else ("PUBLIC KEY", secret)
    data = decoded("".join(text.split()), "base64", valid)
    try:
        if "PRIVATE" in label:
            private: Any = serialization.load_der_private_key(data, None)
            return Pair(private.public_key(), private)
        if "CERTIFICATE" in label:
            return Pair(load_der_x509_certificate(data).public_key())
        return Pair(serialization.load_der_public_key(data))
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise ValueError(valid) from exc
