"""A public key is fetched from a server: 503 until it is there, and nothing that a request aims."""

from __future__ import annotations

import asyncio
import threading
import time
from base64 import b64encode
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.relay.fetched_keys import MAX_ANSWER
from tests.support import http_client
from tests.support.config import toml
from tests.support.http_client import Answer, request
from tests.support.http_server import Asked, Said, served
from tests.support.stack import Server
from tests.unit.sources.test_jwt import pem

KEY = ec.generate_private_key(ec.SECP256R1())
BODY = b'{"id":"1"}'


class Keys:
    """A sender's keys: one that is good, and odd answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.served = threading.Event()

    def answer(self, asked: Asked) -> Said:
        self.asked.append(asked.path)
        self.served.set()
        known: dict[str, Said] = {
            "/keys/good": (200, {}, pem(KEY).encode()),
            "/keys/large": (200, {}, b"x" * (MAX_ANSWER + 1)),
            "/keys/moved": (302, {"Location": "/keys/good"}, b""),
        }
        return known.get(asked.path, (404, {}, b""))


def ask(server: Server, kid: str, body: bytes = BODY) -> Answer:
    signature = b64encode(KEY.sign(BODY, ec.ECDSA(hashes.SHA256()))).decode()
    data = request(body, "/in", f"X-Signature: {signature}", f"X-Kid: {kid}")
    return asyncio.run(http_client.ask(server.port, data))


def asked_until(server: Server, kid: str, statuses: set[int]) -> Answer:
    """Ask as a sender does that tries again."""
    end = time.monotonic() + 10
    while (answer := ask(server, kid)).status not in statuses and time.monotonic() < end:
        pass
    return answer


@pytest.fixture
def keys() -> Iterator[tuple[int, Keys]]:
    keys = Keys()
    with served(keys.answer) as port:
        yield port, keys


def test_a_key_is_fetched_once_and_then_deliveries_are_taken(keys, start_gateway):
    port, handler = keys
    source = {
        "signature": "header:x-signature", "algorithm": "ecdsa-sha256", "key": "pem",
        "encoding": "base64", "secrets": "unused",
        "key_url": f"http://127.0.0.1:{port}/keys/{{header:x-kid}}",
    }  # fmt: skip
    route = {"path": "/in", "source": "a", "answer": "accept", "fallback": ""}
    gateway = start_gateway(toml({"a": source}, [route]), "--strategy=pika")

    first = ask(gateway, "good")
    assert (first.status, first.type) == (503, "key-not-known")
    assert int(first.headers["retry-after"]) > 0
    assert handler.served.wait(10)
    assert asked_until(gateway, "good", {200, 202}).status < 300
    assert ask(gateway, "good").status < 300
    assert handler.asked == ["/keys/good"]
    assert ask(gateway, "good", BODY + b" ").status == 401

    # No redirect is followed, nothing large is read, and a path is no name of a key.
    assert asked_until(gateway, "absent", {401}).status == 401
    for kid in ("large", "moved"):
        handler.served.clear()
        assert ask(gateway, kid).status == 503
        assert handler.served.wait(10)
        assert ask(gateway, kid).status == 503
    for kid in ("../good", "good?x", "a/b", "127.0.0.1@evil", ""):
        assert ask(gateway, kid).status == 401
    assert handler.asked == ["/keys/good", "/keys/absent", "/keys/large", "/keys/moved"]
