"""Helpers of the schemes: headers as bytes, comparison with every secret, timestamps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from hmac import HMAC, compare_digest

from gateway.delivery import Request
from gateway.errors import OutOfTolerance, SignatureMismatch, SignatureMissing, Unverified
from gateway.sources.base import Options

# ASCII digits, and not too many for a fast int(); eleven are enough until the year 5138.
_seconds = re.compile(r"[0-9]{1,11}").fullmatch


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


def check_time(timestamp: str, now: float, tolerance: float) -> None:
    """Raise `Unverified` unless `timestamp` is within `tolerance` seconds of `now`.

    With a tolerance of 0 every number is accepted.
    """
    if not _seconds(timestamp):
        raise Unverified("The timestamp is not a number of seconds.")
    if tolerance and abs(now - int(timestamp)) > tolerance:
        raise OutOfTolerance(f"The timestamp is not within {tolerance:g} seconds of now.")


def digest(body: bytes) -> str:
    """Return the identity of a delivery without an id: the body's digest, as tries repeat it."""
    return sha256(body).hexdigest()
