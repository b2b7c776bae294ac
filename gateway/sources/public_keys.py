"""Public keys: RSA, ECDSA and Ed25519, in the forms in which senders show them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.x509 import InvalidVersion, load_der_x509_certificate

from gateway.sources.proofs import ENCODINGS, Encoding, Key, Parts, decoded, joined

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
    """The sender signs with its private key; `sign` needs that one for a secret.

    `secrets` are what may stand for `KEY` in the parts of a text.
    """

    def __init__(
        self,
        keys: Pair,
        algorithm: str,
        prefix: bytes,
        encoding: Encoding,
        secrets: Sequence[bytes] = (),
    ):
        if not isinstance(keys.public, _KINDS[algorithm.partition("-")[0]]):
            raise ValueError(f"is a key of another kind than {algorithm} needs")
        if algorithm == "ed25519" and _is_weak(keys.public.public_bytes_raw()):
            raise ValueError("is a key of which anybody can make signatures")
        self._keys, self._prefix, self._encoding = keys, prefix, encoding
        self._how, self._secrets = _how(algorithm), secrets

    def verifies(self, given: Parts, parts: Parts) -> bool:
        texts = joined(parts, self._secrets)
        return any(self._verifies(each, text) for each in given for text in texts)

    def _verifies(self, given: bytes, text: bytes) -> bool:
        if not given.startswith(self._prefix):
            return False
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
        signature = self._keys.private.sign(joined(parts, self._secrets)[0], *self._how)
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


def _jws(size: int) -> Encoding:
    """Return the encoding of an ECDSA signature of two numbers of `size` bytes. RFC 7518, 3.4"""
    base64url = ENCODINGS["base64url"]

    def encode(signature: bytes) -> bytes:
        both = decode_dss_signature(signature)
        return base64url.encode(b"".join([number.to_bytes(size, "big") for number in both]))

    def decode(text: bytes) -> bytes:
        both = base64url.decode(text)
        if len(both) != 2 * size:
            raise ValueError("an ECDSA signature has another length")
        return encode_dss_signature(*(int.from_bytes(n, "big") for n in (both[:size], both[size:])))

    return Encoding(encode, decode)


#: For each kind of key what signs tokens: the prefix of the signature, the algorithm, its encoding.
_JWT: dict[str, list[tuple[bytes, str, Encoding]]] = {
    "rsa": [
        (b"%s%d." % (name, size), f"{family}-sha{size}", ENCODINGS["base64url"])
        for name, family in ((b"RS", "rsa"), (b"PS", "rsa-pss"))
        for size in (256, 384, 512)
    ],
    "secp256r1": [(b"ES256.", "ecdsa-sha256", _jws(32))],
    "secp384r1": [(b"ES384.", "ecdsa-sha384", _jws(48))],
    "ed25519": [(b"EdDSA.", "ed25519", ENCODINGS["base64url"])],
}


def jwt_keys(keys: Pair) -> list[Key]:
    """Return what verifies the signatures of JSON Web Tokens by one public key. RFC 7518, RFC 8037

    Raises ValueError where it is of no kind that signs tokens.
    """
    kind = next((name for name, cls in _KINDS.items() if isinstance(keys.public, cls)), "")
    curve = keys.public.curve.name if kind == "ecdsa" else kind
    if curve not in _JWT:
        raise ValueError("is a key of a kind that signs no tokens")
    return [PublicKey(keys, algorithm, prefix, enc) for prefix, algorithm, enc in _JWT[curve]]


def of_jwk(jwk: dict[str, Any]) -> Any:
    """Return the public key in a JSON Web Key. Raises ValueError. RFC 7518, 6; RFC 8037, 2"""
    decode = ENCODINGS["base64url"].decode
    try:
        at = {name: decode(jwk[name].encode()) for name in ("n", "e", "x", "y") if name in jwk}
        number = {name: int.from_bytes(value, "big") for name, value in at.items()}
        if jwk["kty"] == "RSA":
            return rsa.RSAPublicNumbers(number["e"], number["n"]).public_key()
        if jwk["kty"] == "EC":
            curve = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1()}[jwk["crv"]]
            return ec.EllipticCurvePublicNumbers(number["x"], number["y"], curve).public_key()
        if jwk["crv"] == "Ed25519":
            return ed25519.Ed25519PublicKey.from_public_bytes(at["x"])
    except (KeyError, TypeError, AttributeError, UnsupportedAlgorithm) as exc:
        raise ValueError(f"a JSON Web Key without a usable {exc}") from exc
    raise ValueError("a JSON Web Key of another kind")


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
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidVersion) as exc:
        raise ValueError(valid) from exc
