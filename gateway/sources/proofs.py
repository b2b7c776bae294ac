"""What proves a request: keys and signatures, JSON Web Tokens, timestamps."""

from __future__ import annotations

import hashlib
import hmac
import re
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from binascii import hexlify
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from hmac import HMAC, compare_digest
from typing import Any, NamedTuple

from gateway import errors
from gateway.delivery import Request
from gateway.errors import BadRequest, SignatureMismatch, SignatureMissing, Unverified
from gateway.sources.base import Options
from gateway.sources.reading import read_json


def secrets(options: Options) -> list[bytes]:
    """Return the secrets as the bytes that a sender computes with."""
    return [secret.get_secret_value().encode() for secret in options.secrets]


def raw(value: str) -> bytes:
    """Return a header's or path's text as the bytes that were received.

    HTTP texts are decoded as latin-1 (RFC 9110, 5.5). Other characters cannot have been received;
    they are escaped, so that no signature matches.
    """
    return value.encode("latin-1", "backslashreplace")


def header(request: Request, name: str) -> str:
    """Return a header's value. Raises `Unverified` where there is none."""
    value = request.headers.get(name)
    if not value:
        raise SignatureMissing(f"The header {name} is missing.")
    return value


def mac(key: HMAC, parts: Iterable[bytes]) -> bytes:
    """Return the HMAC of the joined `parts`; `key` is not changed."""
    state = key.copy()
    for part in parts:
        state.update(part)
    return state.digest()


def check(given: Sequence[bytes], expected: Iterable[bytes]) -> None:
    """Raise `Unverified` unless one of the `given` signatures is one of the `expected` ones."""
    for right in expected:
        for signature in given:
            if compare_digest(signature, right):
                return
    raise SignatureMismatch


class Unit(NamedTuple):
    """A form of times: what fits it, how it is called, how it is read and written."""

    fits: Callable[[str], Any]
    called: str
    read: Callable[[str], float]
    write: Callable[[float], str]

    def check(self, text: str, now: float, tolerance: float) -> None:
        """Raise `Unverified` unless `text` is a time within `tolerance` seconds of `now`.

        With a tolerance of 0 every text of this form is accepted.
        """
        if not self.fits(text):
            raise Unverified(f"The timestamp is not {self.called}.")
        if tolerance and abs(now - self.read(text)) > tolerance:
            raise errors.OutOfTolerance(
                f"The timestamp is not within {tolerance:g} seconds of now."
            )


def _iso(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as exc:
        raise Unverified("The timestamp is not a date and time.") from exc


_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
_ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"
# Eleven digits of seconds are enough until the year 5138.
_seconds, _milliseconds, _date, _zoned = (
    re.compile(each).fullmatch
    for each in ("[0-9]{1,11}", "[0-9]{1,14}", f"{_DATE}({_ZONE})?", _DATE + _ZONE)
)
UNITS = {
    "s": Unit(_seconds, "a number of seconds", int, lambda now: str(int(now))),
    "ms": Unit(
        _milliseconds, "a number of milliseconds",
        lambda text: int(text) / 1000, lambda now: str(int(now * 1000)),
    ),
    "iso": Unit(
        _date, "a date and time",
        _iso, lambda now: datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
    ),
}  # fmt: skip
#: Without a zone nothing says where a time ends, if nothing separates it from what follows.
ZONED = UNITS["iso"]._replace(fits=_zoned, called="a date and time with a zone")
#: Raises `Unverified` unless a text is a number of seconds, and near.
check_time = UNITS["s"].check


def digest(body: bytes) -> str:
    """Return the identity of a delivery without an id: the body's digest, as tries repeat it."""
    return sha256(body).hexdigest()


# Keys -----------------------------------------------------------------------------------------

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
#: The HMACs of JSON Web Tokens, with the prefixes of `WebToken.signature`.
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
    if not any(part is KEY for part in parts):  # a sender may send an equal text
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
            if compare_digest(each, expected):
                return True
        return False


class SharedKey(Key):
    """Both sides have the key: HMAC, or a plain hash.

    `inside` is what stands in the signed text for `KEY` and `NAME`, by their identity.
    """

    def __init__(
        self,
        key: bytes,
        algorithm: str,
        prefix: bytes,
        encoding: Encoding,
        inside: dict[int, bytes],
    ):
        self._prefix, self._encode, self._inside = prefix, encoding.encode, inside
        kind, _, self._hash = algorithm.rpartition("-")
        self._hmac = hmac.new(key, digestmod=self._hash) if kind else None

    def sign(self, parts: Parts) -> bytes:
        text = parts
        if self._inside:
            text = [self._inside.get(id(part), part) for part in parts]
        if self._hmac is not None:
            return self._prefix + self._encode(mac(self._hmac, text))
        # Who has a hash, and not the key, can continue the text behind its padding: no UTF-8.
        if parts[-1] is not KEY and not is_utf8(b"".join([p for p in parts if p is not KEY])):
            raise Unverified("The signed text is not UTF-8.")
        return self._prefix + self._encode(hashlib.new(self._hash, b"".join(text)).digest())


def is_utf8(text: bytes) -> bool:
    """Tell whether `text` is UTF-8."""
    with suppress(UnicodeDecodeError):
        text.decode()
        return True
    return False


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


# JSON Web Tokens: https://www.rfc-editor.org/rfc/rfc7519 ----------------------------------------

#: The longest token, in characters.
MAX_TOKEN = 16 * 1024
_compact = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII).fullmatch


class WebToken(NamedTuple):
    """A JSON Web Token in its compact form, of which nothing is proven yet.

    ``signature`` has the name of its algorithm before it, and a dot: a key verifies the signatures
    of its own algorithms only, so that a token cannot choose another kind, or none.
    """

    kid: str
    signed: bytes
    signature: bytes
    payload: bytes

    @property
    def claims(self) -> dict[str, Any]:
        """What a proven token says. Raises `Unverified` where that is no object."""
        return _object(self.payload)

    @property
    def content(self) -> bytes:
        """The JSON of the claims, as the sender wrote it. Raises `Unverified` for other text."""
        return _decoded(self.payload)


def _decoded(text: bytes) -> bytes:
    try:
        return ENCODINGS["base64url"].decode(text)
    except ValueError as exc:
        raise Unverified("The token is malformed.") from exc


def _object(text: bytes) -> dict[str, Any]:
    try:
        return read_json(_decoded(text))
    except BadRequest as exc:
        raise Unverified("The token is malformed.") from exc


def read_token(text: str) -> WebToken:
    """Take a JSON Web Token apart. Raises `Unverified` for any other text."""
    if not text:
        raise SignatureMissing("The token is missing.")
    if len(text) > MAX_TOKEN or not (found := _compact(text)):
        raise Unverified("The token is malformed.")
    head, payload, signature = found.groups()
    header = _object(head.encode())
    algorithm, kid = header.get("alg"), header.get("kid", "")
    # An extension that has to be understood changes what is signed, or how. RFC 7515, 4.1.11
    if not isinstance(algorithm, str) or not isinstance(kid, str) or "crit" in header:
        raise Unverified("The token is malformed.")
    return WebToken(
        kid,
        f"{head}.{payload}".encode(),
        f"{algorithm}.{signature}".encode(errors="surrogatepass"),
        payload.encode(),
    )


def check_claims(claims: dict[str, Any], now: float, tolerance: float) -> None:
    """Raise `Unverified` unless a token is valid `now`, give or take `tolerance` seconds.

    Not before ``nbf`` and ``iat``, and not after ``exp``; if it has no ``exp``, it is valid at
    ``iat`` only, and without both never. With a tolerance of 0 nothing is checked.
    """
    if not tolerance:
        return
    times = {name: at for name in ("exp", "nbf", "iat") if (at := claims.get(name)) is not None}
    if times.keys() <= {"nbf"}:
        raise Unverified("The token has neither exp nor iat: it would be valid for ever.")
    for name, at in times.items():
        if type(at) not in (int, float) or not 0 <= at < 1e12:
            raise Unverified(f"The claim {name} is no number of seconds.")
        early, late = name != "exp", name == "exp" or (name == "iat" and "exp" not in times)
        if (early and at - now > tolerance) or (late and now - at > tolerance):
            raise errors.OutOfTolerance(
                f"The token's {name} is not within {tolerance:g} seconds of now."
            )
