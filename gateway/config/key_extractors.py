"""Values that the operator finds in a delivery: a header, a place in its JSON, a path parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from gateway.delivery import Delivery
from gateway.errors import BadRequest
from gateway.sources.envelopes import read_json
from gateway.sources.fields import at, pointer

#: Characters of a value: a longer one identifies nothing, it fills a store.
MAX_LENGTH = 1_024


def finder(place: str) -> Callable[[Delivery], str]:
    """Return the function that finds `place` (``header:NAME``, ``json:/pointer``, ``param:name``).

    It raises `BadRequest` where the delivery has nothing there.
    """
    kind, _, name = place.partition(":")
    find = {"header": _header, "json": _json, "param": _param}[kind]

    def found(delivery: Delivery) -> str:
        value = find(delivery, name)
        if not value or len(value) > MAX_LENGTH:
            raise BadRequest(f"A value of 1 to {MAX_LENGTH} characters is needed at {place}.")
        return value

    return found


def chooser(place: str, queues: Sequence[str]) -> Callable[[Delivery], str]:
    """Return the function that chooses the queue for what stands at `place`.

    Rendezvous hashing: of a queue more or less, only its own share of the keys moves.
    """
    find = finder(place)
    salts = {queue: blake2b(queue.encode()).digest() for queue in queues}

    def chosen(delivery: Delivery) -> str:
        key = find(delivery).encode()
        return max(queues, key=lambda queue: blake2b(key, key=salts[queue]).digest())

    return chosen


def _header(delivery: Delivery, name: str) -> str:
    return delivery.headers.get(name.lower(), "")


def _param(delivery: Delivery, name: str) -> str:
    return delivery.params[name]


def _json(delivery: Delivery, place: str) -> str:
    value = at(read_json(delivery.body), pointer(place))
    # Text and numbers identify; `true` or a list does not.
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
