"""Helpers of the schemes: headers as bytes, comparison with every secret, timestamps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from hmac import HMAC, compare_digest
from typing import Any, NamedTuple

from gateway.delivery import Request
from gateway.errors import OutOfTolerance, SignatureMismatch, SignatureMissing, Unverified
from gateway.sources.base import Options


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
            raise OutOfTolerance(f"The timestamp is not within {tolerance:g} seconds of now.")


def _iso(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as exc:
        raise Unverified("The timestamp is not a date and time.") from exc


_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
_ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"
# Eleven digits of seconds are enough until the year 5138.
UNITS = {
    "s": Unit(
        re.compile(r"[0-9]{1,11}").fullmatch, "a number of seconds", int, lambda now: str(int(now))
    ),
    "ms": Unit(
        re.compile(r"[0-9]{1,14}").fullmatch,
        "a number of milliseconds",
        lambda text: int(text) / 1000,
        lambda now: str(int(now * 1000)),
    ),
    "iso": Unit(
        re.compile(_DATE + "(" + _ZONE + ")?").fullmatch,
        "a date and time",
        _iso,
        lambda now: datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
    ),
}
#: Without a zone nothing says where a time ends, if nothing separates it from what follows.
ZONED = UNITS["iso"]._replace(
    fits=re.compile(_DATE + _ZONE).fullmatch, called="a date and time with a zone"
)


#: Raises `Unverified` unless a text is a number of seconds, and near.
check_time = UNITS["s"].check


def digest(body: bytes) -> str:
    """Return the identity of a delivery without an id: the body's digest, as tries repeat it."""
    return sha256(body).hexdigest()
