"""Extract a configured value from a delivery: a header, a value in its JSON, a path parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from gateway.delivery import Delivery
from gateway.errors import BadRequest
from gateway.sources.envelopes import read_json
from gateway.sources.fields import at, pointer

#: The most characters of a value: longer ones would fill the store.
MAX_LENGTH = 1_024


def finder(place: str) -> Callable[[Delivery], str]:
    """Return a function that extracts `place` (``header:NAME``, ``json:/pointer``, ``param:name``).

    The function raises `BadRequest` where the delivery has no such value.
    """
    kind, _, name = place.partition(":")
    find = {"header": _header, "json": _json, "param": _param}[kind]

    def found(delivery: Delivery) -> str:
        value = find(delivery, name)
        if not value or len(value) > MAX_LENGTH:
            raise BadRequest(f"{place} has to be a value of 1 to {MAX_LENGTH} characters.")
        return value

    return found


def chooser(place: str, queues: Sequence[str]) -> Callable[[Delivery], str]:
    """Return a function that chooses one of `queues` by the value at `place`.

    It uses rendezvous hashing: if a queue is added or removed, only that queue's keys move.
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
    # Only texts and numbers can identify a delivery; `true` or a list cannot.
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
