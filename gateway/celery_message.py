"""Celery's message protocol 2: encode a task, decode a result; no I/O.

https://docs.celeryq.dev/en/stable/internals/protocol.html
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from typing import Any
from uuid import UUID

from kombu.utils import json as kombu_json

from gateway.errors import BadRequest
from gateway.nesting import walk
from gateway.outcome import FAILURE, FINAL, SUCCESS, Outcome

CONTENT_TYPE = "application/json"
CONTENT_ENCODING = "utf-8"
#: Celery's prefix of a result's key in a key-value store; the task id follows.
RESULT_KEY = "celery-task-meta-"

#: Bytes of a stored result or of a reply that are read at most: twice those of the largest answer,
#: as JSON may need two for one.
MAX_STORED = 33 * 1024 * 1024

_DETAIL = 2_000  # characters of an exception's name, and of its text, that are kept
_RETRIES = 1_000_000  # a foreign worker may store any number

_TYPED = {"__type__", "__value__"}
_RESERVED = "The names __type__ and __value__ are reserved."
_EMBED = b', {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
_encode = json.JSONEncoder(check_circular=False).encode
_ORIGIN = f"gateway-{os.getpid()}@{socket.gethostname()}"


class TaskIds:
    """Task ids in the form of UUIDs that share a random 64-bit prefix.

    The prefix lets one pattern subscription receive every result of this process.
    """

    def __init__(self) -> None:
        digits = secrets.token_hex(8)
        self.prefix = f"{digits[:8]}-{digits[8:12]}-{digits[12:]}"
        self._next = count(secrets.randbits(62)).__next__

    def new(self) -> str:
        digits = f"{self._next():016x}"
        return f"{self.prefix}-{digits[:4]}-{digits[4:]}"


def derived_id(*parts: str) -> str:
    """Return a task id that depends on `parts` only."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).digest()
    return str(UUID(bytes=digest))


@dataclass(frozen=True, slots=True, eq=False)
class MessageOptions:
    """What Celery calls options, as far as all messages of a route share them.

    With an ``exchange`` a message's ``queue`` is its routing key there; without one it goes to
    its queue. The time limits are in seconds. ``delayed``: each message has an ``eta``.
    ``track_started`` asks the app server to store that the task has begun.
    """

    exchange: str = ""
    time_limit: int | None = None
    soft_time_limit: int | None = None
    ignore_result: bool = False
    delayed: bool = False
    track_started: bool = False


DEFAULTS = MessageOptions()


@dataclass(slots=True)
class Message:
    """A task to publish.

    ``expires`` and ``eta`` are in seconds since the epoch, and are rounded up to whole seconds: a
    worker begins the task between them. ``extra`` are headers of the message beside Celery's. One
    that is only kept, and not published, may lack the values at the pointers ``redacted``.
    """

    task_id: str
    task: str
    queue: str
    body: bytes
    delivery: dict[str, Any]
    persistent: bool = False
    expires: float | None = None
    eta: float | None = None
    priority: int | None = None
    extra: dict[str, str] | None = None
    options: MessageOptions = DEFAULTS
    redacted: Sequence[str] = ()

    @property
    def nowhere(self) -> str:
        """A sentence for a message that the broker cannot route."""
        if self.options.exchange:
            return f"The exchange {self.options.exchange} routes {self.queue!r} to no queue."
        return f"The queue {self.queue} is missing."

    def empty(self) -> int:
        """Free what only a broker, the journal or a trace needs; return the bytes of the body."""
        size = len(self.body)
        self.body, self.delivery = b"", {}
        return size

    def headers(self) -> dict[str, Any]:
        """Return the protocol's headers."""
        return {**common_headers(self.task, self.options), **self.own_headers()}

    def for_kombu(self) -> dict[str, Any]:
        """Return the arguments of kombu's `Producer.publish`, but for what the broker has to do."""
        return {
            "body": self.body,
            "exchange": self.options.exchange,
            "routing_key": self.queue,
            "content_type": CONTENT_TYPE,
            "content_encoding": CONTENT_ENCODING,
            "headers": self.headers(),
            "correlation_id": self.task_id,
            "priority": self.priority or 0,
            "retry": False,
        }

    def own_headers(self) -> dict[str, Any]:
        """Return the headers that are different for each message of one task."""
        expires = self.expires
        headers: dict[str, Any] = {
            "id": self.task_id,
            "root_id": self.task_id,
            "expires": expires if expires is None else _iso(math.ceil(expires)),
        }
        if self.eta is not None:
            headers["eta"] = _iso(math.ceil(self.eta))
        if self.extra is not None:
            headers.update(self.extra)
        headers["delivery"] = self.delivery
        return headers


def common_headers(task: str, options: MessageOptions) -> dict[str, Any]:
    """Return the headers that all messages for `task` with `options` have.

    The reprs are empty because they would cost more time than all other headers together;
    ``timelimit`` is [hard, soft] in seconds.
    """
    headers = {
        "lang": "py",
        "task": task,
        "parent_id": None,
        "group": None,
        "shadow": None,
        "eta": None,
        "retries": 0,
        "timelimit": [options.time_limit, options.soft_time_limit],
        "argsrepr": "",
        "kwargsrepr": "",
        "origin": _ORIGIN,
        "ignore_result": options.ignore_result,
    }
    if options.delayed:
        del headers["eta"]
    if options.track_started:
        headers["track_started"] = True
    return headers


@lru_cache(64)
def _iso(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()


def encode_body(
    query: dict[str, str], headers: dict[str, str], body: bytes, embed: bytes = _EMBED
) -> bytes:
    """Encode the call ``task(query, headers, body)``; `embed` is from `embedding`.

    A body in UTF-8 becomes a str; any other is sent in the form in which kombu's JSON carries
    bytes. Raises `BadRequest` for a dict that kombu would read as a typed value, because no worker
    could decode it.
    """
    if _is_typed(query) or _is_typed(headers):
        raise BadRequest(_RESERVED)
    return b"[" + _encode((query, headers, _text_or_typed(body))).encode() + b", {}" + embed


def encode_call(args: Sequence[Any], kwargs: Mapping[str, Any], embed: bytes) -> bytes:
    """Encode the call ``task(*args, **kwargs)``; values of type bytes are request bodies.

    Raises `BadRequest` for a dict that kombu would read as a typed value, because no worker could
    decode it.
    """
    text = _encode((_sendable(list(args)), _sendable(dict(kwargs))))
    if '"__type__"' in text and any(map(_is_typed, walk([*args, *kwargs.values()]))):
        raise BadRequest(_RESERVED)
    return text.encode()[:-1] + embed


def _sendable(values: Any) -> Any:
    """Return a list or dict in which a body is a text, or what kombu reads as bytes."""
    pairs = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in list(pairs):
        if isinstance(value, bytes):
            values[key] = _text_or_typed(value)
    return values


def _text_or_typed(body: bytes) -> Any:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"__type__": "base64", "__value__": base64.b64encode(body).decode()}


def _is_typed(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == _TYPED


def embedding(link_error: str | None) -> bytes:
    """Encode the last part of a message's body; the task `link_error` is called after a failure."""
    if link_error is None:
        return _EMBED
    errback: dict[str, Any] = {
        "task": link_error, "args": [], "kwargs": {}, "options": {}, "subtask_type": None,
        "immutable": False,
    }  # fmt: skip
    embed = {"callbacks": None, "errbacks": [errback], "chain": None, "chord": None}
    return b", " + _encode(embed).encode() + b"]"


def decode_result(payload: bytes | int) -> Outcome | None:
    """Decode a stored result or a reply; return None where the task has not ended yet.

    Only JSON is decoded; anything else becomes an outcome with an ``error``, and so does what is
    too large, of which there may be only the size in bytes, also as the payload itself.
    """
    size = payload if isinstance(payload, int) else len(payload)
    if isinstance(payload, int) or size > MAX_STORED:
        return Outcome(SUCCESS, error=f"it has {size} bytes, which is too large")
    try:
        # Only values that plain JSON cannot express need kombu's slower decoder.
        loads = kombu_json.loads if b'"__type__"' in payload else json.loads
        meta = loads(payload.decode())
        if type(meta) is int:
            return decode_result(meta)
        state = meta["status"]
        if state not in FINAL:
            return None
        outcome = _outcome(state, meta.get("result"))
        retries = meta.get("retries")
        if type(retries) is int and 0 <= retries < _RETRIES:
            outcome.attempts = retries + 1
        return outcome
    # ArithmeticError comes from Decimal. A task may return values that a sender has invented.
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as e:
        return Outcome(SUCCESS, error=f"no JSON result ({type(e).__name__})")


def _outcome(state: str, result: Any) -> Outcome:
    """Make an outcome from a final `state` and the stored `result`.

    The result describes an exception where the state is not SUCCESS.
    """
    if state == SUCCESS:
        return Outcome(SUCCESS, result)
    if isinstance(result, dict):
        parts = result.get("exc_message", "")
        detail = ", ".join(map(str, parts)) if isinstance(parts, list) else str(parts)
        error = str(result.get("exc_type") or "unknown")
        return Outcome(state, error=encodable(error[:_DETAIL]), detail=encodable(detail[:_DETAIL]))
    return Outcome(state, error="unknown" if state == FAILURE else "TaskRevokedError")


def encodable(text: str) -> str:
    """Return `text` without half surrogates, which JSON can express and UTF-8 cannot."""
    return text.encode(errors="replace").decode()
