"""The senders that are data, by their vectors: taken as they are, refused when any part is changed.

A vector is a request at the end of ``gateway/sources/senders/NAME.toml``, as its sender published
it or as its own library made it (``kind``), with its receiver's ``secret`` and the time at which it
was signed (``signed_at``; without it at any). Where ``valid`` is false, it has to be refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway import sources
from gateway.delivery import Request
from gateway.sources import BLOCKS, find
from gateway.sources.base import Source
from tests.support.each import for_each
from tests.unit.sources.messages import source as of_scheme
from tests.unit.sources.sending import own, unverified

FILES = {name: Path(sources.__file__).parent / "senders" / f"{name}.toml" for name in BLOCKS}
#: Twilio is code, and has no such file.
FILES["twilio"] = Path(__file__).parents[2] / "vectors" / "twilio.toml"
OWN = json.loads((FILES["twilio"].parent / "own_blocks.json").read_text("utf-8"))
KINDS = {"official", "library", "third party", "derived"}
#: What a vector need not say.
USUAL = {"method": "POST", "url": "https://hooks.example.com/hook", "headers": {}, "valid": True}


VECTORS = [
    (name, USUAL | vector)
    for name, file in FILES.items()
    for vector in tomllib.loads(file.read_text("utf-8")).get("vectors", ())
]
RIGHT = [each for each in VECTORS if each[1]["valid"]]
WRONG = [each for each in VECTORS if not each[1]["valid"]]


def source(name: str, vector: dict[str, Any]) -> Source:
    url = urlsplit(vector["url"])
    return of_scheme(name, f"{url.scheme}://{url.netloc}", secrets=vector["secret"])


def request(vector: dict[str, Any]) -> Request:
    url = urlsplit(vector["url"])
    headers = {key.lower(): value for key, value in vector["headers"].items()}
    now = float(vector.get("signed_at") or 1_800_000_000)
    body = vector["body"].encode()
    return Request(vector["method"], url.path or "/", url.query, headers, body, "", 0.0, now)


def other(text: str) -> str:
    """Return `text` with another character in each word that may be a signature or a time."""
    change = {"a": "b", "A": "B", "1": "2"}
    return re.sub(
        r"[A-Za-z0-9+/_-]{8,}", lambda m: change.get(m[0][5], "1" if m[0][5] != "1" else "2").join(
            (m[0][:5], m[0][6:])), text,
    )  # fmt: skip


@for_each("name, vector", RIGHT)
def test_a_vector_is_verified(name, vector):
    assert source(name, vector).verify(request(vector)).body == vector["body"].encode()


@for_each("name, vector", WRONG)
def test_a_wrong_vector_is_refused(name, vector):
    unverified(source(name, vector), request(vector))


@pytest.mark.parametrize("vector", OWN)
def test_a_vector_of_a_block_of_ones_own(vector):
    found = own(**vector["block"], secrets=vector["secret"])
    if vector["valid"]:
        assert found.verify(request(vector))
    else:
        unverified(found, request(vector))


def forgeries(name: str, vector: dict[str, Any]) -> list[Request]:
    """Return the request of a vector with one part changed: each signature, signed part and time.

    Of a long body 40 bytes are changed, one at a time.
    """
    receiver, good = source(name, vector), request(vector)
    block = getattr(find(name), "block", None)
    if block is None:
        proof = {key: other(good.headers[key]) for key in receiver.secret_headers}
        return [replace(good, headers={**good.headers, **proof})]
    kinds = {text: place for _, text in block.texts for place in block.places(text)}
    signed = [place for text in block.signed_places for place in block.places(text)]
    proofs = [kinds[text] for text in block.signature]
    bad = []
    for place in [*proofs, *signed]:
        if place.kind == "header" and place.name in good.headers:
            value = good.headers[place.name]
            changes = {other(value), "", value + "x"}
            if "json:/signature" in place.filters:  # of JSON, of which only a part is the signature
                inside = json.loads(b64decode(value))
                inside["signature"] = other(inside["signature"])
                changes = {b64encode(json.dumps(inside).encode()).decode(), "", "x"}
            lacking = {key: text for key, text in good.headers.items() if key != place.name}
            bad.append(replace(good, headers=lacking))
            for changed in changes - {value}:
                bad.append(replace(good, headers={**good.headers, place.name: changed}))
        if place.kind == "url":
            bad.append(replace(good, path=good.path + "x"))
            if "noquery" not in place.filters:
                bad.append(replace(good, query_string=good.query_string + "x=1"))
        if place.kind == "query" and place.name in good.query_string:
            bad.append(replace(good, query_string=other(good.query_string)))
    proof_in_body = any(place.kind in ("json", "form") for place in proofs)
    if receiver.covers_body or proof_in_body:
        bad.append(replace(good, body=b""))
    if receiver.covers_body:
        step = len(good.body) // 40 + 1
        bad += [
            replace(good, body=good.body[:i] + bytes([good.body[i] ^ 1]) + good.body[i + 1 :])
            for i in range(0, len(good.body), step)
        ]
        bad.append(replace(good, body=good.body + b" "))
    if block.time and block.unit:
        late = receiver.options.tolerance + 1
        bad.append(replace(good, received_at=good.received_at + late))
        bad.append(replace(good, received_at=good.received_at - late))
    if block.is_jwt:  # its own times: it is good for less than an hour
        bad.append(replace(good, received_at=good.received_at + receiver.options.tolerance + 4_000))
        bad.append(replace(good, received_at=good.received_at - receiver.options.tolerance - 4_000))
    return [each for each in bad if each != good]


@for_each("name, vector", RIGHT)
def test_each_part_of_a_vector_counts(name, vector):
    receiver, bad = source(name, vector), forgeries(name, vector)
    assert bad
    for each in bad:
        unverified(receiver, each)


def test_each_block_says_what_was_read_and_has_vectors():
    blocks = {name: find(name).block for name in BLOCKS}
    assert [name for name, block in blocks.items() if not (block.title and block.sources)] == []
    assert set(BLOCKS) - {each[0] for each in RIGHT} == set(), "no vector"


def test_the_vectors_are_the_end_of_their_file():
    for name in BLOCKS:
        table = tomllib.loads(FILES[name].read_text("utf-8"))
        del table["vectors"]
        assert tomllib.loads(sources.text_of(name)) == table, name


def test_each_vector_says_where_it_comes_from():
    assert [each for each in VECTORS if each[1]["kind"] not in KINDS] == []
    assert [each for each in VECTORS if not each[1]["source"]] == []
