"""The contract of every source: who is calling, what they said, how they want it answered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from string import Template
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from gateway.answer import TEXT, Answer
from gateway.delivery import Request
from gateway.errors import MethodNotAllowed
from gateway.model import Model


def listed(value: Any) -> Any:
    """Take one value for a list of one."""
    return value if isinstance(value, list) else [value]


Secrets = Annotated[list[SecretStr], BeforeValidator(listed), Field(min_length=1)]


class Options(Model):
    """What ``[sources.NAME]`` may say; a scheme with more settings derives its own."""

    scheme: str
    #: Any of them verifies, so that one can be changed for another.
    secrets: Secrets
    #: Seconds that a timestamp may lie in the past or the future; 0: it is not looked at.
    tolerance: float = Field(300, ge=0)
    #: Header names that the task gets although they are secret.
    pass_headers: list[str] = []
    #: The status of an event that no route takes; None: the scheme's own way, or 204.
    unrouted: int | None = Field(None, ge=200, le=599)
    #: Deliveries a second, and deliveries under way, that this source may have in a process.
    rate: float | None = Field(None, gt=0)
    max_in_flight: int | None = Field(None, ge=1)

    @field_validator("secrets")
    @classmethod
    def _not_empty(cls, secrets: list[SecretStr]) -> list[SecretStr]:
        if not all(secret.get_secret_value() for secret in secrets):
            raise ValueError("an empty secret verifies nothing")
        return secrets


@dataclass(slots=True, frozen=True)
class Verified:
    """What a verified request says.

    ``body`` is what the task gets, in plain text; ``identity`` is what the sender repeats with
    each try of one delivery (empty: nothing); ``event`` names its kind (empty: it has none);
    ``account`` is the receive id that the message was for. A ``challenge`` is answered at once
    and never becomes a task. ``context`` is whatever `Source.reply` wants to see again.
    """

    body: bytes
    identity: str = ""
    event: str = ""
    account: str = ""
    challenge: Answer | None = None
    context: Any = None


@dataclass(slots=True, frozen=True)
class Draft:
    """What is to be signed as the sender would: ``now`` is seconds since the epoch."""

    body: bytes
    url: str
    now: float
    event: str = ""
    identity: str = ""


@dataclass(slots=True, frozen=True)
class Signed:
    """What a sender adds to a draft; ``query`` are parameters to append to its URL."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)


class Sample(NamedTuple):
    """A small delivery of an ``event``.

    ``body`` has the placeholders ``$id``, ``$time`` (seconds since the epoch), ``$token`` (a secret
    that some senders write into the body), ``$event``, and ``$kind`` and ``$action``: what stands
    before and after the event's first dot.
    """

    event: str
    body: str


@dataclass(frozen=True)
class Example:
    """What tests and load tests of a scheme need.

    ``options`` are those of ``[sources.NAME]`` with which the sender signs, ``receiver`` what
    differs at the receiving end (a public key); ``other_secret`` verifies nothing of the sender's.
    ``proof`` is the header or query parameter with the signature, which is good for a while only
    where it is ``timed``. ``identity`` is what is found in a sample whose id is 123456789; where it
    is empty, the digest of the body stands for one. An ``opaque`` body is not parsed.
    """

    options: dict[str, Any]
    other_secret: str
    proof: str
    timed: bool = False
    receiver: dict[str, Any] = field(default_factory=dict)
    identity: str = "123456789"
    opaque: bool = False


class Source(ABC):
    """Knows one sender's scheme in both directions. No I/O; the time is handed in.

    An implementer's duties:

    - `verify` works on the raw bytes, compares in constant time, tries every secret, and
      raises nothing but a `RequestError`: `Unverified` (401) for what is missing, malformed,
      wrong or outside its tolerance, `BadRequest` (400) for an envelope that cannot be read.
    - Identity and event come from what was verified; where the scheme does not sign the
      header they stand in, the scheme's documentation says so.
    - `reply` gives a successful task's answer the form that the sender wants.
    """

    options_class: ClassVar[type[Options]] = Options
    #: What the sender sends, by the part of the event before the first dot; "": any other event.
    samples: ClassVar[dict[str, Sample]]
    example: ClassVar[Example]
    #: The sender's habits, for routes that say nothing else: seconds until it hangs up (less
    #: a margin), how often it tries in all, seconds between two tries.
    deadline: ClassVar[float | None] = None
    tries: ClassVar[int] = 1
    retry_after: ClassVar[float] = 0.0
    #: What says "taken" without a result: a body for 200 (None: an empty 202).
    fallback: ClassVar[str | None] = None
    #: The content type of a task's str.
    content_type: ClassVar[str] = TEXT
    #: Request headers, in lower case, that the task does not get.
    secret_headers: frozenset[str] = frozenset()
    #: Does a delivery say which one it is, so that a second try can be known?
    identifies: ClassVar[bool] = True
    #: Does the sender's handshake come as a GET?
    handshakes: ClassVar[bool] = False
    #: Is `Config.public_url` needed to verify?
    needs_public_url: ClassVar[bool] = False

    def __init__(self, options: Options, public_url: str = ""):
        self.options = options
        self.public_url = public_url

    @classmethod
    def sample(cls, event: str, identity: str, now: float, token: str = "") -> tuple[str, bytes]:
        """Return an event (`event`, unless that is empty) and the body of a delivery of it."""
        event = event or cls.samples[""].event
        kind, _, action = event.partition(".")
        found = cls.samples.get(kind, cls.samples[""])
        body = Template(found.body).substitute(
            event=event, kind=kind, action=action, id=identity, time=int(now), token=token
        )
        return event, body.encode()

    @property
    def covers_body(self) -> bool:
        """Does the signature cover the body? Where not, the operator is told."""
        return True

    def handshake(self, request: Request) -> Answer:
        """Answer the sender's GET. Raises `RequestError`, as `verify` does."""
        raise MethodNotAllowed(headers={"Allow": "POST"})

    @abstractmethod
    def verify(self, request: Request) -> Verified:
        """Verify a POST at the time ``request.received_at`` (seconds since the epoch)."""

    def reply(self, answer: Answer, verified: Verified, now: float) -> Answer:
        """Return `answer`, a 2xx, in the sender's form; `now` is seconds since the epoch."""
        return answer

    @abstractmethod
    def sign(self, draft: Draft) -> Signed:
        """Sign, and where the options ask for it encrypt, `draft` as the sender would, with
        the first secret (where that is a public key: taken for the private one)."""
