"""Compile a block to functions that read a request: its proof, times, names, and handshakes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from gateway.answer import JSON, TEXT, Answer, field_value
from gateway.errors import MethodNotAllowed, SignatureMismatch, SignatureMissing, Unverified
from gateway.sources import places, proofs
from gateway.sources.block import PLACEHOLDER, Block, Handshake
from gateway.sources.places import Place, Reader, Seen, bytes_reader, encoded, first, reader
from gateway.sources.proofs import Unit, check, joined, raw
from gateway.sources.reading import identity, name

#: They read the bytes of a piece of a text, and raise `Unverified` where something is wrong.
Piece = Callable[[Seen], bytes]
Check = Callable[[Seen], None]


class Readers:
    """Makes the functions that read what a block names.

    `texts` are the secrets beside public keys that are fetched, `options` those of the source.
    """

    def __init__(self, block: Block, options: Any, public_url: str, texts: Sequence[bytes]):
        self.block, self.texts, self._options, self._url = block, texts, options, public_url
        # A body with one member to read need not always be parsed.
        of_json = {text for _, text in block.texts if text.startswith("json:")}
        self._only, self.parses = len(of_json) == 1, len(of_json) > 1

    def first(self, texts: Iterable[str]) -> Reader:
        """Return a function that reads the first value that is at one of the places."""
        places = [place for text in texts for place in self.block.places(text)]
        return first([reader(place, self._url, self._only) for place in places])

    def piece(self, text: str, _after: str = "") -> Piece:
        """Return a function that reads the bytes at a place, or of what else has a name."""
        if text in ("key", "name"):
            return constant(proofs.KEY if text == "key" else proofs.NAME)
        if text == "token":
            return lambda _seen: self.verify_token().encode()
        if text == "audience":
            if audience := getattr(self._options, "audience", ""):
                return constant(audience.encode())
            text = "url|noquery"
        return first([bytes_reader(place, self._url) for place in self.block.places(text)])

    def signed_piece(self, text: str, after: str) -> Piece:
        """Return a function that reads a piece of the signed text, before the text `after`."""
        read, separator = self.piece(text), after.encode()
        named = text.startswith(("id", "header:", "query:", "sig:"))
        if not separator or not named or Place(text) in self.block.time:
            return read

        def piece(seen: Seen) -> bytes:
            # Else some of it could come from what follows the separator.
            if separator in (value := read(seen) or b""):
                raise Unverified(f"What is signed as {text} contains {after!r}, which ends it.")
            return value

        return piece

    def filled(self, text: str) -> Callable[[Seen], list[bytes]]:
        """Return a function that fills in a text, once for each secret if it has one in it."""
        reads = pieces(text, self.piece)
        return lambda seen: joined([read(seen) or b"" for read in reads], self.texts)

    def verify_token(self) -> str:
        """Return the token of the handshake. Raises `MethodNotAllowed` where there is none."""
        token = getattr(self._options, "verify_token", None)
        if token is None:
            raise MethodNotAllowed(
                "This source takes no handshake: it has no verify_token.", headers={"Allow": "POST"}
            )
        return str(token.get_secret_value())


def constant(value: bytes) -> Piece:
    return lambda _seen: value


def pieces(text: str, read: Callable[[str, str], Piece]) -> list[Piece]:
    """Return what reads each piece of a text: a place by `read`, which gets the text behind it."""
    split = PLACEHOLDER.split(text)
    return [
        read(piece, split[i + 1]) if i % 2 else constant(piece.encode())
        for i, piece in enumerate(split)
        if piece
    ]


#: Signatures that are checked: there are two while keys are replaced, and each costs CPU time.
MAX_SIGNATURES = 10


def signatures(block: Block) -> Callable[[Seen], Sequence[bytes]]:
    """Return a function that reads the given signatures, and the fields beside them."""
    header, missing = block.signature[0].name, block.signature[0].missing
    split = _fields(block, header) if block.separators else lambda _seen, text: [raw(text)]
    reads = [given_at(place) for place in block.signature]

    def one(seen: Seen) -> Sequence[bytes]:
        if value := seen.headers.get(header):
            return (raw(value),)
        raise SignatureMissing(missing)

    def some(seen: Seen) -> Sequence[bytes]:
        found: list[bytes] = []
        for read in reads:
            for value in read(seen):
                if text := _text(value):
                    found += split(seen, text)
        if not found:
            raise SignatureMissing(missing)
        return found[:MAX_SIGNATURES]

    return some if block.separators or block.signature != [f"header:{header}"] else one


def given_at(place: Place) -> Callable[[Seen], Sequence[Any]]:
    """Return a function that reads the values at a place, texts as the bytes of a sender's."""
    tokens, as_received = place.items, place.kind in places.AS_RECEIVED
    read = reader(place)

    def of_text(value: Any) -> Any:
        return encoded(value, as_received) if isinstance(value, str) else value

    if tokens is not None:
        return lambda seen: [of_text(each) for each in places.items(seen.json, tokens)]
    return lambda seen: (of_text(read(seen)),)


def each_item(block: Block, keys: Sequence[proofs.Key]) -> list[Check]:
    """Return what checks that each item of a list has a secret, where one at a place proves."""
    starred = [place for place in block.signature if place.items is not None]
    reads = [given_at(place) for place in starred if block.algorithm in proofs.TOKENS]

    def check_items(seen: Seen) -> None:
        for value in (value for read in reads for value in read(seen)):
            if not isinstance(value, bytes) or not any(key.verifies([value], []) for key in keys):
                raise SignatureMismatch

    return [check_items] if reads else []


def _text(value: Any) -> str:
    """Return what was read as a signature, as it was received; empty: it is no text."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return text if isinstance(text, str) else ""


def _fields(block: Block, header: str) -> Callable[[Seen, str], list[bytes]]:
    """Return a function that splits a header into signatures and named fields."""
    assign, picked = block.assign, set(block.pick)
    divide = re.compile("|".join(map(re.escape, block.separators))).split
    separator = block.separators[0] if len(block.separators) == 1 else ""
    every = "*" in picked
    named = {p.name for _, text in block.texts for p in block.places(text) if p.kind == "sig"}

    def split(seen: Seen, text: str) -> list[bytes]:
        items = text.split(separator) if separator else divide(text)
        if not picked:
            return [raw(each) for each in items]
        found, sig = [], seen.sig
        pairs = [item.partition(assign) for item in items] if assign else ()
        for key, _, value in pairs or [(str(i), "", item) for i, item in enumerate(items)]:
            if key in picked or every:
                found.append(raw(value))
            if key in named:
                if key in sig and (separator or sig[key] != value):  # sets of fields repeat it
                    raise Unverified(f"The header {header} needs exactly one {key}.")
                sig[key] = value
        if len(sig) < len(named):
            raise Unverified(f"The header {header} needs {', '.join(named - sig.keys())}.")
        return found

    return split


def token(readers: Readers) -> Callable[[Seen], Sequence[bytes]]:
    """Return a function that reads the token, which is the signature and what is signed."""
    block = readers.block
    read, prefix = readers.first(block.signature), block.prefix
    in_body = block.signature == ["body"]

    def signature(seen: Seen) -> Sequence[bytes]:
        if not (text := _text(read(seen))) or not text.startswith(prefix):
            raise SignatureMissing("The token is missing.")
        seen.token = proofs.read_token(text[len(prefix) :])
        if in_body:
            seen.content = seen.token.content
        return (seen.token.signature,)

    return signature


def requirements(readers: Readers) -> list[Check]:
    """Return what checks that a proven request has what is required."""
    wanted = [
        (place, place.items, readers.first([place]), readers.filled(text), "{body" in text)
        for place, text in readers.block.require.items()
        if readers.texts or "{key}" not in text
    ]

    def check_required(seen: Seen) -> None:
        for place, tokens, read, expected, of_body in wanted:
            found = read(seen) if tokens is None else places.items(seen.json, tokens)
            if found in (None, "") and of_body and not seen.body:
                continue
            right = expected(seen)
            values = found if isinstance(found, list) else [found]
            fit = (any(compare_digest(encoded(v), each) for each in right) for v in values)
            if not (any(fit) if tokens is None else values and all(fit)):
                raise Unverified(f"{place} is not what it has to be.")

    return [check_required] if wanted else []


def signed_parts(readers: Readers) -> Callable[[Seen], list[bytes]]:
    """Return a function that makes the parts of the signed text; a token signs nothing."""
    if readers.block.is_jwt:
        return lambda seen: [seen.token.signed]
    if readers.block.algorithm in proofs.TOKENS:
        return lambda _seen: []
    if readers.block.signed == "{body}":
        return lambda seen: [seen.body]
    reads = pieces(readers.block.signed, readers.signed_piece)
    return lambda seen: [read(seen) or b"" for read in reads]


def unit_of(block: Block) -> Unit:
    """Return the form of a sender's times."""
    together = "}{" in block.signed
    return proofs.ZONED if together and block.unit == "iso" else proofs.UNITS[block.unit or "s"]


def time_check(readers: Readers, tolerance: float) -> list[Check]:
    """Return what checks the time; nothing where the sender sends none."""
    block = readers.block
    if block.is_jwt:
        return [lambda seen: proofs.check_claims(seen.claims, seen.request.received_at, tolerance)]
    if not block.time:
        return []
    read, missing = readers.first(block.time), block.time[0].missing
    any_form, unit = not (block.unit or tolerance), unit_of(block)

    def check_time(seen: Seen) -> None:
        if (text := read(seen)) in (None, ""):
            raise SignatureMissing(missing)
        if not any_form:
            unit.check(str(text), seen.request.received_at, tolerance)

    return [check_time]


def events(readers: Readers) -> Callable[[Seen], str]:
    """Return a function that reads the event, or the events of a batch joined by commas."""
    block = readers.block
    ones = [readers.first([text]) for text in block.event]
    more = readers.first(block.subevent) if block.subevent else None
    several = any("*" in text for text in (*block.event, *block.subevent))
    pair = block.pair

    if len(ones) == 1 and not more and not block.names:
        (read,) = ones
        return lambda seen: name(read(seen))

    def full(found: str, second: str) -> str:
        found = block.names.get(found, found)
        return f"{found}.{second}" if second else found

    if pair is not None:

        def of_items(seen: Seen) -> str:
            read = (map(name, places.items(seen.json, tokens)) for tokens in pair)
            both = zip(*read, strict=True)
            return ",".join(dict.fromkeys(full(one, second) for one, second in both if one))

        return of_items

    def event(seen: Seen) -> str:
        for one in ones:
            if found := name(one(seen)):
                break
        else:
            return ""
        second = name(more(seen)) if more else ""
        if not several:  # this is faster than what follows
            return full(found, second)
        return ",".join([full(a, b) for a in found.split(",") for b in second.split(",")])

    return event


def identities(readers: Readers) -> Callable[[Seen], str]:
    """Return a function that reads what identifies a delivery; empty: it has nothing."""
    block = readers.block
    texts = block.identity or block.id
    others: list[Sequence[str]] = [*block.apart]
    if "digest" in texts:  # the same body may be sent to another URL, or by another method
        others += [["method"], *([each] for each in block.signed_places if each.startswith("url"))]
    used = [place for each in others for text in each for place in block.places(text)]
    in_body = [place for place in used if place.kind in places.IN_BODY]
    has_digest = any(p.kind == "digest" or "sha256hex" in p.filters for p in in_body)
    # Else a copy of one delivery with the id of another could get the answer of that one.
    if not has_digest and not (block.covers_body and all(map(block.is_signed, texts))):
        others.append(["digest"])
    keys, apart = [readers.first([text]) for text in texts], [*map(readers.first, others)]

    def of(seen: Seen) -> str:
        for read in keys:
            key = read(seen)
            found = identity(key, *[each(seen) for each in apart]) if key or key == 0 else ""
            if found:
                return found
        return ""

    return of


#: What anybody may have signed by a handshake: nothing that a signed text could be.
is_token = re.compile(rb"[A-Za-z0-9._~+/=-]{1,512}").fullmatch


def handshake(
    about: Handshake,
    readers: Readers,
    prove: Callable[[Seen], None],
    sign: Callable[[Seen, bytes], bytes],
) -> Callable[[Seen], Answer | None]:
    """Return a function that answers a handshake; None: the request is not that."""
    wanted = [(readers.first([text]), value) for text, value in about.when.items()]
    needed = [readers.first([text]) for text in about.reads]
    kind = about.content_type
    kind = (TEXT if about.body else "") if kind is None else kind
    hashed = readers.filled(about.sha256) if about.sha256 else None
    body = _filled(readers, sign, about.body, kind == JSON)
    headers = {key.lower(): _filled(readers, sign, text) for key, text in about.headers.items()}
    token = readers.first([about.token]) if about.token else None
    proven = about.method == "POST" or not about.is_signed

    def answer(seen: Seen) -> Answer | None:
        for read, value in wanted:
            found = read(seen)
            if found != value or type(found) is not type(value):  # true is no 1
                there = found not in (None, "")
                if there if value == "" else not there or value != "*":
                    return None
        if token is not None:
            check([name(token(seen)).encode()], [readers.verify_token().encode()])
        if not proven:
            prove(seen)
        if needed and not all(name(read(seen)) for read in needed):
            return None
        if hashed is not None:
            seen.sha256 = sha256(hashed(seen)[0]).hexdigest()
        given = {key: fill(seen).decode("latin-1") for key, fill in headers.items()}
        if not all(map(field_value, given.values())):
            raise Unverified("What is to be sent back in a header is not visible ASCII.")
        return Answer(about.status, kind, body(seen), given)

    return answer


def _filled(
    readers: Readers, sign: Callable[[Seen, bytes], bytes], text: str, is_json: bool = False
) -> Piece:
    """Return a function that fills in the places of a handshake's answer."""

    def piece(text: str, _after: str) -> Piece:
        if text == "sha256":
            return lambda seen: seen.sha256.encode()
        read, signed = readers.first([text]), text.startswith("hmac:")

        def fill(seen: Seen) -> bytes:
            value = name(read(seen)).encode()
            if signed:
                if not is_token(value):
                    raise Unverified("What is to be signed for a handshake is not a token.")
                return sign(seen, value)
            return json.dumps(value.decode())[1:-1].encode() if is_json else value

        return fill

    fills = pieces(text, piece)
    return lambda seen: b"".join([fill(seen) for fill in fills])
