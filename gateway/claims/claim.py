"""Encode and decode a claim on a delivery, as it is stored in Redis; no I/O.

The claims of a day are kept, so a record is a short string of bytes and not a hash: its state, the
number of tries (255: that many or more), the time of the first one (milliseconds since the epoch),
the task's id, the digest of the first try's body; then

    publishing   the end of the lease (milliseconds), the id of the try that publishes
    confirmed    until when the result is kept (milliseconds)
    done         the answer; nothing where it is too large to be kept here
    released     nothing; the record is kept for the number of tries
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from struct import Struct
from struct import error as StructError
from uuid import UUID

from gateway.answer import BINARY, JSON, TEXT, Answer, field_value
from gateway.config.redaction import Redacted
from gateway.outcome import FAILURE, SUCCESS, Outcome

MINE, LAPSED, PUBLISHING, CONFIRMED, DONE = "mine", "lapsed", "publishing", "confirmed", "done"
#: Further states, in which a claim may be found later.
RELEASED, FAILED = "released", "failed"

_STATES = {b"P": PUBLISHING, b"C": CONFIRMED, b"D": DONE, b"R": RELEASED}
_RECORD = Struct(">cB6s16s8s")
_UNTIL = 6  # bytes
DIGEST = 8  # bytes

#: Content types that are stored as their index here; any other one is stored as text.
_CONTENT_TYPES = ("", TEXT, JSON, BINARY)
_ANSWER = Struct(">HBB")  # status, content type, 1 if there are headers
_WRITTEN_OUT = 0x80
#: The first byte of a failed task's record: an error follows, or an answer.
_ERROR, _ANSWERED = b"!", b"="
_HEADERS = Struct(">I")  # the length of a text, which a task may choose


@dataclass(slots=True)
class Claim:
    """A claim as a try has found it.

    ``state`` is `MINE`, `LAPSED` (and ours now), `PUBLISHING`, `CONFIRMED` or `DONE`, which has
    the ``answer`` unless that was too large. ``owner`` is the task id of this try. ``span`` is the
    time that all tries of the sender take, ``age`` the time since the first one, ``lease`` the time
    until the state lapses, all in seconds. On ``channel`` the joined tries are told that the claim
    was confirmed, done or released. ``redacted`` knows the values that no kept answer may have.
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
    redacted: Redacted | None = None

    @property
    def ours(self) -> bool:
        """Does this try own the claim, so that it publishes and writes what follows?"""
        return self.state in (MINE, LAPSED)


@dataclass(slots=True)
class Record:
    """A claim's record in Redis; times are in milliseconds since the epoch."""

    state: str
    tries: int
    first: int
    task_id: str
    digest: bytes
    until: int
    rest: bytes


def read(data: bytes) -> Record | None:
    """Decode a claim's record; None: it is none."""
    if data[:1] not in _STATES or len(data) < _RECORD.size:
        return None
    state, tries, first, task, digest = _RECORD.unpack_from(data)
    at, until = _RECORD.size, 0
    if state in b"PC":
        until = int.from_bytes(data[at : at + _UNTIL])
        at += _UNTIL
    first_ms, task_id = int.from_bytes(first), str(UUID(bytes=task))
    return Record(_STATES[state], tries, first_ms, task_id, digest, until, data[at:])


def dump(answer: Answer) -> bytes:
    """Encode an answer as bytes."""
    try:
        kind, written_out = _CONTENT_TYPES.index(answer.content_type), b""
    except ValueError:
        written_out = answer.content_type.encode()
        kind = _WRITTEN_OUT
    headers = json.dumps(answer.headers).encode() if answer.headers else b""
    parts = [_ANSWER.pack(answer.status, kind, bool(headers))]
    for text in (written_out, headers):
        if text:
            parts += _HEADERS.pack(len(text)), text
    return b"".join((*parts, answer.body))


def load(data: bytes) -> Answer:
    """Decode an answer that `dump` has encoded; raises ValueError where it is none."""
    try:
        answer = _load(data)
    except (StructError, IndexError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc
    headers = answer.headers.items() if isinstance(answer.headers, dict) else [(None,)]
    texts = chain((answer.content_type,), *headers)
    sendable = all(isinstance(each, str) and field_value(each) for each in texts)
    if not (sendable and 200 <= answer.status <= 599):
        raise ValueError("it is no answer")
    return answer


def _load(data: bytes) -> Answer:
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


def dump_end(error: str, answer: Answer | None) -> bytes:
    """Encode the end of a task that did not end its delivery: its error, or its answer."""
    if answer is None:
        return _ERROR + error.encode(errors="replace")
    return _ANSWERED + dump(answer)


def read_end(data: bytes) -> Outcome:
    """Decode what `dump_end` has encoded, as an outcome that makes the same answer."""
    if not data.startswith(_ANSWERED):
        return Outcome(FAILURE, error=data[len(_ERROR) :].decode(errors="replace"))
    try:
        answer = load(data[len(_ANSWERED) :])
    except ValueError:
        return Outcome(FAILURE, error="unknown")
    kind = {"Content-Type": answer.content_type} if answer.content_type else {}
    headers = {**answer.headers, **kind}
    body = answer.body or None
    return Outcome(SUCCESS, {"status": answer.status, "headers": headers, "body": body})
