"""How a body travels to a server and back, where it is not the HTTP body itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Envelope:
    """`wrap` makes a request of a body, `unwrap` finds it in an answer (ValueError, KeyError or
    TypeError where it is not there). wrk.lua knows the same ones by `name`."""

    name: str
    wrap: Callable[[bytes], bytes]
    unwrap: Callable[[bytes], bytes]


def _to_flower(body: bytes) -> bytes:
    return json.dumps({"args": [{}, {}, body.decode()]}).encode()


def _from_flower(answer: bytes) -> bytes:
    found = json.loads(answer)
    if found["state"] != "SUCCESS":
        raise ValueError(found["state"])
    return found["result"].encode()


PLAIN = Envelope("plain", bytes, bytes)
#: https://flower.readthedocs.io/en/latest/api.html
FLOWER = Envelope("flower", _to_flower, _from_flower)
