"""The vectors of all senders that are data, over HTTP, each at the time at which it was signed.

Each is sent as it is, with each signed part changed, and too late. Its source has two secrets, and
the second one verifies; a source with the first one only refuses it. A vector whose URL is signed
has its own path, on a gateway with its own `public_url`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.delivery import Request
from gateway.sources.base import listed
from loadtest.examples import example
from tests.support import http_client
from tests.support.config import toml
from tests.support.http_client import Answer
from tests.support.requests import PUBLISHED, metric
from tests.support.stack import Server, Stack
from tests.unit.sources.test_senders import VECTORS, forgeries, request, source

OWN = json.loads((Path(__file__).parents[1] / "vectors" / "own_blocks.json").read_text("utf-8"))


@dataclass
class Case:
    """A vector, with what the source of its route is, a secret of nobody, and forgeries of it."""

    name: str
    vector: dict[str, Any]
    source: dict[str, Any]
    third: str
    signs_url: bool
    forged: list[Request]

    @property
    def path(self) -> str:
        return urlsplit(self.vector["url"]).path or "/" if self.signs_url else f"/{self.name}"

    @property
    def of_third(self) -> dict[str, Any]:
        """A source that has the secret of nobody in place of the vector's."""
        more = listed(self.vector["secret"])[1:]  # PayPal's id is no key
        return {**self.source, "secrets": [self.third, *more]}


def cases() -> Iterator[Case]:
    for each in VECTORS:
        name, vector = each.values
        found = source(name, vector)
        third, block = example(name).other_secret, getattr(found, "block", None)
        table = {"scheme": name, "secrets": [third, *listed(vector["secret"])]}
        texts = [] if block is None else [*block.signed_places, str(block.require)]
        signs_url = block is None or any(
            text.startswith(("url", "path")) or "audience" in text for text in texts
        )
        forged = forgeries(name, vector, 1) if vector["valid"] else []
        yield Case(str(each.id), vector, table, third, signs_url, forged)
    for i, vector in enumerate(OWN):
        source_of = {**vector["block"], "secrets": vector["secret"]}
        yield Case(f"own-{i}", vector, source_of, vector["secret"], False, [])


@dataclass
class Place:
    """A gateway that is to be started: what its vectors need."""

    public_url: str
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)

    def take(self, case: Case) -> bool:
        """Take a vector, unless another source has its path or it needs another URL."""
        url = urlsplit(case.vector["url"])
        if case.signs_url and f"{url.scheme}://{url.netloc}" != self.public_url:
            return False
        known = self.paths.get(case.path)
        if known is not None and self.sources[known] != case.source:
            return False
        if known is None:
            self.paths[case.path] = case.name
            self.sources[case.name] = case.source
        self.cases.append(case)
        return True


def places() -> list[Place]:
    found: list[Place] = []
    for case in sorted(cases(), key=lambda case: not case.signs_url):
        if not any(place.take(case) for place in found):
            url = urlsplit(case.vector["url"])
            found.append(Place(f"{url.scheme}://{url.netloc}"))
            assert found[-1].take(case)
    return found


def encode(one: Request, path: str) -> bytes:
    lines = [f"{name}: {value}" for name, value in one.headers.items() if name != "content-length"]
    target = f"{path}?{one.query_string}" if one.query_string else path
    return http_client.request(one.body, target, *lines, method=one.method)


def ask(server: Server, data: bytes) -> Answer:
    return asyncio.run(http_client.ask(server.port, data))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", places(), ids=lambda place: place.public_url)
def test_all_vectors_over_http(place: Place, stack: Stack, start_gateway):
    clock = stack.clock()
    free = {f"third-{case.name}": case.of_third for case in place.cases if not case.signs_url}
    paths = {**place.paths, **{f"/{name}": name for name in free}}
    routes = [
        {"path": path, "source": name, "answer": "accept", "fallback": "", "idempotency": "none"}
        for path, name in paths.items()
    ]
    config = f'public_url = "{place.public_url}"\n\n{toml({**place.sources, **free}, routes)}'
    gateway = start_gateway(config, "--strategy=pika", env=clock.env)
    before, deliveries = metric(gateway, PUBLISHED), 0
    for case in place.cases:
        vector, one = case.vector, request(case.vector)
        clock.stop(one.received_at)
        answer = ask(gateway, encode(one, case.path))
        assert (answer.status < 300) == vector["valid"], (case.name, answer.body)
        assert vector["valid"] or answer.status == 401, case.name
        deliveries += vector["valid"] and not case.name.startswith("discord")  # a PING
        if case.forged and not case.signs_url:
            assert ask(gateway, encode(one, f"/third-{case.name}")).status == 401, case.name
        for each in case.forged:
            if each.path == one.path:  # else there is no route
                clock.stop(each.received_at)
                answer = ask(gateway, encode(each, case.path))
                assert answer.status == 401, (case.name, each, answer.body)
    assert metric(gateway, PUBLISHED) - before == deliveries
