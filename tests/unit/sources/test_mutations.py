"""Signed requests of every sender, mutated at random: refused, unless all that is signed is there.

MUTATIONS is how many are made, over all senders, MUTATION_SEED what they are made from:

    MUTATIONS=1000000 python -m pytest tests/unit/sources/test_mutations.py -n 2
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from urllib.parse import parse_qsl

import pytest

from gateway.delivery import Request
from gateway.errors import RequestError, Unavailable
from gateway.sources import BLOCKS, SCHEMES, find
from gateway.sources.base import Source
from gateway.sources.places import Place, Seen, reader
from gateway.sources.reading import at, pointer
from tests.unit.sources.examples import EXAMPLES
from tests.unit.sources.sending import receiver, send
from tests.unit.sources.test_senders import RIGHT, request, source

MUTATIONS = int(os.environ.get("MUTATIONS", "10000"))
SEED = os.environ.get("MUTATION_SEED", "1")
#: The largest body that a gateway takes unless it is told otherwise, in bytes.
MAX_BODY = 1024 * 1024
_NASTY = (
    "", " ", ",", ", ", "=", ".", "\0", "\n", "é", "\xff", "{}", "[]", "null", "0", "-1", "9" * 30,
    "t=1,v1=", "v1,", "sha256=", "Bearer ", "Basic Og==", "eyJhbGciOiJub25lIn0.e30.",
)  # fmt: skip
_NASTY_BODY = (
    *(b"", b"\0", b"\xff", b"{", b"}", b"{}", b"null", b'"', b"&", b"=", b"%", b"%00", b"\n", b","),
    *(b"[" * 300, b'{"a":1}', b"9" * 5_000, b"\xef\xbb\xbf", b"<!DOCTYPE a>", b"--x\r\n"),
)

Pair = tuple[Source, Request]


def pairs(scheme: str) -> list[Pair]:
    """Return what a sender has signed, and who receives it: a sample, and the vectors."""
    vectors = [each for each in RIGHT if each[0] == scheme]
    found: list[Pair] = [(source(scheme, each[1]), request(each[1])) for each in vectors]
    return [(receiver(scheme), send(scheme)), *found]


def mutate(random: Random, good: Request, others: list[Request]) -> Request:
    """Change `good` once."""
    return random.choice(_MUTATIONS)(random, good, others)


def _text(random: Random, text: str) -> str:
    """Change a text: a character, a part, its end, or all of it."""
    at_, end = sorted(random.randint(0, len(text)) for _ in range(2))
    return random.choice(
        [
            text[:at_] + chr(random.randrange(256)) + text[at_ + 1 :],
            text[:at_] + random.choice(_NASTY) + text[at_:],
            text[:at_] + text[end:],
            text[:at_] + text[at_:end] * 2 + text[end:],
            text[:at_] + text[at_:].swapcase(),
            random.choice(_NASTY),
            f"{text}, {text}",
            f"{text},{random.choice(_NASTY)}",
        ]
    )


def _body(random: Random, good: Request, _others: list[Request]) -> Request:
    body = good.body
    at_, end = sorted(random.randint(0, len(body)) for _ in range(2))
    flipped = bytes([body[at_] ^ 1 << random.randrange(8)]) if at_ < len(body) else b""
    changed = random.choice(
        [
            body[:at_] + flipped + body[at_ + 1 :],
            body[:at_] + random.choice(_NASTY_BODY) + body[at_:],
            body[:at_] + body[end:],
            body[:at_] + body[at_:end] * 2 + body[end:],
            random.choice(_NASTY_BODY),
            body + random.choice((b" ", b"\n", b"\0", b"&a=b")),
        ]
    )
    return replace(good, body=changed)


def _large_body(random: Random, good: Request, _others: list[Request]) -> Request:
    if random.random() < 0.95:  # they take long
        return _body(random, good, _others)
    size = random.choice((130_000, MAX_BODY)) - len(good.body)
    filler = random.choice((b" ", b"[", b'{"a":', b"a=1&", b"<a>", b"9", b"\\u0000"))
    padded = (filler * (size // len(filler) + 1))[: max(size, 0)]
    return replace(good, body=random.choice((good.body + padded, padded + good.body)))


def _header(random: Random, good: Request, _others: list[Request]) -> Request:
    if not good.headers:
        return _body(random, good, _others)
    name = random.choice([*good.headers])
    return replace(good, headers={**good.headers, name: _text(random, good.headers[name])})


def _no_header(random: Random, good: Request, _others: list[Request]) -> Request:
    headers = {**good.headers}
    if headers:
        del headers[random.choice([*headers])]
    return replace(good, headers=headers)


def _swapped_headers(random: Random, good: Request, _others: list[Request]) -> Request:
    names = [*good.headers]
    values = random.sample([*good.headers.values()], len(names))
    return replace(good, headers=dict(zip(names, values, strict=True)))


def _url(random: Random, good: Request, _others: list[Request]) -> Request:
    if random.random() < 0.5:
        return replace(good, query_string=_text(random, good.query_string)[:5_000])
    return replace(good, path="/" + _text(random, good.path)[1:])


def _of_another(random: Random, good: Request, others: list[Request]) -> Request:
    """Take the signature, or the body, of another request or sender."""
    other = random.choice(others)
    return random.choice(
        [
            replace(good, headers={**good.headers, **other.headers}),
            replace(good, headers={**other.headers, **good.headers}, body=other.body),
            replace(good, headers=other.headers),
            replace(good, body=other.body),
            replace(good, query_string=other.query_string),
            replace(other, received_at=good.received_at),
        ]
    )


def _time(random: Random, good: Request, _others: list[Request]) -> Request:
    return replace(good, received_at=good.received_at + random.choice((-1e9, -1e5, 1e5, 1e9)))


_MUTATIONS: tuple[Callable[[Random, Request, list[Request]], Request], ...] = (
    _body, _body, _large_body, _header, _header, _header, _no_header, _swapped_headers, _url,
    _of_another, _time,
)  # fmt: skip


def of(place: Place, one: Request) -> Any:
    """Return what is at a place, as this test reads it."""
    if place.kind == "header":
        return one.headers.get(place.name, "")
    if place.kind == "headers":
        return [one.headers.get(name) for name in one.headers[place.name.split(",")[0]].split(",")]
    if place.kind in ("url", "path"):
        query = "" if "noquery" in place.filters else one.query_string
        return (one.path, query)
    if place.kind in ("body", "raw_body") and not {"json", "lines", "pairs"} & {
        each.partition(":")[0] for each in place.filters
    }:
        return one.body
    if place.kind == "json":
        return at(Seen(one).json, pointer(place.name))
    return reader(place)(Seen(one))


def signed_by(found: Source, one: Request, body: bytes) -> list[Any]:
    """Return all that the sender has signed in a request; `body` is what the task gets of it."""
    block = getattr(found, "block", None)
    if block is None:
        # Twilio signs the set of a form's decoded fields, whose names and values nothing separates.
        form = parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
        return [{name + value for name, value in form}] if found.covers_body else []
    texts = list(block.signed_places)
    if block.is_jwt or block.algorithm in ("equal", "basic"):
        texts += block.signature[:1]
    some = [[p for p in block.places(text) if p.kind not in ("sig", "method")] for text in texts]
    # Of several places the first that has something is meant.
    return [next(filter(None, (of(p, one) for p in each)), None) for each in some]


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_mutated_requests(scheme):
    random, known = Random(f"{SEED} {scheme}"), pairs(scheme)
    # What is signed with the same key is signed.
    own = EXAMPLES[scheme].options["secrets"]
    strangers = [name for name, each in EXAMPLES.items() if each.options["secrets"] != own]
    others = [send(name) for name in random.sample(strangers, 6)]
    others += [one for _, one in known]
    originals = [(found, one, found.verify(one)) for found, one in known]
    for _ in range(MUTATIONS // len(SCHEMES) + 1):
        found, good, verified = random.choice(originals)
        changed = good
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            changed = mutate(random, changed, others)
        try:
            taken = found.verify(changed)
        except RequestError as error:
            assert error.status in (400, 401, 413) or isinstance(error, Unavailable)
            continue
        if taken.challenge is not None and scheme in UNSIGNED:
            continue
        right = [signed_by(other, one, what.body) for other, one, what in originals]
        assert signed_by(found, changed, taken.body) in right, changed


#: Those that answer a handshake that nobody has signed.
UNSIGNED = {
    "feishu",
    *(
        name
        for name in BLOCKS
        for each in getattr(find(name), "block").handshakes  # noqa: B009
        if not each.is_signed
    ),
}
