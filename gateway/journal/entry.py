"""A delivery in the journal, and its states.

    received -> accepted -> running -> succeeded | failed | dead-lettered | expired
        |          |                                      |
        |          +-> replayed -> running -> ... <-------+
        +-> refused

    ignored

A delivery whose result was the answer goes from *received* to its end at once. If the result is
sent late, *succeeded*, or a state before it, becomes *answered-late* | *late-answer-failed* |
*late-answer-uncertain*. If the task fails after a *late-answer-failed*, that is its end.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple

from gateway.celery_message import DEFAULTS, Message, MessageOptions
from gateway.clock import time
from gateway.delivery import identity_digest
from gateway.outcome import FAILURE, SUCCESS, Outcome

log = logging.getLogger(__name__)

#: Published or about to be, and not answered yet.
RECEIVED = "received"
#: Answered with an error, or left by its sender, and no task of it is known to be there.
REFUSED = "refused"
#: No route takes it, because of its event or of `when`, so there was no task.
IGNORED = "ignored"
#: Answered, while the end of its task was not known.
ACCEPTED = "accepted"
#: A worker has begun its task.
RUNNING = "running"
SUCCEEDED = "succeeded"
#: Its task has raised an exception, or has returned what cannot be an answer.
FAILED = "failed"
#: Its message lies in the queue for dead letters, as it has ended its workers.
DEAD_LETTERED = "dead-lettered"
#: Its task was revoked, or its message had expired, before a worker has begun it.
EXPIRED = "expired"
#: Published again, as another task whose end is not known yet.
REPLAYED = "replayed"
#: The result was sent after the answer: the sender has taken it, has not, or it is not known.
ANSWERED_LATE = "answered-late"
LATE_FAILED = "late-answer-failed"
LATE_UNCERTAIN = "late-answer-uncertain"
LATE = frozenset((ANSWERED_LATE, LATE_FAILED, LATE_UNCERTAIN))
#: States of deliveries whose task need not run again.
DONE = LATE | {SUCCEEDED}
#: States whose calls are not kept with `keep_bodies = "failed"`.
WELL = frozenset((SUCCEEDED, ANSWERED_LATE, IGNORED))
#: All states, in the order in which they are shown.
STATES = (
    RECEIVED, REFUSED, IGNORED, ACCEPTED, RUNNING, SUCCEEDED, FAILED, DEAD_LETTERED, EXPIRED,
    REPLAYED, ANSWERED_LATE, LATE_FAILED, LATE_UNCERTAIN,
)  # fmt: skip
#: States in which a task may still run.
OPEN = frozenset((RECEIVED, ACCEPTED, RUNNING, REPLAYED))

GONE = 0  # the status where the sender had left before the answer
#: What the app server's FAILURE of a message says that it has published as a dead letter.
_DEAD_LETTER = "gateway.dead"
_DEFAULTS = asdict(DEFAULTS)
#: What `Entry.options` may have.
_OPTIONS = {*_DEFAULTS, "priority", "extra"}
#: What raises these cannot be read: it is not what was written.
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
_TEXTS = ("remote", "traceparent", "query_string", "edited_from")  # what a delivery may have
#: A state; a newer gateway may have others.
_STATE = re.compile("[a-z-]{1,40}").fullmatch
#: An identity, which may be empty, and a position.
_PLACE = re.compile(r"([0-9a-f]{4,})? [0-9]{1,14}-[0-9]{1,15}").fullmatch
_ERROR = 500  # characters of an earlier run's error


class Original(NamedTuple):
    """A request, as a task without `args` and `kwargs` is told of it."""

    query: dict[str, str]
    headers: dict[str, str]
    body: Any

    @classmethod
    def of(cls, args: list[Any], kwargs: dict[str, Any]) -> Original | None:
        """Return the request that these are the arguments for; None: they are others."""
        if len(args) == 3 and not kwargs and all(isinstance(each, dict) for each in args[:2]):
            return cls(*args)
        return None

    def method(self, query_string: str) -> str:
        """Return the method: where the body is the query string it was a GET, else it is a POST."""
        return "GET" if query_string and self.raw == query_string.encode() else "POST"

    @property
    def raw(self) -> bytes | None:
        """The bytes of the body; None: they cannot be read."""
        if isinstance(self.body, str):
            return self.body.encode(errors="replace")
        try:
            return base64.b64decode(self.body["__value__"])
        except DAMAGED:
            return None


@dataclass(slots=True, frozen=True)
class Entry:
    """A delivery, its answer, and what became of its task.

    ``delivery`` is the message's header of that name, ``call`` the message's body. ``seconds`` is
    the time from the request to the answer with ``status`` (None: not answered yet), ``published``
    that until its message was handed over for publishing (None: it was not, or the task is an
    earlier try's); ``error`` says why the answer was an error, how the task has failed, or why no
    route took it; ``attempts`` as in `Outcome`. If the delivery joined an earlier try, ``task_id``
    is the task of that try, and after a replay it is the replay's. The message may never have been
    published. If the delivery lacked a value for it, there was no message: ``queue`` is empty, and
    ``call`` is what a route without `args` gives. It is the same for a request that was refused
    before, or ignored; only then ``request`` has something: its ``method``, its ``path``, and
    whether its body is ``truncated`` in the call. ``replays`` is how often the delivery was
    published again; ``replaying`` the task id of a replay of which it is not known whether the
    broker has taken it, or "". ``identity`` is the same for all tries of a delivery that its sender
    repeats, and "" where they cannot be recognized. ``position`` is that in the journal, where it
    was read in order. ``redacted`` are the pointers whose values are not kept. An empty ``call``
    was not kept, or not read. ``begun_at`` and ``late_at`` say when it was noticed that a worker
    has begun the task, and when its late answer has ended. ``runs`` are the last runs before a
    replay, the oldest first: what was known when it was published (``state``, ``error``,
    ``attempts``, ``begun_at``, ``ended_at``, if there is any), when that was, ``resent_at``, and
    ``by`` whom, as the log names them. All times are in ISO 8601, "": not known.
    """

    delivery: dict[str, Any]
    task: str
    task_id: str
    queue: str
    status: int | None
    seconds: float
    call: bytes
    error: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    state: str = ACCEPTED
    ended_at: str = ""
    replays: int = 0
    replaying: str = ""
    identity: str = ""
    position: str = ""
    published: float | None = None
    attempts: int = 0
    request: dict[str, Any] = field(default_factory=dict)
    redacted: list[str] = field(default_factory=list)
    begun_at: str = ""
    late_at: str = ""
    runs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return str(self.delivery["id"])

    @property
    def path(self) -> str:
        """The route's path; where no route is known, that of the request."""
        return str(self.delivery.get("route") or self.request.get("path", ""))

    @property
    def edited_from(self) -> str:
        """The id of the delivery of which this is an edited copy; "": its sender has sent it."""
        return str(self.delivery.get("edited_from", ""))

    @property
    def unsendable(self) -> str:
        """Why its message cannot be published again as it was; "": it can."""
        # With an exchange `queue` is the routing key, which may be empty.
        if not (self.queue or self.options.get("exchange")):
            return f"it had no message: {self.error}"
        if self.redacted:
            return f"{', '.join(self.redacted)} was redacted, and is not kept"
        if others := self.options.keys() - _OPTIONS:
            return f"it has options of another version: {', '.join(sorted(others))}"
        if not self.call:
            return "its call was not kept (`keep_bodies`)"
        return "" if self._arguments() else "its call is damaged, and is no call any more"

    def run(self) -> dict[str, Any]:
        """Return what `runs` has of the present run, but when it is published again."""
        names = ("state", "attempts", "begun_at", "ended_at")
        known = {name: value for name in names if (value := getattr(self, name))}
        return known | ({"error": self.error[:_ERROR]} if self.error else {})

    def message(self, task_id: str) -> Message:
        """Return a persistent message for the same call, as another task with a stored result.

        Its header ``delivery`` says which replay it is, from 1 on.
        """
        own = dict(self.options)
        priority, extra = own.pop("priority", None), own.pop("extra", None)
        return Message(
            task_id,
            self.task,
            self.queue,
            self.call,
            {**self.delivery, "store": True, "replay": self.replays + 1},
            persistent=True,
            priority=priority,
            extra=extra,
            # Whoever replays a delivery wants to see what becomes of it, and now.
            options=MessageOptions(**{**own, "ignore_result": False, "delayed": False}),
        )

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword arguments of the task, if kept and readable."""
        return self._arguments() or ([], {})

    def original(self) -> Original | None:
        """Return the request, if it is kept and is what the task is called with."""
        return Original.of(*self.arguments())

    def _arguments(self) -> tuple[list[Any], dict[str, Any]] | None:
        try:
            args, kwargs, _ = read_json(self.call)
        except DAMAGED:
            return None
        return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None


def _checked(entry: Entry) -> Entry:
    """Return an entry that was read; raises one of `DAMAGED` where it is not as it was written."""
    delivery, request, runs = entry.delivery, entry.request, entry.runs
    objects = [delivery, request, entry.options, delivery.get("params", {}), *runs]
    texts = [delivery[name] for name in ("id", "route", "source", "event", "received_at")]
    texts += [delivery.get(name, "") for name in _TEXTS]
    texts += [*delivery.get("params", {}).values(), *entry.redacted, entry.task, entry.queue]
    texts += [each.get(name, "") for each in runs for name in ("error", "by")]
    texts += [request[name] for name in ("method", "path") if request]
    times = [delivery["received_at"], entry.ended_at, entry.begun_at, entry.late_at]
    times += [each["resent_at"] for each in runs]
    times += [each.get(name, "") for each in runs for name in ("begun_at", "ended_at")]
    numbers = [entry.status or 0, entry.seconds, entry.published or 0, entry.attempts]
    numbers += [entry.replays, *(each.get("attempts", 0) for each in runs)]
    if not (
        all(isinstance(each, dict) for each in objects)
        and all(isinstance(each, list) for each in (entry.redacted, runs))
        and all(isinstance(each, str) for each in texts)
        and isinstance(request.get("truncated", False), bool)
        and all(datetime.fromisoformat(each).utcoffset() is not None for each in times if each)
        and all(0 <= each < 2**31 for each in numbers)
        and all(map(_STATE, [entry.state, *(each["state"] for each in runs)]))
        and _PLACE(f"{entry.identity} {entry.position}")
    ):
        raise ValueError("a field is not as it was written")
    return entry


def read_json(text: bytes | str) -> Any:
    """Return what JSON says; a half surrogate, which UTF-8 cannot express, is a question mark."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    found = json.loads(data)
    if b"\\ud" in data.lower():
        found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
    return found


_FIELDS = {each.name for each in fields(Entry)}


def known(about: str) -> dict[str, Any]:
    """Return the fields of an `Entry` from `described`; those of another version are left out."""
    return {name: value for name, value in json.loads(about).items() if name in _FIELDS}


def order(position: str) -> tuple[int, ...]:
    """Return by what positions are ordered: two numbers; for an empty one, none."""
    return tuple(map(int, position.split("-"))) if position else ()


def stored(delivery_id: str, flat: Sequence[bytes], position: str = "") -> Entry | None:
    """Return the entry whose hash has these fields, each before its value.

    None: it is gone, or cannot be read.
    """
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    try:
        entry = _checked(_entry(fields, position)) if fields else None
        if entry is not None and delivery_id not in ("", entry.id):
            raise ValueError(f"it is said to be {entry.id}")
        return entry
    except DAMAGED as exc:
        which = delivery_id or f"at {position}"
        log.warning("the delivery %s in the journal is damaged, and is left out: %r", which, exc)
        return None


def _entry(fields: Mapping[bytes, bytes], position: str) -> Entry:
    texts = {key.decode(): value.decode() for key, value in fields.items() if key != b"call"}
    status, published = texts.get("status"), texts.get("published")
    position = position or texts["position"]
    about = known(texts["about"])
    if "asked" in texts and texts["state"] not in WELL:  # an older gateway does not drop it
        asked = json.loads(texts["asked"])
        about["delivery"]["query_string"] = asked["query_string"]
        about["options"] |= {} if asked["extra"] is None else {"extra": asked["extra"]}
    if "received_at" not in about["delivery"]:
        ms, _ = order(position)
        received = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
        about["delivery"]["received_at"] = received
    return Entry(
        **about,
        call=fields.get(b"call", b""),
        task_id=texts["task_id"],
        status=None if status is None else int(status),
        seconds=float(texts.get("seconds", 0.0)),
        published=float(published) if published else None,
        attempts=int(texts.get("attempts") or 0),
        error=texts.get("error", ""),
        state=texts["state"],
        ended_at=texts.get("ended_at", ""),
        replays=int(texts.get("replays", 0)),
        replaying=texts.get("replaying", ""),
        position=position,
        begun_at=texts.get("begun_at", ""),
        late_at=texts.get("late_at", ""),
        runs=json.loads(texts.get("runs") or "[]"),
    )


def ms_of(when: datetime) -> int:
    """Return a time as positions have it: milliseconds since the epoch."""
    return max(int(when.timestamp() * 1000), 0)


def iso_now() -> str:
    """Return the present time as entries have it."""
    return datetime.fromtimestamp(time(), UTC).isoformat(timespec="milliseconds")


@cache
def _own(options: MessageOptions) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if value != _DEFAULTS[name]}


def described(message: Message, identity: str, keep: str) -> tuple[str, str]:
    """Return two texts in JSON for the entry of `message`, which never change.

    The second one, which may be empty, has what is dropped with its call. `keep` is the setting
    `keep_bodies`.
    """
    own = {"priority": message.priority, "extra": message.extra}
    options = _own(message.options) | {k: v for k, v in own.items() if v is not None}
    about = {"delivery": message.delivery, "task": message.task, "queue": message.queue}
    known = {"identity": identity_digest(identity).hex()} if identity else {}
    hidden = {"redacted": message.redacted} if message.redacted else {}
    return divided({**about, "options": options, **known, **hidden}, keep)


def divided(about: dict[str, Any], keep: str) -> tuple[str, str]:
    """Return as `described` does what is known of a delivery, whose query may be its body."""
    if keep == "all":
        return json.dumps(about), ""
    delivery, options = {**about["delivery"], "query_string": ""}, {**about["options"]}
    query = about["delivery"].get("query_string", "")
    asked = {"query_string": query, "extra": options.pop("extra", None)}
    left = json.dumps({**about, "delivery": delivery, "options": options})
    return left, json.dumps(asked) if keep == "failed" else ""


class End(NamedTuple):
    """What became of a delivery's task; the fields are those of its `Entry`."""

    state: str
    error: str = ""
    attempts: int = 0


def ended(outcome: Outcome) -> End:
    """Return the end of a delivery from the outcome of its task."""
    error, attempts = outcome.error or "", outcome.attempts
    if outcome.state == SUCCESS:
        return End(FAILED if error else SUCCEEDED, error, attempts)
    error = error or outcome.state
    if outcome.detail:
        error = f"{error}: {outcome.detail}"
    if outcome.state != FAILURE:
        return End(EXPIRED, error, attempts)
    if _DEAD_LETTER in outcome.detail:  # the error says how often its workers were lost
        return End(DEAD_LETTERED, error)
    return End(FAILED, error, attempts)
