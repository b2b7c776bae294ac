"""A public key is fetched from a server: 503 until it is there, and nothing that a request aims."""

from __future__ import annotations

import asyncio
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.relay.fetched_keys import MAX_ANSWER
from tests.support import http_client
from tests.support.config import toml
from tests.support.http_client import Answer, request
from tests.support.stack import Server
from tests.unit.sources.test_jwt import pem

KEY = ec.generate_private_key(ec.SECP256R1())
BODY = b'{"id":"1"}'


class Keys(BaseHTTPRequestHandler):
    """A sender's keys: one that is good, and odd answers."""

    asked: list[str]
    served: threading.Event

    def do_GET(self) -> None:
        self.asked.append(self.path)
        answers = {
            "/keys/good": (200, pem(KEY).encode()),
            "/keys/large": (200, b"x" * (MAX_ANSWER + 1)),
            "/keys/moved": (302, b""),
        }
        status, body = answers.get(self.path, (404, b""))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/keys/good")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.served.set()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def keys() -> Iterator[tuple[int, type[Keys]]]:
    handler = type("Served", (Keys,), {"asked": [], "served": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, handler
    server.shutdown()
    thread.join()
    server.server_close()


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
    gateway.kill()
