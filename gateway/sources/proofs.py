"""Compile what a sender proves itself by: the signatures, what is signed, what has to be there."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hmac import compare_digest

from gateway.errors import SignatureMissing, Unverified
from gateway.sources import jwt
from gateway.sources.block import PLACEHOLDER, Block
from gateway.sources.keys import TOKENS
from gateway.sources.places import Place, Seen, encoded, reader
from gateway.sources.readers import Readers, constant
from gateway.sources.signatures import raw

#: Signatures that are checked: there are two while keys are replaced, and each costs CPU time.
MAX_SIGNATURES = 10


def signatures(block: Block) -> Callable[[Seen], Sequence[bytes]]:
    """Return a function that reads the given signatures, and the fields beside them."""
    places = [Place.parse(text) for text in block.signature]
    header, missing = places[0].name, places[0].missing
    split = _fields(block, header) if block.separators else None
    reads = [reader(place) for place in places]

    def one(seen: Seen) -> Sequence[bytes]:
        if value := seen.headers.get(header):
            return (raw(value),)
        raise SignatureMissing(missing)

    def some(seen: Seen) -> Sequence[bytes]:
        found: list[bytes] = []
        for read in reads:
            text = read(seen)
            text = text.decode("latin-1") if isinstance(text, bytes) else text
            if text and isinstance(text, str):
                found += split(seen, text) if split is not None else [raw(text)]
        if not found:
            raise SignatureMissing(missing)
        return found[:MAX_SIGNATURES]

    simple = split is None and len(places) == 1 and places[0] == Place("header", header)
    return one if simple else some


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
        text = read(seen)
        text = text.decode("latin-1") if isinstance(text, bytes) else text or ""
        if not isinstance(text, str) or not text or not text.startswith(prefix):
            raise SignatureMissing("The token is missing.")
        seen.token = jwt.read(text[len(prefix) :])
        if in_body:
            seen.content = seen.token.content
        return (seen.token.signature,)

    return signature


def requirements(readers: Readers) -> Callable[[Seen], None] | None:
    """Return a function that checks what has to be in a request that is proven."""
    wanted = [
        (place, readers.first([place]), readers.filled(text), "{body" in text)
        for place, text in readers.block.require.items()
        if readers.texts or "{key}" not in text
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


def signed_parts(readers: Readers) -> Callable[[Seen], list[bytes]]:
    """Return a function that makes the parts of the signed text; a token signs nothing."""
    if readers.block.is_jwt:
        return lambda seen: [seen.token.signed]
    pieces = PLACEHOLDER.split(readers.block.signed)
    if readers.block.algorithm in TOKENS:
        return lambda _seen: []
    if pieces == ["", "body", ""]:
        return lambda seen: [seen.body]
    reads = [
        _part(readers, piece, pieces[i + 1]) if i % 2 else constant(piece.encode())
        for i, piece in enumerate(pieces)
        if piece
    ]
    return lambda seen: [read(seen) or b"" for read in reads]


def _part(readers: Readers, piece: str, after: str) -> Callable[[Seen], bytes]:
    """Return a function that reads a part of the signed text, before the text `after`."""
    read, separator = readers.as_bytes(piece), after.encode()
    if not separator or not piece.startswith(("id", "header:", "query:", "sig:")):
        return read
    if piece in readers.block.time:
        return read

    def part(seen: Seen) -> bytes:
        # Else some of the part could come from what follows the separator.
        if separator in (value := read(seen) or b""):
            raise Unverified(f"What is signed as {piece} contains {after!r}, which ends it.")
        return value

    return part
