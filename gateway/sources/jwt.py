"""JSON Web Tokens in their compact form. https://www.rfc-editor.org/rfc/rfc7519"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from gateway.errors import BadRequest, OutOfTolerance, SignatureMissing, Unverified
from gateway.sources.envelopes import read_json
from gateway.sources.keys import ENCODINGS

#: The longest token, in characters.
MAX_TOKEN = 16 * 1024
_compact = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII).fullmatch


class Token(NamedTuple):
    """A token, of which nothing is proven yet.

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
        """The JSON of the claims, as the sender wrote it."""
        return ENCODINGS["base64url"].decode(self.payload)


def _object(text: bytes) -> dict[str, Any]:
    try:
        return read_json(ENCODINGS["base64url"].decode(text))
    except (ValueError, BadRequest) as exc:
        raise Unverified("The token is malformed.") from exc


def read(text: str) -> Token:
    """Take a token apart. Raises `Unverified` for what is none."""
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
    return Token(
        kid,
        f"{head}.{payload}".encode(),
        f"{algorithm}.{signature}".encode(errors="surrogatepass"),
        payload.encode(),
    )


def check_times(claims: dict[str, Any], now: float, tolerance: float) -> None:
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
            raise OutOfTolerance(f"The token's {name} is not within {tolerance:g} seconds of now.")
