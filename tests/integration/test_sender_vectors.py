"""The vectors of all senders that are data, over HTTP, each at the time at which it was signed.

A vector whose URL is signed has its own path, on a gateway with its own `public_url`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.test_source_vectors import Clock
from tests.integration.webhooks import toml
from tests.support.http_client import Answer, Connection, request
from tests.support.requests import PUBLISHED, metric
from tests.support.stack import RabbitMQ, Server, Stack
from tests.unit.sources.test_senders import VECTORS, other, source

OWN = json.loads((Path(__file__).parents[1] / "vectors" / "own_blocks.json").read_text("utf-8"))
NOW = 1_800_000_000


@dataclass
class Case:
    """A vector, with what the source of its route is, and the path of that."""

    name: str
    vector: dict[str, Any]
    source: dict[str, Any]
    signs_url: bool
    proofs: frozenset[str]

    @property
    def target(self) -> str:
        url = urlsplit(self.vector["url"])
        path = url.path or "/" if self.signs_url else f"/{self.name}"
        return f"{path}?{url.query}" if url.query else path

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


def cases() -> Iterator[Case]:
    for each in VECTORS:
        name, vector = each.values
        table = {"scheme": name, "secrets": vector["secret"]}
        found = source(name, vector)
        block = getattr(found, "block", None)
        texts = [] if block is None else [*block.signed_places, str(block.require)]
        signs_url = block is None or any(
            text.startswith(("url", "path")) or "audience" in text for text in texts
        )
        # eBay's signature is a part of the header only.
        proofs = frozenset() if name == "ebay" else found.secret_headers
        yield Case(str(each.id), vector, table, signs_url, proofs)
    for i, vector in enumerate(OWN):
        proof = frozenset([vector["block"]["signature"].partition(":")[2]])
        source_of = {**vector["block"], "secrets": vector["secret"]}
        yield Case(f"own-{i}", vector, source_of, False, proof)


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


def encode(case: Case, change: Callable[[str], str] = str) -> bytes:
    """Write its request, with the header that proves who sends it changed."""
    lines = [
        f"{name}: {change(value) if name.lower() in case.proofs else value}"
        for name, value in case.vector["headers"].items()
        if name != "Content-Length"
    ]
    body = case.vector["body"].encode()
    return request(body, case.target, *lines, method=case.vector["method"])


def ask(server: Server, data: bytes) -> Answer:
    async def exchange() -> Answer:
        async with await Connection.open(urlsplit(server.url).port) as connection:
            return await connection.ask(data)

    return asyncio.run(exchange())


@pytest.mark.parametrize("place", places(), ids=lambda place: place.public_url)
def test_all_vectors_over_http(
    place: Place, stack: Stack, rabbitmq: RabbitMQ, redis_server: Server, start, tmp_path
):
    clock = start(lambda: Clock(tmp_path / "clock"))
    routes = [
        {"path": path, "source": name, "answer": "accept", "fallback": "", "idempotency": "none"}
        for path, name in place.paths.items()
    ]
    file = tmp_path / "gateway.toml"
    file.write_text(f'public_url = "{place.public_url}"\n\n{toml(place.sources, routes)}')
    urls = ("--broker", rabbitmq.url, "--result-backend", redis_server.url)
    gateway = stack.gateway("--strategy=pika", *urls, "--config", str(file), env=clock.env)
    before, deliveries = metric(gateway, PUBLISHED), 0
    for case in place.cases:
        clock.set(case.vector.get("signed_at") or NOW)
        answer = ask(gateway, encode(case))
        assert (answer.status < 300) == case.vector["valid"], (case.name, answer.body)
        assert case.vector["valid"] or answer.status == 401, case.name
        if encode(case, other) != encode(case):
            assert ask(gateway, encode(case, other)).status == 401, case.name
        deliveries += case.vector["valid"] and not case.name.startswith("discord")  # a PING
    assert metric(gateway, PUBLISHED) - before == deliveries
    gateway.kill()
