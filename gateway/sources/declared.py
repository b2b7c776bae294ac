"""Sources that are made from blocks of data: everything about one follows from its block."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote_plus, urlsplit
from uuid import uuid4

from pydantic import SecretStr

from gateway.answer import JSON, TEXT, Answer, field_value
from gateway.delivery import Request
from gateway.errors import (
    KeyNotKnown,
    MethodNotAllowed,
    OutOfTolerance,
    SignatureMismatch,
    SignatureMissing,
    Unverified,
)
from gateway.sources import jwt
from gateway.sources.base import Draft, KeyRequest, Options, Signed, Source, Verified
from gateway.sources.block import PLACEHOLDER, Block, Handshake
from gateway.sources.block_keys import keys_in, keys_of, texts_of
from gateway.sources.envelopes import MAX_UNPROVEN, check_unproven, read_loosely
from gateway.sources.fields import identity, name, pointer, put, read_if_json
from gateway.sources.keys import KEY, TOKENS, Key
from gateway.sources.places import (
    IN_BODY,
    Place,
    Reader,
    Seen,
    bytes_reader,
    encoded,
    first,
    reader,
)
from gateway.sources.signatures import check, digest, raw

#: Signatures that are checked: there are two while keys are replaced, and each costs CPU time.
MAX_SIGNATURES = 10
#: What anybody may have signed by a handshake: nothing that a signed text could be.
_token = re.compile(rb"[A-Za-z0-9._~+/=-]{1,512}").fullmatch
_DEFAULT_EVENT = "hello"


def _iso(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as exc:
        raise Unverified("The timestamp is not a date and time.") from exc


class Unit(NamedTuple):
    """A form of times: what fits it, how it is called, how it is read and written."""

    fits: Callable[[str], Any]
    called: str
    read: Callable[[str], float]
    write: Callable[[float], str]


_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
_ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"
# Eleven digits of seconds are enough until the year 5138.
_UNITS = {
    "s": Unit(
        re.compile(r"[0-9]{1,11}").fullmatch, "a number of seconds", int, lambda now: str(int(now))
    ),
    "ms": Unit(
        re.compile(r"[0-9]{1,14}").fullmatch,
        "a number of milliseconds",
        lambda text: int(text) / 1000,
        lambda now: str(int(now * 1000)),
    ),
    "iso": Unit(
        re.compile(_DATE + "(" + _ZONE + ")?").fullmatch,
        "a date and time",
        _iso,
        lambda now: datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
    ),
}
#: Without a zone nothing says where a time ends, if nothing separates it from what follows.
_ZONED = _UNITS["iso"]._replace(
    fits=re.compile(_DATE + _ZONE).fullmatch, called="a date and time with a zone"
)


class Declared(Source):
    """A source that follows a block. Its subclasses are made by `gateway.sources.making`."""

    block: ClassVar[Block]

    def __init__(self, options: Options, public_url: str = ""):
        super().__init__(options, public_url)
        self._block = block = options if isinstance(options, Block) else self.block
        together = "}{" in block.signed
        self._unit = _ZONED if together and block.unit == "iso" else _UNITS[block.unit or "s"]
        secrets = [secret.get_secret_value() for secret in options.secrets]
        # With a public key that is fetched, the other secrets say what else has to fit.
        self._texts = texts_of(secrets, block)
        self._keys = [key for secret in secrets for key in keys_of(secret, block, self._texts)]
        self.fetches = not self._keys
        own = any("{key}" in text for text in block.require.values())
        self.shared_key = own and bool(block.key_url) and not self._texts
        self._fetched = self._fetching() if self.fetches else None
        headers = (each for text in block.signature for each in block.places(text))
        whose = [place.name for place in headers if place.kind == "header"]
        self.secret_headers = frozenset([*whose, *block.secret_headers])
        known = None if block.event else ()
        self.events = known if block.events is None else tuple(block.events)
        # A body with one member to read need not always be parsed.
        of_json = {text for _, text in block.texts if text.startswith("json:")}
        self._only, self._parses = len(of_json) == 1, len(of_json) > 1
        self._given = self._token() if block.is_jwt else self._signatures()
        clock, self._required = self._times(), self._requirements()
        proof = [text for key, text in block.texts if key in ("signature", "signed")]
        # What has to be parsed is read after the proof where that is possible.
        late = block.is_jwt or any(
            place.is_parsed for text in block.time for place in block.places(text)
        )
        self._early, self._late = None if late else clock, clock if late else None
        parsed = any(place.is_parsed for text in proof for place in block.places(text))
        self._largest = (block.max_body or MAX_UNPROVEN) if parsed else None
        self._parts, self._event = self._signed_parts(), self._events()
        self._identity = self._identities()
        answers = [(each, self._handshake(each)) for each in block.handshakes]
        self._others = [(each.method, answer) for each, answer in answers if each.method != "POST"]
        self._posts = [answer for each, answer in answers if each.method == "POST"]
        self._unsigned = [
            answer for each, answer in answers if each.method == "POST" and not each.is_signed
        ]
        self._signs_for_anybody = any(
            text.startswith("hmac:")
            for each in block.handshakes
            if not each.is_signed
            for text in each.reads
        )

    @classmethod
    def needs_url(cls, options: Options) -> bool:
        block = options if isinstance(options, Block) else cls.block
        called = "{audience}" in block.require.values() and not getattr(options, "audience", "")
        answers = getattr(options, "verify_token", None) and any(
            "{url" in each.sha256 for each in block.handshakes
        )
        return bool(cls.needs_public_url or called or answers)

    @property
    def covers_body(self) -> bool:
        return self._block.covers_body

    def verify(self, request: Request) -> Verified:
        seen = Seen(request)
        if self._unsigned and self.secret_headers.isdisjoint(request.headers):
            for handshake in self._unsigned if len(request.body) <= MAX_UNPROVEN else ():
                if answer := handshake(seen):
                    return Verified(request.body, challenge=answer)
        self._prove(seen)
        if self._parses and "json" not in vars(seen):
            seen.json = read_loosely(request.body)
        seen.event = event = self._event(seen)
        for handshake in self._posts:
            if answer := handshake(seen):
                return Verified(request.body, event=event, challenge=answer)
        return Verified(seen.content, self._identity(seen), event)

    def handshake(self, request: Request) -> Answer:
        if not self._others:
            return super().handshake(request)
        seen = Seen(request)
        for method, handshake in self._others:
            if method == request.method and (answer := handshake(seen)):
                return answer
        raise Unverified("A parameter or a header of the handshake is missing.")

    def _prove(self, seen: Seen) -> None:
        """Raise `Unverified` unless the request has a signature by one of the keys."""
        if self._largest is not None:
            check_unproven(seen.body, self._largest)
        given = self._given(seen)
        if self._early is not None:
            self._early(seen)
        parts = self._parts(seen)
        for key in self._keys if self._fetched is None else self._fetched(seen):
            if key.verifies(given, parts):
                seen.key = key
                break
        else:
            raise SignatureMismatch
        if self._late is not None:
            self._late(seen)
        if self._required is not None:
            self._required(seen)
        if self._signs_for_anybody and _token(b"".join(parts)):
            raise Unverified("The signed text could be a handshake's token.")

    # What is compiled from the block --------------------------------------------------------

    def _reader(self, texts: Iterable[str]) -> Reader:
        """Return a function that reads the first value that is at one of the places."""
        places = [place for text in texts for place in self._block.places(text)]
        return first([reader(place, self.public_url.rstrip("/"), self._only) for place in places])

    def _bytes_reader(self, text: str) -> Callable[[Seen], bytes]:
        if text == "key":
            return lambda _seen: KEY
        if text == "token":
            return lambda _seen: self._verify_token().encode()
        if text == "audience":
            if audience := getattr(self.options, "audience", ""):
                return _constant(audience.encode())
            text = "url|noquery"
        places = self._block.places(text)
        return first([bytes_reader(place, self.public_url.rstrip("/")) for place in places])

    def _signatures(self) -> Callable[[Seen], Sequence[bytes]]:
        """Return a function that reads the given signatures, and the fields beside them."""
        block = self._block
        places = [Place.parse(text) for text in block.signature]
        header, missing = places[0].name, places[0].missing
        split = self._fields(header) if block.separator else None
        reads = [reader(place) for place in places]

        def one(seen: Seen) -> Sequence[bytes]:
            if value := seen.headers.get(header):
                return (raw(value),)
            raise SignatureMissing(missing)

        def some(seen: Seen) -> Sequence[bytes]:
            found: list[bytes] = []
            for read in reads:
                text = read(seen)
                if text and isinstance(text, str):
                    found += split(seen, text) if split is not None else [raw(text)]
            if not found:
                raise SignatureMissing(missing)
            return found[:MAX_SIGNATURES]

        simple = split is None and len(places) == 1 and places[0] == Place("header", header)
        return one if simple else some

    def _fields(self, header: str) -> Callable[[Seen, str], list[bytes]]:
        """Return a function that splits a header into signatures and named fields."""
        block = self._block
        separator, assign, picked = block.separator or "", block.assign, set(block.pick)
        every = "*" in picked
        named = {p.name for _, text in block.texts for p in block.places(text) if p.kind == "sig"}

        def split(seen: Seen, text: str) -> list[bytes]:
            items = text.split(separator)
            if not picked:
                return [raw(each) for each in items]
            found, sig = [], seen.sig
            pairs = [item.partition(assign) for item in items] if assign else ()
            for key, _, value in pairs or [(str(i), "", item) for i, item in enumerate(items)]:
                if key in picked or every:
                    found.append(raw(value))
                if key in named:
                    if key in sig:
                        raise Unverified(f"The header {header} needs exactly one {key}.")
                    sig[key] = value
            if len(sig) < len(named):
                raise Unverified(f"The header {header} needs {', '.join(named - sig.keys())}.")
            return found

        return split

    def _token(self) -> Callable[[Seen], Sequence[bytes]]:
        """Return a function that reads the token, which is the signature and what is signed."""
        read, prefix = self._reader(self._block.signature), self._block.prefix
        in_body = self._block.signature == ["body"]

        def signature(seen: Seen) -> Sequence[bytes]:
            text = read(seen)
            text = text.decode("latin-1") if isinstance(text, bytes) else text or ""
            if not isinstance(text, str) or not text or not text.startswith(prefix):
                raise SignatureMissing("The token is missing.")
            seen.token = jwt.read(text[len(prefix) :])
            if in_body:
                seen.content = seen.token.content
            return (seen.token.signature,)

        return signature

    def _requirements(self) -> Callable[[Seen], None] | None:
        """Return a function that checks what has to be in a request that is proven."""
        wanted = [
            (place, self._reader([place]), self._wanted(text), "{body" in text)
            for place, text in self._block.require.items()
            if self._texts or "{key}" not in text
        ]
        if not wanted:
            return None

        def check_required(seen: Seen) -> None:
            for place, read, expected, of_body in wanted:
                value = read(seen)
                if (value is None or value == "") and of_body and not seen.body:
                    continue
                values = value if isinstance(value, list) else [value]
                right = expected(seen)
                if not any(compare_digest(encoded(v), each) for v in values for each in right):
                    raise Unverified(f"{place} is not what it has to be.")

        return check_required

    def _wanted(self, text: str) -> Callable[[Seen], list[bytes]]:
        """Return a function that fills in a text, once for each secret if it has one in it."""
        reads = _pieces(text, self._bytes_reader)

        def filled(seen: Seen) -> list[bytes]:
            parts = [read(seen) for read in reads]
            if KEY not in parts:
                return [b"".join(parts)]
            return [b"".join([s if part is KEY else part for part in parts]) for s in self._texts]

        return filled

    def _fetching(self) -> Callable[[Seen], Sequence[Key]]:
        """Return a function that looks up the public keys which a request may be signed with."""
        block = self._block
        patterns = block.key_urls or [PLACEHOLDER.sub("*", block.key_url)]
        allowed = re.compile("|".join(map(_url_pattern, patterns)), re.ASCII).fullmatch
        read_keys = partial(keys_in, block=block, texts=self._texts)
        url_of, named = self._wanted(block.key_url), block.key_form in ("jwks", "kids")
        text = b"".join(self._texts[:1]).decode()
        headers = {k: v.replace("{key}", text) for k, v in block.key_headers.items()}

        def request(url: str) -> KeyRequest:
            if not allowed(url):
                raise Unverified("The public key is to be fetched from where this sender has none.")
            return KeyRequest(url, headers, read_keys, block.key_token, text)

        if not PLACEHOLDER.search(block.key_url):
            self.key_requests = [request(block.key_url)]

        def keys(seen: Seen) -> Sequence[Key]:
            if self.key_store is None:
                raise KeyNotKnown
            wanted = request(url_of(seen)[0].decode("latin-1"))
            found, kid = self.key_store.get(wanted), seen.token.kid if named else ""
            if kid not in found:
                found = self.key_store.get(wanted, newer=True)
            if kid not in found:
                raise Unverified("This sender has no key with the id that the token names.")
            chosen: Sequence[Key] = found[kid]
            return chosen

        return keys

    def _times(self) -> Callable[[Seen], None] | None:
        """Return a function that checks the time; None: the sender sends none."""
        block, tolerance = self._block, self.options.tolerance
        if block.is_jwt:
            return lambda seen: jwt.check_times(seen.claims, seen.request.received_at, tolerance)
        if not block.time:
            return None
        read, missing = self._reader(block.time), Place.parse(block.time[0]).missing
        any_form, (fits, called, seconds, _) = not (block.unit or tolerance), self._unit

        def check_time(seen: Seen) -> None:
            text = read(seen)
            if text is None or text == "":
                raise SignatureMissing(missing)
            if any_form:
                return
            if not fits(text := str(text)):
                raise Unverified(f"The timestamp is not {called}.")
            if tolerance and abs(seen.request.received_at - seconds(text)) > tolerance:
                raise OutOfTolerance(f"The timestamp is not within {tolerance:g} seconds of now.")

        return check_time

    def _signed_parts(self) -> Callable[[Seen], list[bytes]]:
        """Return a function that makes the parts of the signed text; a token signs nothing."""
        if self._block.is_jwt:
            return lambda seen: [seen.token.signed]
        pieces = PLACEHOLDER.split(self._block.signed)
        if self._block.algorithm in TOKENS:
            return lambda _seen: []
        if pieces == ["", "body", ""]:
            return lambda seen: [seen.body]
        reads = [
            self._part(piece, pieces[i + 1]) if i % 2 else _constant(piece.encode())
            for i, piece in enumerate(pieces)
            if piece
        ]
        return lambda seen: [read(seen) or b"" for read in reads]

    def _part(self, piece: str, after: str) -> Callable[[Seen], bytes]:
        """Return a function that reads a part of the signed text, before the text `after`."""
        read, separator = self._bytes_reader(piece), after.encode()
        if not separator or not piece.startswith(("id", "header:", "query:", "sig:")):
            return read
        if piece in self._block.time:
            return read

        def part(seen: Seen) -> bytes:
            # Else some of the part could come from what follows the separator.
            if separator in (value := read(seen) or b""):
                raise Unverified(f"What is signed as {piece} contains {after!r}, which ends it.")
            return value

        return part

    def _events(self) -> Callable[[Seen], str]:
        block = self._block
        ones = [self._reader([text]) for text in block.event]
        more = self._reader(block.subevent) if block.subevent else None
        several = any("*" in text for text in (*block.event, *block.subevent))

        if len(ones) == 1 and not more and not block.names:
            (read,) = ones
            return lambda seen: name(read(seen))

        def event(seen: Seen) -> str:
            for one in ones:
                if found := name(one(seen)):
                    break
            else:
                return ""
            second = name(more(seen)) if more else ""
            if several and ("," in found or "," in second):
                names = [block.names.get(each, each) for each in found.split(",")]
                subs = [f".{each}" if each else "" for each in second.split(",")]
                return ",".join([each + sub for each in names for sub in subs])
            found = block.names.get(found, found)
            return f"{found}.{second}" if second else found

        return event

    def _identities(self) -> Callable[[Seen], str]:
        block = self._block
        texts, others = block.identity or block.id, [*block.apart]
        if "digest" in texts:  # the same body may be sent to another URL
            others += [[text] for text in block.signed_places if text.startswith("url")]
        used = [place for each in others for text in each for place in block.places(text)]
        of_event = map(Place.parse, (*block.event, *block.subevent))
        if texts == ["digest"] and {p.kind for p in (*used, *of_event)} <= {*IN_BODY, "event"}:
            return lambda seen: digest(seen.body)
        in_body = [place for place in used if place.kind in IN_BODY]
        has_digest = any(p.kind == "digest" or "sha256hex" in p.filters for p in in_body)
        # Else a copy of one delivery with the id of another could get the answer of that one.
        if not has_digest and not (block.covers_body and all(map(block.is_signed, texts))):
            others.append(["digest"])
        keys, apart = [self._reader([text]) for text in texts], [*map(self._reader, others)]

        def of(seen: Seen) -> str:
            for read in keys:
                key = read(seen)
                found = identity(key, *[each(seen) for each in apart]) if key or key == 0 else ""
                if found:
                    return found
            return ""

        return of

    def _handshake(self, about: Handshake) -> Callable[[Seen], Answer | None]:
        """Return a function that answers a handshake; None: the request is not that."""
        wanted = [(self._reader([text]), value) for text, value in about.when.items()]
        needed = [self._reader([text]) for text in about.reads]
        content_type = about.content_type
        if content_type is None:
            content_type = TEXT if about.body else ""
        hashed = self._wanted(about.sha256) if about.sha256 else None
        body = self._filled(about.body, content_type == JSON)
        headers = {key.lower(): self._filled(text) for key, text in about.headers.items()}
        token = self._reader([about.token]) if about.token else None
        proven = about.method == "POST" or not about.is_signed

        def answer(seen: Seen) -> Answer | None:
            for read, value in wanted:
                found = read(seen)
                if found != value or type(found) is not type(value):  # true is no 1
                    there = found is not None and found != ""
                    if there if value == "" else not there or value != "*":
                        return None
            if token is not None:
                self._check_token(name(token(seen)))
            if not proven:
                self._prove(seen)
            if needed and not all(name(read(seen)) for read in needed):
                return None
            if hashed is not None:
                seen.sha256 = sha256(hashed(seen)[0]).hexdigest()
            given = {key: fill(seen).decode("latin-1") for key, fill in headers.items()}
            if not all(map(field_value, given.values())):
                raise Unverified("What is to be sent back in a header is not visible ASCII.")
            return Answer(about.status, content_type, body(seen), given)

        return answer

    def _check_token(self, given: str) -> None:
        check([given.encode()], [self._verify_token().encode()])

    def _verify_token(self) -> str:
        """Return the token of the handshake. Raises `MethodNotAllowed` where there is none."""
        token: SecretStr | None = getattr(self.options, "verify_token", None)
        if token is None:
            raise MethodNotAllowed(
                "This source takes no handshake: it has no verify_token.", headers={"Allow": "POST"}
            )
        return token.get_secret_value()

    def _filled(self, text: str, is_json: bool = False) -> Callable[[Seen], bytes]:
        """Return a function that fills in the places of a handshake's answer."""
        fills = _pieces(text, lambda piece: self._fill(piece, is_json))
        return lambda seen: b"".join([fill(seen) for fill in fills])

    def _fill(self, text: str, is_json: bool) -> Callable[[Seen], bytes]:
        if text == "sha256":
            return lambda seen: seen.sha256.encode()
        read, signed = self._reader([text]), text.startswith("hmac:")

        def fill(seen: Seen) -> bytes:
            value = name(read(seen)).encode()
            if signed:
                if not _token(value):
                    raise Unverified("What is to be signed for a handshake is not a token.")
                key = seen.key or self._keys[0]
                return key.sign([value]).removeprefix(self._block.prefix.encode())
            return json.dumps(value.decode())[1:-1].encode() if is_json else value

        return fill

    # Sending --------------------------------------------------------------------------------

    def sample(self, event: str, identity: str, now: float, token: str = "") -> tuple[str, bytes]:
        """Return a sample of the block or, where it has none, a body with all that is read."""
        block = self._block
        if block.samples:
            return super().sample(event, identity, now, token)
        message: Any = {"id": identity, "type": event or _DEFAULT_EVENT}
        event = event or (_DEFAULT_EVENT if block.event else "")
        kind, _, action = event.partition(".")
        time = self._unit.write(now)
        for texts, value in (
            (block.identity, identity),
            (block.event, kind if block.subevent else event),
            (block.subevent, action),
            (block.time, int(time) if time.isdigit() else time),
        ):
            place = Place.parse(texts[0]) if texts else Place("")
            if place.kind == "json" and place.name and value != "":
                message = put(message, pointer(place.name.replace("*", "0")), value)
        return event, json.dumps(message, separators=(",", ":")).encode()

    def sign(self, draft: Draft) -> Signed:
        block = self._block
        kept: dict[str, dict[str, Any]] = {"header": {}, "sig": {}, "claim": {}}
        event = draft.event.partition(".")[0] if block.subevent else draft.event
        codes = {text: code for code, text in block.names.items()}
        key = draft.identity or (f"msg_{uuid4().hex}" if block.id else "")
        for texts, value in (
            (block.time, self._unit.write(draft.now)),
            (block.id, key),
            (block.identity, draft.identity),
            (block.event, codes.get(event, event)),
        ):
            place = Place.parse(texts[0]) if texts and value else Place("")
            kept.get(place.kind, {})[place.name] = value
        for text, value in block.require.items():
            place = Place.parse(text)
            if place.kind == "header":
                kept["header"][place.name] = value
        for place in (place for text in block.signed_places for place in block.places(text)):
            if place.kind == "headers":
                kept["header"][place.name.partition(",")[0]] = place.name
        headers, fields, claims = kept.values()
        url = urlsplit(draft.url)
        seen = Seen(Request("POST", url.path or "/", url.query, headers, draft.body, "", 0.0, 0.0))
        seen.sig = fields
        if block.is_jwt:
            signature = block.prefix + self._signed_token(seen, draft.now, claims)
        else:
            signature = self._keys[0].sign(self._parts(seen)).decode("latin-1")
        if block.pick:
            items = [*fields.items(), (block.pick[0], signature)]
            assigned = [f"{k}{block.assign}{v}" if block.assign else v for k, v in items]
            signature = (block.separator or "").join(assigned)
        place = Place.parse(block.signature[0])
        for each in reversed(place.filters):  # undone by who reads the place
            if each == "base64":
                signature = b64encode(signature.encode()).decode()
            elif each.startswith("json:"):
                signature = json.dumps(put({}, pointer(each.removeprefix("json:")), signature))
        if place.kind == "body":
            return Signed(signature.encode(), headers)
        if place.kind == "query":
            return Signed(draft.body, headers, {place.name: signature})
        if place.kind == "form":
            field = f"{place.name}={quote_plus(signature)}".encode()
            return Signed(b"&".join(filter(None, [draft.body, field])), headers)
        if place.kind == "json":
            message = put(seen.json, pointer(place.name.replace("*", "0")), signature)
            return Signed(json.dumps(message).encode(), headers)
        return Signed(draft.body, {**headers, place.name: signature})

    def _signed_token(self, seen: Seen, now: float, named: dict[str, str]) -> str:
        """Return a token with the claims that are read, and those that are required."""
        claims: Any = {"iat": int(now), "nbf": int(now), "exp": int(now) + 60}
        if self._block.signature == ["body"]:
            claims |= read_if_json(seen.body)
        required = {
            place.removeprefix("claim:"): self._wanted(text)(seen)[0].decode()
            for place, text in self._block.require.items()
            if self._texts or "{key}" not in text
        }
        for path, value in {**named, **required}.items():
            claims = put(claims, pointer(path), value)
        key = self._keys[0]
        algorithm = key.sign([b""]).partition(b".")[0].decode()
        texts = [json.dumps(each).encode() for each in ({"alg": algorithm}, claims)]
        signed = b".".join([urlsafe_b64encode(text).rstrip(b"=") for text in texts])
        return f"{signed.decode()}.{key.sign([signed]).partition(b'.')[2].decode()}"


def _url_pattern(text: str) -> str:
    """Return the expression for URLs: ``*`` is the name of a region in the host, else of a key.

    It is no dot, slash, colon or at sign, so that nothing in a request chooses the host; nor a name
    such as `s3`, behind which a provider's customers have hosts of their own.
    """
    scheme, _, host, path = text.split("/", 3)
    region = re.escape(host).replace(r"\*", "[a-z]+(-[a-z]+)*(-[0-9]{1,2})?")
    return f"{scheme}//{region}/" + re.escape(path).replace(r"\*", "[A-Za-z0-9_-]{1,200}")


def _constant(value: bytes) -> Callable[[Seen], bytes]:
    return lambda _seen: value


def _pieces(
    text: str, read: Callable[[str], Callable[[Seen], bytes]]
) -> list[Callable[[Seen], bytes]]:
    """Return what reads each piece of a text: the places in it by `read`."""
    pieces = enumerate(PLACEHOLDER.split(text))
    return [read(piece) if i % 2 else _constant(piece.encode()) for i, piece in pieces if piece]
