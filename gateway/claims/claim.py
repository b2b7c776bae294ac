"""A claim on a delivery, as it is found in Redis and as it is written there; no I/O.

A day of deliveries is kept, so a record is a short string of bytes and not a hash: its state, the
number of tries (255 stands for more), when the first one came (milliseconds since the epoch), the
task's id, the digest of the first try's body; then

    publishing   the end of the lease (milliseconds), the id of the try that publishes
    confirmed    until when the result is kept (milliseconds)
    done         the answer; nothing where it is too large to be kept here
    released     nothing: the tries that are still to come go on counting
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import Struct
from uuid import UUID

from gateway.answer import BINARY, JSON, TEXT, Answer
from gateway.outcome import FAILURE, SUCCESS, Outcome

MINE, LAPSED, PUBLISHING, CONFIRMED, DONE = "mine", "lapsed", "publishing", "confirmed", "done"
#: What may have become of it since.
RELEASED, FAILED = "released", "failed"

_STATES = {b"P": PUBLISHING, b"C": CONFIRMED, b"D": DONE, b"R": RELEASED}
_RECORD = Struct(">cB6s16s8s")
_UNTIL = 6  # bytes
DIGEST = 8  # bytes

#: Content types that are written as their number; any other one is written out.
_CONTENT_TYPES = ("", TEXT, JSON, BINARY)
_ANSWER = Struct(">HBB")  # status, content type, 1 if there are headers
_WRITTEN_OUT = 0x80
#: How what is remembered of a failed task begins.
_ERROR, _GIVEN = b"!", b"="
_HEADERS = Struct(">I")  # a task may return any length


@dataclass(slots=True)
class Claim:
    """A claim as it was found.

    ``state`` is `MINE`, `LAPSED` (and ours now), `PUBLISHING`, `CONFIRMED` or `DONE`, which has
    the ``answer`` unless that was too large. ``owner`` names the try that looked, ``span`` is how
    long it and the sender's other tries take, ``age`` how long ago the first came, ``lease`` how
    long the state is to last. All of these are seconds. On ``channel`` those who joined the task
    hear that its claim was confirmed, done or released.
    """

    key: bytes
    channel: str
    owner: str
    span: float
    state: str
    task_id: str
    digest: bytes
    age: float = 0.0
    tries: int = 1
    lease: float = 0.0
    answer: Answer | None = None

    @property
    def ours(self) -> bool:
        """Is it for this try to publish, and to say what came of it?"""
        return self.state in (MINE, LAPSED)


@dataclass(slots=True)
class Record:
    """What Redis has of a claim; times in milliseconds since the epoch."""

    state: str
    tries: int
    first: int
    task_id: str
    digest: bytes
    until: int
    rest: bytes


def read(data: bytes) -> Record:
    """Read a claim's value."""
    state, tries, first, task, digest = _RECORD.unpack_from(data)
    at, until = _RECORD.size, 0
    if state in b"PC":
        until = int.from_bytes(data[at : at + _UNTIL])
        at += _UNTIL
    first_ms, task_id = int.from_bytes(first), str(UUID(bytes=task))
    return Record(_STATES[state], tries, first_ms, task_id, digest, until, data[at:])


def dump(given: Answer) -> bytes:
    """Write an answer as bytes."""
    try:
        kind, written_out = _CONTENT_TYPES.index(given.content_type), b""
    except ValueError:
        written_out = given.content_type.encode()
        kind = _WRITTEN_OUT
    headers = json.dumps(given.headers).encode() if given.headers else b""
    parts = [_ANSWER.pack(given.status, kind, bool(headers))]
    for text in (written_out, headers):
        if text:
            parts += _HEADERS.pack(len(text)), text
    return b"".join((*parts, given.body))


def load(data: bytes) -> Answer:
    """Read what `dump` has written."""
    status, kind, has_headers = _ANSWER.unpack_from(data)
    at = _ANSWER.size

    def text() -> bytes:
        nonlocal at
        (size,) = _HEADERS.unpack_from(data, at)
        at += _HEADERS.size + size
        return data[at - size : at]

    content_type = text().decode() if kind == _WRITTEN_OUT else _CONTENT_TYPES[kind]
    headers = json.loads(text()) if has_headers else {}
    return Answer(status, content_type, data[at:], headers)


def dump_end(error: str, given: Answer | None) -> bytes:
    """Write how a task ended after which the delivery runs anew."""
    if given is None:
        return _ERROR + error.encode(errors="replace")
    return _GIVEN + dump(given)


def read_end(data: bytes) -> Outcome:
    """Read what `dump_end` has written, as an outcome that makes the same answer."""
    if data.startswith(_ERROR):
        return Outcome(FAILURE, error=data[len(_ERROR) :].decode())
    given = load(data[len(_GIVEN) :])
    kind = {"Content-Type": given.content_type} if given.content_type else {}
    headers = {**given.headers, **kind}
    body = given.body or None
    return Outcome(SUCCESS, {"status": given.status, "headers": headers, "body": body})
