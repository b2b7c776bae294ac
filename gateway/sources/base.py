"""The contract of every source: verify a sender, read its delivery, answer in its form."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

from pydantic import BeforeValidator, Field, SecretStr, field_validator

from gateway.answer import TEXT, Answer
from gateway.delivery import Request
from gateway.errors import MethodNotAllowed
from gateway.model import Model


def as_list(value: Any) -> Any:
    """Return a list as it is, and any other value as a list of one."""
    return value if isinstance(value, list) else [value]


Secrets = Annotated[list[SecretStr], BeforeValidator(as_list), Field(min_length=1)]


class Options(Model):
    """The options of ``[sources.NAME]``; a scheme with more options has a subclass."""

    scheme: str
    #: Each of them is accepted, so that a secret can be replaced by another.
    secrets: Secrets
    #: Seconds that a timestamp may differ from now; 0: the time is not checked.
    tolerance: float = Field(300, ge=0)
    #: Names of secret headers that the task gets nevertheless.
    pass_headers: list[str] = []
    #: The status of the answer to an event that no route takes; None: the scheme's answer, or 204.
    unrouted: int | None = Field(None, ge=200, le=599)
    #: The most deliveries a second, and deliveries in flight, of this source in one process.
    rate: float | None = Field(None, gt=0)
    max_in_flight: int | None = Field(None, ge=1)
    #: By which late answers are sent: the app at the sender, and its secret there.
    app_id: str | None = None
    app_secret: SecretStr | None = Field(None, min_length=1)

    def credential(self, name: str) -> str:
        """Return `app_id`, which may be the receive id, or `app_secret`; empty: it is not set."""
        if name == "app_id":
            return self.app_id or getattr(self, "receive_id", None) or ""
        return self.app_secret.get_secret_value() if self.app_secret else ""

    @field_validator("secrets")
    @classmethod
    def _not_empty(cls, secrets: list[SecretStr]) -> list[SecretStr]:
        if not all(secret.get_secret_value() for secret in secrets):
            raise ValueError("a secret is empty; set it")
        for text in (secret.get_secret_value() for secret in secrets):
            if text != text.strip() and "-----BEGIN" not in text:
                raise ValueError("a secret begins or ends with a space or a line end; remove it")
        return secrets


@dataclass(slots=True, frozen=True)
class Verified:
    """The content of a verified request.

    ``body`` is what the task gets, decrypted; ``identity`` is the same in all tries of one
    delivery, and in no other one (empty: there is none); ``event`` is the event's name, or of a
    batch the names of all its events, joined by commas (empty: it has none); ``account`` is the
    receive id of the message. If there is a ``challenge``, it is the answer, and there is no task.
    ``context`` is data for `Source.reply`.
    """

    body: bytes
    identity: str = ""
    event: str = ""
    account: str = ""
    challenge: Answer | None = None
    context: Any = None


@dataclass(slots=True, frozen=True)
class Draft:
    """A delivery that is to be signed as its sender would; ``now`` is seconds since the epoch."""

    body: bytes
    url: str
    now: float
    event: str = ""
    identity: str = ""


@dataclass(slots=True, frozen=True)
class Signed:
    """A signed draft: its body, further headers, and parameters to append to its URL's query."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)


class Sample(NamedTuple):
    """A small delivery of an ``event``.

    ``body`` has the placeholders ``$id``, ``$time`` (seconds since the epoch), ``$token`` (a secret
    that some senders write into the body), ``$event``, and ``$kind`` and ``$action``: the parts of
    the event before and after its first dot. ``$number`` is the id in JSON: a number if it is one,
    and otherwise a text. Where the digest of the body identifies a delivery, there is no ``$time``,
    so that samples with the same id are the same delivery.
    """

    event: str
    body: str


_is_number = re.compile(r"0|[1-9][0-9]*", re.ASCII).fullmatch


def _escaped(text: str, body: str) -> str:
    """Return `text` as it is written in a sample's `body`: JSON, XML or a form."""
    if body.startswith(("{", "[")):
        return json.dumps(text, ensure_ascii=False)[1:-1]
    return escape(text) if body.startswith("<") else quote_plus(text)


class KeyRequest(NamedTuple):
    """A public key, or a set of them, that is fetched from `url`; `read` raises ValueError.

    `login` is the URL and the form that give an access token in return for the `secret`; the token
    takes the place of ``{token}`` in the headers. `asker` is the address from which the request
    came that names the key.
    """

    url: str
    headers: dict[str, str]
    read: Callable[[bytes], Any]
    login: Sequence[str] = ()
    secret: str = ""
    asker: str = ""


class KeyStore(Protocol):
    """Knows what was fetched, and fetches what is not known in the background."""

    def get(self, wanted: KeyRequest, newer: bool = False) -> Any:
        """Return what is there; `newer`: as it is now, unless it was fetched a moment ago.

        Raises `KeyNotKnown` as long as it is not known, and `Unverified` where there is nothing.
        """


class Source(ABC):
    """Verifies and signs by one sender's scheme. No I/O; the time is an argument.

    An implementation has these duties:

    - `verify` works on the raw bytes, compares in constant time, tries every secret, and
      raises nothing but a `RequestError`: `Unverified` (401) for what is missing, malformed,
      wrong or outside its tolerance, `BadRequest` (400) for an envelope that cannot be read.
    - The identity holds all that tells two deliveries apart (account, sender, topic, hook), and the
      digest of the decrypted body where tries repeat it (`gateway.sources.reading.identity`).
    - Identity and event are read from signed data; where the scheme does not sign the header
      that contains them, the scheme's documentation says so. They are read as tolerantly as
      possible: what is verified is relayed, though nobody can read it.
    - `reply` gives a successful task's answer the form that the sender expects.
    """

    options_class: ClassVar[type[Options]] = Options
    #: Sample deliveries by the part of the event before its first dot; "": any other event.
    samples: ClassVar[dict[str, Sample]]
    #: Defaults for the source's routes: seconds until the sender disconnects (less a margin), the
    #: number of its tries, seconds between two tries. A scheme of one sender has to set a deadline;
    #: None is for `hmac` only, which has no one sender, and stands for `Config.timeout`.
    deadline: ClassVar[float | None] = None
    tries: ClassVar[int] = 1
    retry_after: ClassVar[float] = 0.0
    #: The body of a 200 that tells the sender "accepted" without a result; None: a 202 is sent.
    fallback: ClassVar[str | None] = None
    #: The content type of an answer whose task returned a str.
    content_type: ClassVar[str] = TEXT
    #: The names of the sender's events, in which `*` stands for any texts; () if they have none,
    #: None if they are not known. `gateway check` compares routes with them.
    events: tuple[str, ...] | None = None
    #: The largest body that the sender sends, in bytes; None: it is not known.
    max_body: ClassVar[int | None] = None
    #: Request headers, in lower case, that the task does not get.
    secret_headers: frozenset[str] = frozenset()
    #: Do deliveries have an identity, by which later tries are recognized?
    identifies: ClassVar[bool] = True
    #: The methods of the sender's handshakes, besides POST.
    handshakes: ClassVar[tuple[str, ...]] = ()
    #: Is `Config.public_url` needed to verify?
    needs_public_url: ClassVar[bool] = False

    #: Is the key that of all the sender's users, and nothing says whose a delivery is?
    shared_key: bool = False
    #: Are public keys fetched? Then they are looked up in `key_store`.
    fetches: bool = False
    key_store: KeyStore | None = None
    #: The keys that every delivery needs, so that they are fetched before the first one.
    key_requests: Sequence[KeyRequest] = ()
    #: The methods of its deliveries, unless a route says others.
    methods: tuple[str, ...] = ("POST",)

    def __init__(self, options: Options, public_url: str = ""):
        self.options = options
        self.public_url = public_url

    def sample(self, event: str, identity: str, now: float, token: str = "") -> tuple[str, bytes]:
        """Return an event (`event`, or a default if that is empty) and the body of a sample."""
        event = event or self.samples[""].event
        kind, _, action = event.partition(".")
        body = self.samples.get(kind, self.samples[""]).body
        texts = {"event": event, "kind": kind, "action": action, "id": identity, "token": token}
        values = {name: _escaped(text, body) for name, text in texts.items()}
        number = identity if _is_number(identity) else json.dumps(identity)
        filled = Template(body).substitute(values, number=number, time=int(now))
        return event, filled.encode()

    @classmethod
    def needs_url(cls, options: Options) -> bool:
        """Is `Config.public_url` needed with these options?"""
        return cls.needs_public_url

    @property
    def covers_body(self) -> bool:
        """Does the signature cover the body? If not, `gateway check` says so."""
        return True

    def handshake(self, request: Request) -> Answer:
        """Answer a handshake that is no POST. Raises `RequestError`, as `verify` does."""
        raise MethodNotAllowed(headers={"Allow": "POST"})

    @abstractmethod
    def verify(self, request: Request) -> Verified:
        """Verify a delivery at the time ``request.received_at`` (seconds since the epoch).

        Of a GET, its body is its query.
        """

    def reply(self, answer: Answer, verified: Verified, now: float) -> Answer:
        """Return `answer`, a 2xx, in the sender's form; `now` is seconds since the epoch."""
        return answer

    @abstractmethod
    def sign(self, draft: Draft) -> Signed:
        """Sign `draft` as the sender would, with the first secret, and encrypt it if configured.

        Where secrets are public keys, the first one is used as the private key.
        """
