"""Encode and decode a claim on a delivery, as it is stored in Redis, and name its keys; no I/O.

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
from struct import Struct
from uuid import UUID

from gateway.answer import BINARY, JSON, TEXT, Answer
from gateway.config.redaction import Redacted
from gateway.config.route import Reading, final_statuses
from gateway.delivery import identity_digest
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
#: What reading a record of another version raises.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_HEADERS = Struct(">I")  # the length of a text, which a task may choose


@dataclass(slots=True)
class Claim:
    """A claim as a try has found it.

    ``state`` is `MINE`, `LAPSED` (and ours now), `PUBLISHING`, `CONFIRMED` or `DONE`, which has
    the ``answer`` unless that was too large. ``owner`` is the task id of this try. ``span`` is the
    time that all tries of the sender take, ``age`` the time since the first one, ``lease`` the time
    until the state lapses, all in seconds. ``redacted`` knows the values that no kept answer may
    have; if it is ``secret``, no answer may be kept.
    """

    key: bytes
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
    secret: bool = False

    @property
    def ours(self) -> bool:
        """Does this try own the claim, so that it publishes and writes what follows?"""
        return self.state in (MINE, LAPSED)

    @property
    def taken(self) -> bool:
        """Had the broker taken the message of another try?"""
        return self.state in (CONFIRMED, DONE)


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


def read(data: bytes) -> Record:
    """Decode a claim's record."""
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
    """Decode an answer that `dump` has encoded."""
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
    if data.startswith(_ERROR):
        return Outcome(FAILURE, error=data[len(_ERROR) :].decode())
    answer = load(data[len(_ANSWERED) :])
    kind = {"Content-Type": answer.content_type} if answer.content_type else {}
    headers = {**answer.headers, **kind}
    body = answer.body or None
    return Outcome(SUCCESS, {"status": answer.status, "headers": headers, "body": body})


def dump_handed_over(claim: Claim, reading: Reading) -> str:
    """Encode a claim that is handed over to another process, and how its result is read."""
    secret = claim.secret or (claim.redacted is not None and bool(claim.redacted.places))
    key, span = claim.key.decode("latin-1"), int(claim.span * 1000)
    return json.dumps([key, span, claim.task_id, claim.digest.hex(), secret, *reading])


def load_handed_over(data: bytes) -> tuple[Claim, Reading]:
    """Decode what `dump_handed_over` has encoded; of another version's it raises `UNREADABLE`."""
    key, span, task_id, digest, secret, content_type, final, runs_once = json.loads(data)
    ids = str(UUID(task_id)), bytes.fromhex(digest)
    claim = Claim(key.encode("latin-1"), "", int(span) / 1000, CONFIRMED, *ids)
    claim.secret = bool(secret)
    final_statuses(final)
    return claim, Reading(str(content_type), final, bool(runs_once))


# Keys -------------------------------------------------------------------------------------------

# A cluster takes keys together only where they have the same slot, so those of one delivery have
# its digest as their tag. On one server the names are those that gateways have always shared.

#: What follows the prefix: of a claim, of a task's failure, of both in a cluster, and of the set of
#: claims that ended processes have handed over.
CLAIM_KEY, FAILURE_KEY, TAGGED_KEY, HANDED_OVER = "c:", "failed:", "k:", "handed-over"


def claim_key(prefix: str, identity: str, clustered: bool) -> bytes:
    """Return the key of the claim on a delivery.

    It is short, so that with the usual prefix it fits into 32 bytes of Redis' memory.
    """
    digest = identity_digest(identity)
    if clustered:
        return b"%b%b{%b}" % (prefix.encode(), TAGGED_KEY.encode(), digest.replace(b"}", b"|"))
    return prefix.encode() + CLAIM_KEY.encode() + digest


def failure_key(prefix: str, claim: bytes, task_id: str) -> bytes:
    """Return the key of the record that the task of a claim, which has the key `claim`, failed."""
    if claim.startswith((prefix + TAGGED_KEY).encode()):
        return claim + task_id.encode()
    return f"{prefix}{FAILURE_KEY}{task_id}".encode()
