"""Result URLs: paths that cannot be guessed, and that name a task until they expire.

A token consists of the ids of a delivery and its task, the time at which it expires and its route,
with an HMAC-SHA256 over them. Nothing is stored, and any process with the same `secret_key` can
read a token. Machines' clocks may differ, so the time is that of Redis.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from asyncio import Future
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Any
from uuid import UUID

from gateway.answer import Answer, of_outcome
from gateway.celery_message import decode_result
from gateway.clock import monotonic, time
from gateway.config.route import RESULTS, Route
from gateway.config.settings import Config
from gateway.errors import NotFound, ResultExpired, ResultsUnavailable, StoreError
from gateway.stores import result_store
from gateway.stores.pipeline import Pipeline

#: Delivery id, task id, expiry (seconds since the epoch), the first bytes of the route's digest.
_FIELDS = Struct(">16s16sI8s")
_MAC = 16  # bytes of the HMAC

UNKNOWN = "There is no such result."
_DRIFT = 1.0  # seconds by which our two clocks may differ more until Redis is asked again
RETRY_AFTER = 1  # seconds after which a missing result may be asked for again


@dataclass(slots=True, frozen=True)
class Ticket:
    """The content of a token: the delivery, its task, the content type of its route's str results.

    ``expires`` is in seconds since the epoch.
    """

    delivery_id: str
    task_id: str
    expires: float
    content_type: str


class Tokens:
    """Makes and reads the tokens of result URLs.

    `routes` are pairs of path and content type: the routes of one path may differ in that.
    Deployments with the same `key` and different prefixes cannot read each other's tokens.
    """

    def __init__(self, key: bytes, prefix: str, routes: Iterable[tuple[str, str]]):
        self._key = hmac.digest(key, b"results\0" + prefix.encode(), "sha256")
        self._routes: dict[bytes, str] = {}
        # The last route of a path is known by the path alone: URLs outlive a new content type.
        for path, content_type in routes:
            self._routes |= {_digest(path): content_type, _digest(path, content_type): content_type}

    def make(self, delivery_id: str, task_id: str, route: tuple[str, str], expires: float) -> str:
        ids = UUID(delivery_id).bytes, UUID(task_id).bytes
        last = self._routes.get(_digest(route[0])) == route[1]
        digest = _digest(route[0]) if last else _digest(*route)
        fields = _FIELDS.pack(*ids, int(expires), digest)
        return _encode(fields + self._mac(fields))

    def read(self, token: str) -> Ticket:
        """Return the content of `token`.

        Raises `NotFound` for a token that was not made by `make` with the same key and routes.
        """
        try:
            data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except ValueError as exc:
            raise NotFound(UNKNOWN) from exc
        # Base64 has several spellings of the same bytes; only one of them is a valid token.
        if len(data) != _FIELDS.size + _MAC or _encode(data) != token:
            raise NotFound(UNKNOWN)
        fields, mac = data[: _FIELDS.size], data[_FIELDS.size :]
        if not hmac.compare_digest(mac, self._mac(fields)):
            raise NotFound(UNKNOWN)
        delivery, task, expires, route = _FIELDS.unpack(fields)
        if route not in self._routes:
            raise NotFound(UNKNOWN)
        ids = str(UUID(bytes=delivery)), str(UUID(bytes=task))
        return Ticket(*ids, expires, self._routes[route])

    def _mac(self, fields: bytes) -> bytes:
        return hmac.digest(self._key, fields, "sha256")[:_MAC]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()[:8]


class ResultURLs:
    """Makes result URLs and fetches the results for them from `store`."""

    def __init__(self, config: Config, store: Pipeline):
        assert config.secret_key is not None  # otherwise there are no result URLs
        key = config.secret_key.get_secret_value().encode()
        routes = ((route.path, route.content_type) for route in config.routes)
        self._tokens = Tokens(key, config.prefix, routes)
        self._store = store
        self._prefix = result_store.key_prefix(config)
        self._base = (config.public_url or "") + RESULTS
        self._life = config.result_expires
        # What makes of monotonic time that of Redis: ours, which may jump, until it is known.
        self._ahead = self._apart = time() - monotonic()
        store.on_connected.append(self._ask_time)

    def location(self, delivery_id: str, task_id: str, route: Route, age: float = 0.0) -> str:
        """Return the URL of the result of a task of `route` that was taken `age` seconds ago."""
        if abs(time() - monotonic() - self._apart) > _DRIFT:
            self._ask_time()  # the machine has slept, or its clock was set
        expires = self._now() - age + self._life
        return self._base + self._tokens.make(
            delivery_id, task_id, (route.path, route.content_type), expires
        )

    def ticket(self, path: str) -> Ticket:
        """Return the content of the token in `path`; raises `NotFound`."""
        return self._tokens.read(path.removeprefix(RESULTS))

    async def fetch(self, ticket: Ticket) -> Answer:
        """Return the answer for a ticket: the task's answer, or a 202 while there is no result.

        Raises `ResultExpired`, `ResultsUnavailable` and what `gateway.answer.of_outcome` raises.
        """
        self._ask_time()
        outcome = None
        try:
            found = result_store.stored(self._store.run, self._prefix, [ticket.task_id])
            async for _, payload in found:
                outcome = decode_result(payload)
        except StoreError as exc:
            raise ResultsUnavailable from exc
        if self._now() >= ticket.expires:
            raise ResultExpired
        if outcome is None:
            return Answer(202, "", b"", {"Retry-After": str(RETRY_AFTER)})
        return of_outcome(outcome, ticket.content_type)

    def _now(self) -> float:
        return monotonic() + self._ahead

    def _ask_time(self) -> None:
        self._apart = time() - monotonic()
        # It is answered before what is asked after it.
        self._store.run("TIME").add_done_callback(self._take_time)

    def _take_time(self, reply: Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is None:
            seconds, microseconds = reply.result()
            self._ahead = int(seconds) + int(microseconds) / 1e6 - monotonic()
