"""What the schemes share: headers as bytes, comparing with every secret, timestamps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from hmac import HMAC, compare_digest

from gateway.delivery import Request
from gateway.errors import Unverified
from gateway.sources.base import Options

# Plain digits, and no more than int() reads in no time: eleven reach the year 5138.
_seconds = re.compile(r"[0-9]{1,11}").fullmatch


def secrets(options: Options) -> list[bytes]:
    """Return the secrets as the bytes that a sender computes with."""
    return [secret.get_secret_value().encode() for secret in options.secrets]


def raw(value: str) -> bytes:
    """Return a header's or path's text as the bytes that were received.

    HTTP texts are latin-1 here (RFC 9110, 5.5); what is not cannot have been received, and
    becomes something that no sender sends.
    """
    return value.encode("latin-1", "backslashreplace")


def header(request: Request, name: str) -> str:
    """Return a header's value. Raises `Unverified` where there is none."""
    value = request.headers.get(name)
    if not value:
        raise Unverified(f"The header {name} is missing.")
    return value


def mac(key: HMAC, parts: Iterable[bytes]) -> bytes:
    """Return the HMAC of `parts`, one after the other; `key` has been fed nothing yet."""
    state = key.copy()
    for part in parts:
        state.update(part)
    return state.digest()


def check(given: Sequence[bytes], expected: Iterable[bytes]) -> None:
    """Raise `Unverified` unless one that was given is one of the expected."""
    for right in expected:
        for signature in given:
            if compare_digest(signature, right):
                return
    raise Unverified("The signature does not match.")


def check_time(timestamp: str, now: float, tolerance: float) -> None:
    """Raise `Unverified` unless `timestamp` is within `tolerance` seconds of `now`; 0: any is."""
    if not _seconds(timestamp):
        raise Unverified("The timestamp is no number of seconds.")
    if tolerance and abs(now - int(timestamp)) > tolerance:
        raise Unverified(f"The timestamp is not within {tolerance:g} seconds of now.")


def digest(body: bytes) -> str:
    """Identify a delivery whose sender gives it no id: each try has the same body."""
    return sha256(body).hexdigest()
