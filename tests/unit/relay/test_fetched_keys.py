"""Public keys that are fetched: when, how often, and what is believed for how long."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from gateway.errors import KeyNotKnown, Unverified
from gateway.http_client import HttpClient, NotKnown, NotSent, Response
from gateway.relay import fetched_keys
from gateway.relay.fetched_keys import (
    BURST,
    FRESH,
    MAX_KEYS,
    PAUSE,
    REFILL,
    SHARE,
    SHARE_REFILL,
    STALE,
    TOKEN,
    FetchedKeys,
)
from gateway.sources.base import KeyRequest


def number(text: bytes) -> int:
    return int(text)


def wanted(name: str = "a", read: Callable[[bytes], Any] = number, asker: str = "") -> KeyRequest:
    return KeyRequest(f"https://keys.example/{name}", {}, read, asker=asker)


class Sender(HttpClient):
    """Has keys by their names, and counts who asks for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        super().__init__(fetched_keys.MAX_ANSWER)
        self.answers: dict[str, bytes | int | Exception] = {"a": b"1"}
        self.asked: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []
        self.now = 1_000.0
        self.held: asyncio.Event | None = None
        monkeypatch.setattr(fetched_keys, "monotonic", lambda: self.now)

    async def fetch(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Response:
        name = url.rpartition("/")[2]
        self.asked[name] += 1
        self.headers.append(headers)
        if self.held is not None:
            await self.held.wait()
        answer = self.answers.get(name, 404)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return Response(answer, {}, b"")
        return Response(200, {}, b'{"access_token":"%s"}' % answer if body else answer)


@pytest.fixture
def sender(monkeypatch) -> Sender:
    return Sender(monkeypatch)


def unknown(keys: FetchedKeys, wanted: KeyRequest, **options: bool) -> KeyNotKnown:
    """See that a key is not known yet."""
    with pytest.raises(KeyNotKnown) as refused:
        keys.get(wanted, **options)
    return refused.value


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def fetching(sender: Sender, *needed: KeyRequest) -> AsyncIterator[FetchedKeys]:
    keys = FetchedKeys(needed)
    keys._client = sender
    await keys.start()
    await settle()
    try:
        yield keys
    finally:
        await keys.stop()


async def test_what_every_delivery_needs_is_there_before_the_first(sender):
    async with fetching(sender, wanted()) as keys:
        assert keys.get(wanted()) == 1


async def test_a_key_is_fetched_once_while_many_ask_and_then_known(sender):
    async with fetching(sender) as keys:
        sender.held = asyncio.Event()
        for _ in range(50):
            refused = unknown(keys, wanted())
            await asyncio.sleep(0)
        assert refused.status == 503 and refused.retry_after
        sender.held.set()
        await settle()
        assert [keys.get(wanted()) for _ in range(50)] == [1] * 50
        sender.now += PAUSE + 1  # it is fresh still
        assert keys.get(wanted()) == 1
        await settle()
        assert sender.asked == {"a": 1}


@pytest.mark.parametrize("error", [NotSent("away"), NotKnown("no answer"), 302, 500])
async def test_a_failure_is_remembered_for_a_while(sender, error):
    async with fetching(sender) as keys:
        sender.answers["a"] = error
        for _ in range(5):
            unknown(keys, wanted())
            await settle()
        assert sender.asked == {"a": 1}
        sender.answers["a"], sender.now = b"2", sender.now + PAUSE
        unknown(keys, wanted())
        await settle()
        assert keys.get(wanted()) == 2


@pytest.mark.parametrize("read", [number, lambda _: [][0], partial(json.loads, 9_000 * "[")])
async def test_what_cannot_be_read_is_no_key_and_the_next_one_is_fetched(sender, read):
    async with fetching(sender) as keys:
        sender.answers |= {"a": b"<html>", "b": b"2"}
        for _ in range(2):
            unknown(keys, wanted(read=read))
            await settle()
        unknown(keys, wanted("b"))
        await settle()
        assert keys.get(wanted("b")) == 2


async def test_a_key_that_the_sender_does_not_have_is_unverified(sender):
    async with fetching(sender) as keys:
        unknown(keys, wanted("forged"))
        await settle()
        with pytest.raises(Unverified):
            keys.get(wanted("forged"))


async def test_forged_names_are_fetched_at_a_low_rate_and_cost_no_known_key(sender):
    async with fetching(sender, wanted()) as keys:
        for hour in range(3):
            for i in range(2_000):
                unknown(keys, wanted(f"forged-{hour}-{i}", asker=f"192.0.2.{i % 250}"))
                if i % 7 == 0:
                    await settle()
            fetches = sender.asked.total() - sender.asked["a"]
            assert fetches <= BURST * (hour + 1) + hour * 3_600 / REFILL
            assert keys.get(wanted()) == 1
            assert len(keys._known) <= MAX_KEYS
            sender.now += FRESH + 1
            keys.get(wanted())  # fetched again, whatever the others have spent
            await settle()
        assert sender.asked["a"] == 4


async def test_who_forges_names_takes_no_fetch_from_others(sender):
    async with fetching(sender) as keys:
        sender.answers["b"] = b"2"
        for i in range(1_000):
            unknown(keys, wanted(f"forged-{i}", asker=f"2001:db8::{i:x}"))
            await settle()
        assert sender.asked.total() == SHARE
        for asker in ("2001:db8:0:1::1", "192.0.2.1"):
            unknown(keys, wanted("b", asker=asker))
        await settle()
        assert keys.get(wanted("b")) == 2
        sender.now += SHARE_REFILL
        for name in ("one", "another"):
            unknown(keys, wanted(name, asker="2001:db8::1"))
        await settle()
        assert (sender.asked["one"], sender.asked["another"]) == (1, 0)


async def test_a_known_key_is_fetched_again_and_believed_for_a_day(sender):
    async with fetching(sender, wanted()) as keys:
        sender.answers["a"], sender.now = b"2", sender.now + FRESH + 1
        assert keys.get(wanted()) == 1
        await settle()
        assert keys.get(wanted()) == 2
        sender.answers["a"] = NotSent("away")
        sender.now += STALE - 1
        assert keys.get(wanted()) == 2
        await settle()
        sender.now += 2
        unknown(keys, wanted())


async def test_a_set_without_the_id_is_fetched_again_but_not_at_once(sender):
    async with fetching(sender, wanted()) as keys:
        sender.answers["a"] = b"2"
        for _ in range(20):
            assert keys.get(wanted(), newer=True) == 1
            await settle()
        sender.now += PAUSE + 1
        unknown(keys, wanted(), newer=True)
        await settle()
        assert keys.get(wanted(), newer=True) == 2
        assert sender.asked == {"a": 2}


async def test_a_fetch_ends_in_time(sender, monkeypatch):
    async with fetching(sender) as keys:
        monkeypatch.setattr(fetched_keys, "TIMEOUT", 0.01)
        sender.held = asyncio.Event()
        unknown(keys, wanted())
        about = keys._known[wanted().url]
        async with asyncio.timeout(5):
            while about.asked:
                await asyncio.sleep(0.01)
        assert about.value is None


async def test_an_access_token_is_fetched_with_the_secret_and_used_for_a_while(sender):
    request = KeyRequest(
        "https://keys.example/a", {"Authorization": "Bearer {token}"}, number,
        ("https://keys.example/login", "grant_type=client_credentials"), "id:secret",
    )  # fmt: skip
    async with fetching(sender) as keys:
        sender.answers |= {"login": b"T1", "b": b"2"}
        for name in ("a", "b"):
            unknown(keys, request._replace(url=f"https://keys.example/{name}"))
            await settle()
        sender.now += TOKEN + FRESH
        keys.get(request)
        await settle()
        assert sender.asked == {"login": 2, "a": 2, "b": 1}
        bearer, login = {"Authorization": "Bearer T1"}, sender.headers[0]
        assert login["Authorization"] == "Basic aWQ6c2VjcmV0"
        assert sender.headers == [login, bearer, bearer, login, bearer]


@pytest.mark.parametrize("answer", [b"[]", b"{}", b'{"access_token":1}', b"x"])
async def test_an_answer_without_an_access_token_is_a_failure(sender, answer):
    request = KeyRequest(
        "https://keys.example/a", {}, number, ("https://keys.example/x", ""), "a:b"
    )
    async with fetching(sender) as keys:
        sender.answers["x"] = answer
        for _ in range(2):
            unknown(keys, request)
            await settle()
        assert sender.asked == {"x": 1}
