"""A sender as a block of data: the keys that a block may have, and what they mean.

The blocks that come with the gateway are the files of `senders/`, one a sender. In `gateway.toml`
a table ``[sources.NAME]`` without a `scheme` has the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.model import Model, matching
from gateway.similar import meant
from gateway.sources import proofs
from gateway.sources.base import Sample, as_list
from gateway.sources.places import IN_BODY, Place

#: A place in a text: ``{header:x-time}``. Other braces are part of the text, as JSON has them.
PLACEHOLDER = re.compile(
    r"\{((?:hmac:)?(?:(?:headers?|query|form|json|sig|claim):[^{}]*"
    r"|(?:body|raw_body|url|path|method|key|name|id|time|audience|sha256|token)(?:\|[^{}]*)?))\}"
)


def _one_of(names: Collection[str]) -> AfterValidator:
    def check(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text[:40]} is not known; {meant(text, names)}")
        return text

    return AfterValidator(check)


Texts = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(as_list)]
Places = Annotated[list[Place], BeforeValidator(as_list)]
Printable = Annotated[str, matching(r"[\x20-\x7e]*", "has printable ASCII characters only")]
_Name = Annotated[str, matching(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", "is no name of a header")]


_key_form = matching("pem|jwks|kids|json:/.+", "is pem, jwks, kids or json:/pointer")


class Handshake(Model):
    """A request that is answered at once, without a task, if every place in `when` has its value.

    The values "" and "*" mean that there is nothing, and that there is anything. A POST has to be
    signed, unless `signed` is false: then it is also answered without any signature. `token` is
    the place of the source's `verify_token`. `body` and `headers` have places in braces;
    ``{hmac:PLACE}`` is the text at the place, signed with the key.
    """

    method: Literal["GET", "HEAD", "OPTIONS", "POST"] = "POST"
    when: dict[Place, str | int] = {}
    signed: bool | None = None
    token: Place | None = None
    #: What ``{sha256}`` in an answer is the hash of; ``{token}`` is the `verify_token`.
    sha256: str = ""
    status: int = Field(200, ge=200, le=299)
    headers: dict[_Name, Printable] = {}
    body: str = ""
    content_type: str | None = None

    @property
    def is_signed(self) -> bool:
        return self.method == "POST" if self.signed is None else self.signed

    @property
    def reads(self) -> list[str]:
        """The places that the answer needs, with ``hmac:`` before those to sign."""
        texts = "".join([self.body, *self.headers.values()])
        return [text for text in PLACEHOLDER.findall(texts) if text != "sha256"]

    @property
    def signs(self) -> bool:
        """Is something signed for the answer?"""
        return any(text.startswith("hmac:") for text in self.reads)


class Block(Model):
    """How a sender signs, what identifies its deliveries, how it is answered."""

    #: Where the signature is; each of them is tried.
    signature: Annotated[Places, Field(min_length=1)]
    #: What separates the fields of a header with several (any of these), and a field's name from
    #: its value.
    separators: Texts = Field([], alias="list")
    assign: str = "="
    #: The names of the fields that are signatures; ``*``: all fields.
    pick: Texts = []
    prefix: Printable = ""
    #: Several: each of them is accepted, and ``{hash}`` in the prefix is the name of its hash.
    algorithms: Annotated[
        list[Annotated[str, _one_of(proofs.ALGORITHMS)]],
        BeforeValidator(as_list),
        Field(min_length=1),
    ] = Field(["hmac-sha256"], alias="algorithm")
    key: Annotated[str, _one_of(proofs.KINDS)] = "utf8"
    encoding: Annotated[str, _one_of(proofs.ENCODINGS)] = "hex"
    #: The signed text, with places in braces.
    signed: str = "{body}"
    #: Places, claims of a token among them, and what has to be there: a text with places in braces.
    require: dict[Place, str] = {}
    #: Where a public key is fetched: a URL, with places in braces. A place that is the whole URL
    #: has to fit one of `key_urls`, in which ``*`` stands for letters, digits, `-` and `_`, and in
    #: the host for a region such as `eu-west-1`.
    key_url: str = ""
    key_urls: list[str] = []
    #: What is there: `pem`, `jwks` (RFC 7517), `kids` (JSON: keys by their ids), or json:/pointer.
    key_form: Annotated[str, _key_form] = "pem"
    #: Headers of the request for a key; ``{key}`` is the secret, ``{token}`` an access token.
    key_headers: dict[_Name, Printable] = {}
    #: Where an access token is fetched, a URL and a form (RFC 6749, 4.4); a secret is `id:secret`.
    key_token: list[str] = Field([], max_length=2)
    time: Places = []
    #: Unset: seconds; with ``tolerance = 0`` any text.
    unit: Literal["s", "ms", "iso"] | None = None
    #: The default of the source's option: longer where later tries repeat the time of the first.
    tolerance: float = Field(300, ge=0)
    id: Places = []
    #: The first of them that is there is the delivery's; `digest` is that of the body.
    identity: Places = []
    #: What else tells two deliveries with one identity apart.
    apart: list[Places] = [[Place("event")]]
    event: Places = []
    #: Joined to the event with a dot.
    subevent: Places = []
    #: Names of events by the values at the place.
    names: dict[str, str] = {}
    #: The names of the events, in which ``*`` stands for any text.
    events: list[str] | None = None
    handshakes: list[Handshake] = []
    #: The methods of its deliveries. A GET's query is its body.
    methods: list[Literal["GET", "POST", "PUT"]] = Field(["POST"], min_length=1)
    #: The body of a 200 that means "accepted".
    fallback: str | None = None
    content_type: str | None = None
    deadline: float | None = Field(None, gt=0, le=86_400)
    tries: int = Field(1, ge=1)
    retry_after: float = Field(0.0, ge=0)
    #: The largest body that the sender sends, in bytes.
    max_body: int | None = Field(None, ge=1)
    #: Further headers with secrets.
    secret_headers: list[Annotated[str, AfterValidator(str.lower)]] = []
    #: The form of a secret, and what the problem is where one has another.
    secret_form: list[str] = []
    #: For the documents: the sender's name, what was read and when, how long it waits, and when it
    #: tries again.
    title: str = ""
    #: What its way of signing leaves open.
    note: str = ""
    sources: list[str] = []
    waits: str = "not documented"
    #: The keys that `sources` do not show; they come from notes about the sender.
    unchecked: list[str] = []
    samples: dict[str, Sample] = {}
    #: Secrets for tests: `secrets` signs, `public` verifies that, `other_secret` does not.
    example: dict[str, str | list[str]] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Block:
        if problems := [*_problems(self)]:
            raise ValueError("\n".join(problems))
        return self

    @property
    def algorithm(self) -> str:
        """The first of the algorithms, with which samples are signed."""
        return self.algorithms[0]

    @property
    def is_jwt(self) -> bool:
        return self.algorithm == proofs.JWT

    @property
    def signed_places(self) -> list[str]:
        """The places in `signed`; the key is none, and a token signs nothing."""
        found = [] if self.algorithm in proofs.TOKENS or self.is_jwt else [self.signed]
        # A claim with a hash covers what was hashed.
        found += [text for place, text in self.require.items() if place.startswith("claim:")]
        own = ("key", "name", "audience")
        return [text for text in PLACEHOLDER.findall("".join(found)) if text not in own]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """All places with the keys that name them."""
        keys = ("signature", "time", "id", "identity", "event", "subevent")
        found = [(key, text) for key in keys for text in getattr(self, key)]
        found += [("apart", text) for texts in self.apart for text in texts]
        for each in self.handshakes:
            hashed = [text for text in PLACEHOLDER.findall(each.sha256) if text != "token"]
            found += [("handshakes", text) for text in (*each.when, *each.reads, *hashed)]
        required = PLACEHOLDER.findall("".join(self.require.values()))
        required = [text for text in required if text not in ("key", "audience")]
        found += [("require", text) for text in (*self.require, *required)]
        found += [("key_url", text) for text in PLACEHOLDER.findall(self.key_url)]
        return [*found, *(("signed", text) for text in self.signed_places)]

    @property
    def covers_body(self) -> bool:
        """Does the signature cover the body, byte for byte?"""
        token = self.is_jwt and self.signature == ["body"]
        return token or not _WHOLE.isdisjoint(self._signed)

    def is_signed(self, text: str) -> bool:
        """Tell whether nobody but the sender can change what is at the place."""
        places, signed = self.places(text), self._signed
        if all(place.kind == "claim" for place in places):
            return True
        if all(place.kind in IN_BODY for place in places):
            return self.covers_body or signed.issuperset(places)
        whole = {"query": "url"}
        return all({each, each.plain, whole.get(each.kind)} & signed for each in places)

    @property
    def _signed(self) -> set[str | None]:
        found: set[str | None] = set()
        for place in (place for text in self.signed_places for place in self.places(text)):
            found.add(place)
            if place.kind == "headers":
                found.update(f"header:{name}" for name in place.name.split(","))
            for each in place.filters:
                if each.startswith("lines:"):
                    found.update(f"json:/{n}" for n in each.removeprefix("lines:").split(","))
        return found

    @property
    def pair(self) -> tuple[list[str], list[str]] | None:
        """The pointers to an event and its subevent in the same items of a list, if they are so."""
        events, others = self.places_of("event"), self.places_of("subevent")
        if len(events) != 1 or len(others) != 1:
            return None
        one, other = events[0].items, others[0].items
        return (one, other) if one and other else None

    def places_of(self, *keys: str) -> list[Place]:
        """Return all places that these keys name."""
        return [place for key, text in self.texts if key in keys for place in self.places(text)]

    def places(self, text: str) -> list[Place]:
        """Return the place that `text` names; for `id` and `time` those that they stand for."""
        place = Place(text.removeprefix("hmac:"))
        if place.kind not in ("id", "time"):
            return [place]
        return [Place("|".join([own, *place.filters])) for own in getattr(self, place.kind)]


#: Places that cover the body: their filters keep a text, or make of it what nobody can make of
#: another one.
_WHOLE = {
    f"{kind}{each}"
    for kind in ("body", "raw_body")
    for each in ("", "|sha256hex", "|sha256base64", "|string")
}


def _is_pattern(text: str) -> bool:
    try:
        return bool(re.compile(text))
    except re.error:
        return False


def _problems(block: Block) -> Iterator[str]:
    """Yield what does not fit together, each with the key that it is about."""
    found = PLACEHOLDER.findall(block.signed)
    others = PLACEHOLDER.sub("", block.signed)
    if not found or re.search(r'\{(?!")', others) or others.count("{") != others.count("}"):
        yield "signed: a text with places in braces, such as {time}.{body}, and no other but JSON"
    for key, text in block.texts:
        try:
            place = Place(text.removeprefix("hmac:"))
        except ValueError as exc:
            yield f"{key}: {exc}"
            return
        if place.kind in ("id", "time") and (key == place.kind or not getattr(block, place.kind)):
            yield f"{place.kind}: is needed for {place.kind} in {key}; name a place of the request"
        if place.kind == "sig" and not block.pick:
            yield "pick: is needed for sig: places; name the fields that are signatures"
    if block.algorithm.startswith("sha") and "key" not in found:
        yield "signed: a plain hash has to have the key in it; write {key} where it belongs"
    kinds = {_kind(each) for each in block.algorithms}
    if len(kinds) > 1:
        yield "algorithm: several have to be of one kind: all hmac, or all of public keys"
    if kinds == {"public"} and block.key not in proofs.PUBLIC_KINDS:
        yield f"key: {block.algorithm} needs a public key: {', '.join(proofs.PUBLIC_KINDS)}"
    if not kinds <= {"public", proofs.JWT} and block.key in proofs.PUBLIC_KINDS:
        names = ", ".join((*proofs.PUBLIC_KEYS, proofs.JWT))
        yield f"algorithm: {block.key} is a public key, which everybody knows; name {names}"
    yield from _key_problems(block, kinds)
    if not block.algorithm.startswith("hmac-") and any(each.signs for each in block.handshakes):
        yield f"handshakes: {{hmac:...}} needs an hmac algorithm, not {block.algorithm}"
    if block.secret_form and (len(block.secret_form) != 2 or not _is_pattern(block.secret_form[0])):
        yield "secret_form: a regular expression, and what to say where a secret does not fit it"
    for key, text in block.texts:
        if "claim:" in text and not block.is_jwt:
            yield f'{key}: {text} is a claim of a token, which only algorithm = "jwt" has'
    for text in block.time if block.algorithm not in proofs.TOKENS else ():
        if not block.is_signed(text):
            yield f"time: {text} is not signed; write {{time}} in signed"
    if any("*" in text for text in block.event) and any("*" in text for text in block.subevent):
        ends = [tokens[: len(tokens) - tokens[::-1].index("*")] for tokens in block.pair or ()]
        if not ends or ends[0] != ends[1]:
            yield "subevent: with * it has to be in the items of the list in which the event is"
    tokens = block.algorithm in proofs.TOKENS
    if any("*" in place.name for place in block.signature) and not tokens:
        yield f"signature: with * it is the secret of each item, which {block.algorithm} is not"
    if block.pick and not block.separators:
        yield 'list: is needed for pick; say what separates the fields, as in ","'


def _kind(algorithm: str) -> str:
    return "public" if algorithm in proofs.PUBLIC_KEYS else algorithm.partition("-")[0]


#: The beginning of a URL up to the path: nothing in it may come from a request.
_begins = re.compile(r"https://[a-z0-9.*-]+/|http://(127\.0\.0\.1|localhost)(:[0-9]{1,5})?/").match


def _key_problems(block: Block, kinds: set[str]) -> Iterator[str]:
    """Yield what is wrong with where public keys are fetched."""
    if not block.key_url:
        if any("{key}" in text for text in block.require.values()):
            yield "require: {key} needs key_url; without it a secret is the key itself"
        if block.key_urls or block.key_headers:
            yield "key_url: is needed beside key_urls and key_headers"
        return
    if not kinds <= {"public", proofs.JWT}:
        yield f"key_url: {block.algorithm} has no public key that could be fetched"
    if block.key_form in ("jwks", "kids") and not block.is_jwt:
        yield f'key_form: {block.key_form} needs algorithm = "jwt", as tokens name their key'
    if PLACEHOLDER.fullmatch(block.key_url) and not block.key_urls:
        yield "key_urls: is needed if the request has the whole URL of the key"
    for text in block.key_urls or [block.key_url]:
        if not _begins(text):
            hosts = "http:// is for 127.0.0.1 and localhost only"
            yield f"key_url: {text} does not begin with https://, a host and a slash; {hosts}"
