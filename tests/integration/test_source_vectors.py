"""The senders' own examples through nginx, on the day they were made.

Each byte of them is changed in tests/unit/sources.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.stack.programs import find
from tests.integration.vectors import FOUND, MORE_WRONG, VECTORS, Vector
from tests.integration.webhooks import Call, ask, ask_all
from tests.support.config import toml
from tests.support.http_client import Answer
from tests.support.requests import PUBLISHED, metric
from tests.support.stack import Stack

ALL = [*VECTORS, *MORE_WRONG]


def each(vectors: list[Vector]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector.name)


class Clock:
    """The wall clock of a gateway, which stands still until it is set."""

    def __init__(self, file: Path):
        self._file = file
        self.set(1_700_000_000)
        find("faketime", "faketime")  # else the test is not for this machine
        # Not by its wrapper, which ends with an error where a killed process had the same number.
        self.env = {
            "LD_PRELOAD": "/usr/$LIB/faketime/libfaketime.so.1",
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "TZ": "UTC",
        }

    def set(self, seconds: float) -> None:
        # Renamed, as libfaketime ends the process that finds an empty file.
        new = self._file.with_suffix(".new")
        new.write_text(f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}\n")
        new.rename(self._file)


class Gateway:
    """A gateway with each vector's source on a route of its own; `nginx` is in front of it."""

    def __init__(self, stack: Stack, start, urls: list[str], file: Path, wrong: bool):
        sources = {
            v.name: {"scheme": v.scheme, **v.options, **(v.wrong if wrong else {})} for v in ALL
        }
        routes = [{"path": v.route, "source": v.name} for v in ALL]
        public = 'public_url = "https://mycompany.com"\n\n'
        file.write_text(public + toml(sources, routes))
        self.clock = start(lambda: Clock(file.with_suffix(".clock")))
        self.server = stack.gateway(*urls, "--config", str(file), env=self.clock.env)
        port = int(self.server.url.rpartition(":")[2])
        self.nginx = start(lambda: stack.nginx([port]))

    def ask_all(self, vector: Vector, calls: list[Call]) -> list[Answer]:
        if vector.at:
            self.clock.set(vector.at)
        return ask_all(self.nginx, calls)


@pytest.fixture(scope="module")
def gateways(stack: Stack, urls: list[str], worker, start, tmp_path_factory) -> list[Gateway]:
    """Two that differ in their secrets only: the second one's are wrong."""
    directory, urls = tmp_path_factory.mktemp("vectors"), ["--strategy=pika", *urls]
    kinds = {"right": False, "wrong": True}
    return [Gateway(stack, start, urls, directory / f"{n}.toml", w) for n, w in kinds.items()]


@pytest.fixture
def gateway(gateways) -> Gateway:
    return gateways[0]


@pytest.fixture
def wrong(gateways) -> Gateway:
    return gateways[1]


def test_no_vector_is_left_out():
    used = {name for v in VECTORS for name in FOUND if v.name.startswith(name)}
    used |= {"standard-webhooks-v1", "twilio-form", "feishu-signature", "ed25519-rfc8032-key1"}
    assert used == set(FOUND)


@each(VECTORS)
def test_it_is_taken_and_answered(gateway, vector):
    (answer,) = gateway.ask_all(vector, [vector.call])
    assert answer.status == vector.status, answer.body
    expected = vector.body if vector.expected is None else vector.expected
    assert vector.read(answer.body) == expected


@each([vector for vector in VECTORS if vector.at])
def test_it_is_good_for_five_minutes_before_and_after(gateway, vector):
    for seconds, status in [(-301, 401), (-300, vector.status), (300, vector.status), (301, 401)]:
        gateway.clock.set(vector.at + seconds)
        answer = ask(gateway.nginx, vector.call)
        assert answer.status == status, seconds
        assert status == 200 or (b"cannot be decrypted" in answer.body) == (abs(seconds) == 300)


@each(ALL)
def test_another_secret_takes_it_for_forged(wrong, vector):
    published = metric(wrong.server, PUBLISHED)

    (answer,) = wrong.ask_all(vector, [vector.call])

    assert (answer.status, answer.type) == (401, "unverified")
    assert metric(wrong.server, PUBLISHED) == published
