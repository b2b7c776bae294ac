"""How a body travels to a server and back, where it is not the HTTP body itself."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Envelope:
    """`wrap` makes a request of a body, `unwrap` finds it in an answer (ValueError, KeyError or
    TypeError where it is not there); `head` returns what header lines the body has of its own.
    `identified`: the same body again is a later try, and no other delivery. `accepted`: the answer
    is a 202, which has nothing of the body.

    wrk.lua knows them by `name`; those with `signed` bodies it is given in a file.
    """

    name: str
    wrap: Callable[[bytes], bytes]
    unwrap: Callable[[bytes], bytes]
    head: Callable[[bytes], bytes] = lambda body: b""
    identified: bool = False
    signed: bool = False
    accepted: bool = False


def _to_flower(body: bytes) -> bytes:
    return json.dumps({"args": [{}, {}, body.decode()]}).encode()


def _from_flower(answer: bytes) -> bytes:
    found = json.loads(answer)
    if found["state"] != "SUCCESS":
        raise ValueError(found["state"])
    result: str = found["result"]
    return result.encode()


def _signed(body: bytes) -> bytes:
    signature = hmac.digest(SECRET, body, "sha256").hex().encode()
    return (
        b"X-GitHub-Event: push\r\nX-Hub-Signature-256: sha256=%b\r\nX-GitHub-Delivery: %b\r\n"
        % (signature, signature[:32])
    )


PLAIN = Envelope("plain", bytes, bytes)
#: https://flower.readthedocs.io/en/latest/api.html
FLOWER = Envelope("flower", _to_flower, _from_flower)
#: What each body is signed with; its identity follows from it, so that the same one is a later try.
SECRET = b"of the load test"
#: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
GITHUB = Envelope("github", bytes, bytes, _signed, identified=True, signed=True)
#: Each delivery has a new identity, in the header `X-Delivery`.
IDENTIFIED = Envelope(
    "identified",
    bytes,
    bytes,
    lambda body: b"X-Delivery: %b\r\n" % hashlib.sha256(body).hexdigest().encode(),
    identified=True,
)
#: What a route answers that accepts.
ACCEPTED = Envelope("accepted", bytes, bytes, accepted=True)
