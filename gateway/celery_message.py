"""Celery's message protocol 2: encode a task, decode a result; no I/O.

https://docs.celeryq.dev/en/stable/internals/protocol.html
"""

from __future__ import annotations

import base64
import json
import math
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from typing import Any

from kombu.utils import json as kombu_json

from gateway.errors import BadRequest
from gateway.outcome import FAILURE, FINAL, SUCCESS, Outcome

CONTENT_TYPE = "application/json"
CONTENT_ENCODING = "utf-8"
#: Celery's prefix of a result's key in a key-value store; the task id follows.
RESULT_KEY = "celery-task-meta-"

_TYPED = {"__type__", "__value__"}
_EMBED = b', {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
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


@dataclass(slots=True)
class Message:
    """A task to publish on the default exchange with its queue's name as routing key.

    ``expires`` is in seconds since the epoch; after it no worker begins the task. It is rounded up
    to a whole second.
    """

    task_id: str
    task: str
    queue: str
    body: bytes
    delivery: dict[str, Any]
    persistent: bool = False
    expires: float | None = None

    def headers(self) -> dict[str, Any]:
        """Return the protocol's headers."""
        return {**common_headers(self.task), **self.own_headers()}

    def own_headers(self) -> dict[str, Any]:
        """Return the headers that are different for each message of one task."""
        expires = self.expires
        return {
            "id": self.task_id,
            "root_id": self.task_id,
            "expires": expires if expires is None else _iso(math.ceil(expires)),
            "delivery": self.delivery,
        }


def common_headers(task: str) -> dict[str, Any]:
    """Return the headers that all messages for `task` have.

    The reprs are empty because they would cost more time than all other headers together;
    ``timelimit`` is [hard, soft] in seconds.
    """
    return {
        "lang": "py",
        "task": task,
        "parent_id": None,
        "group": None,
        "shadow": None,
        "eta": None,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": "",
        "kwargsrepr": "",
        "origin": _ORIGIN,
        "ignore_result": False,
    }


@lru_cache(64)
def _iso(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()


def encode_body(query: dict[str, str], headers: dict[str, str], body: bytes) -> bytes:
    """Encode the call ``task(query, headers, body)``.

    A body in UTF-8 becomes a str; any other is sent in the form in which kombu's JSON carries
    bytes. Raises `BadRequest` for a dict that kombu would read as a typed value, because no worker
    could decode it.
    """
    if query.keys() == _TYPED or headers.keys() == _TYPED:
        raise BadRequest("The names __type__ and __value__ are reserved.")
    argument: Any
    try:
        argument = body.decode()
    except UnicodeDecodeError:
        argument = {"__type__": "base64", "__value__": base64.b64encode(body).decode()}
    return b"[" + _encode((query, headers, argument)).encode() + _EMBED


def decode_result(payload: bytes) -> Outcome | None:
    """Decode a stored result or a reply; return None where the task has not ended yet.

    Only JSON is decoded; anything else becomes an outcome with an ``error``.
    """
    try:
        # Only values that plain JSON cannot express need kombu's slower decoder.
        loads = kombu_json.loads if b'"__type__"' in payload else json.loads
        meta = loads(payload.decode())
        state = meta["status"]
        return _outcome(state, meta.get("result")) if state in FINAL else None
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
        return Outcome(state, error=str(result.get("exc_type") or "unknown"))
    return Outcome(state, error="unknown" if state == FAILURE else "TaskRevokedError")
