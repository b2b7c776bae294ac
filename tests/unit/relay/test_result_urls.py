"""Tokens of result URLs: what was made is read, anything else is not found."""

from __future__ import annotations

import asyncio
import base64
import time
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.delivery import Request
from gateway.errors import NotFound, ResultExpired, StoreError
from gateway.relay.result_urls import ResultURLs, Ticket, Tokens

PLAIN, XML = ("/", "text/plain"), ("/xml", "text/xml")
GONE = ("/gone", "text/plain")
#: The last has the path of another one.
ROUTES = [PLAIN, XML, ("/xml", "text/plain")]
TOKENS = Tokens(b"a key of sixteen bytes", "gateway:/::", ROUTES)
CONFIG = Config(
    routes=[Route(path="/")], secret_key="k" * 16, public_url="https://x", result_expires=300
)
DELIVERY, TASK = str(uuid4()), str(uuid4())


class Store:
    """Has the time `now`, which it does not tell if it is None, and no results."""

    def __init__(self, now: float | None = 0):
        self.now, self.on_connected = now, []

    def run(self, command: str, *_: str) -> asyncio.Future:
        loop = asyncio.get_running_loop()
        reply = loop.create_future()
        if command == "EVAL":
            loop.call_soon(reply.set_result, [None])
        elif self.now is None:
            loop.call_soon(reply.set_exception, StoreError("NOPERM"))
        else:
            loop.call_soon(reply.set_result, [b"%d" % self.now, b"0"])
        return reply


@pytest.mark.parametrize("route", ROUTES)
def test_what_was_made_is_read_and_the_routes_of_one_path_have_their_own_types(route):
    ticket = TOKENS.read(TOKENS.make(DELIVERY, TASK, route, 1_000))
    assert (ticket.delivery_id, ticket.task_id) == (DELIVERY, TASK)
    assert (ticket.expires, ticket.content_type) == (1_000, route[1])


def test_a_token_outlives_a_new_content_type():
    changed = Tokens(b"a key of sixteen bytes", "gateway:/::", [("/", "text/html")])
    token = TOKENS.make(DELIVERY, TASK, PLAIN, 1_000)
    assert changed.read(token).content_type == "text/html"


def test_a_token_is_safe_in_a_path_and_tells_nothing_of_the_route():
    token = TOKENS.make(DELIVERY, TASK, XML, 1_000)
    assert set(token) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
    assert token[64:] != TOKENS.make(DELIVERY, TASK, PLAIN, 1_000)[64:]


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@given(st.binary(max_size=64).map(encoded) | st.text(max_size=80))
def test_random_bytes_and_texts_find_nothing(text):
    with pytest.raises(NotFound):
        TOKENS.read(text)


@given(st.integers(0, 8 * 60 - 1))
def test_no_bit_can_be_changed(bit):
    data = bytearray(base64.urlsafe_b64decode(TOKENS.make(DELIVERY, TASK, PLAIN, 1_000)))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(NotFound):
        TOKENS.read(encoded(data))


@pytest.mark.parametrize("change", ["{}=", "{}A", " {}", "{}\n", "{}%3D", "/{}", "é{}", "{}/"])
def test_a_token_has_one_spelling(change):
    with pytest.raises(NotFound):
        TOKENS.read(change.format(TOKENS.make(DELIVERY, TASK, PLAIN, 1_000)))


@pytest.mark.parametrize(
    "foreign",
    [
        Tokens(b"another key of 16 bytes", "gateway:/::", ROUTES),
        Tokens(b"a key of sixteen bytes", "gateway:/other::", ROUTES),
        Tokens(b"a key of sixteen bytes", "gateway:/::", [GONE]),
    ],
)
def test_another_key_s_and_a_removed_route_s_are_not_found(foreign):
    route = GONE if foreign._routes.keys() != TOKENS._routes.keys() else PLAIN
    with pytest.raises(NotFound):
        TOKENS.read(foreign.make(DELIVERY, TASK, route, 1_000))


@pytest.mark.parametrize("missing", ["secret_key", "result_backend"])
async def test_without_a_key_or_a_store_there_are_no_urls(relaying, missing):
    """Without a key anybody could make a URL."""
    settings = {"secret_key": "k" * 16, "public_url": "https://x", missing: None}
    made = relaying(routes=[{"path": "/", "answer": "accept"}], strategy="pika", **settings)
    made.strategy.publish = made.strategy.send  # which is in memory
    about = "", {}, b"", "127.0.0.1", time.monotonic(), 0.0
    accepted = made.send(Request("POST", "/", *about))
    assert accepted.status == 202 and "Location" not in accepted.headers
    token = Tokens(b"k" * 16, CONFIG.prefix, [PLAIN]).make(DELIVERY, TASK, PLAIN, 1_000)
    assert made.send(Request("GET", f"/results/{token}", *about)).status == 404


def test_the_location_of_an_old_delivery_ends_when_the_first_one_s_does(monkeypatch):
    monkeypatch.setattr("gateway.relay.result_urls.time", lambda: 1_000)
    monkeypatch.setattr("gateway.relay.result_urls.monotonic", lambda: 10.0)
    results = ResultURLs(CONFIG, Store())

    first = results.location(DELIVERY, TASK, CONFIG.routes[0])
    second = results.location(DELIVERY, TASK, CONFIG.routes[0], age=40)

    assert first.startswith("https://x/results/")
    assert results.ticket(first.removeprefix("https://x")).expires == 1_300
    assert results.ticket(second.removeprefix("https://x")).expires == 1_260


@pytest.mark.parametrize("clocks", [(1_000, 10_000), (10_000, 1_000)])
async def test_the_time_is_that_of_redis_whatever_the_clocks_of_the_machines_say(
    monkeypatch, clocks
):
    clock = iter(clocks)
    store = Store(5_000)

    async def on_a_machine() -> ResultURLs:
        now = next(clock)
        monkeypatch.setattr("gateway.relay.result_urls.time", lambda: now)
        made = ResultURLs(CONFIG, store)
        store.on_connected.pop()()
        await asyncio.sleep(0.01)
        return made

    location = (await on_a_machine()).location(DELIVERY, TASK, CONFIG.routes[0])
    other = await on_a_machine()
    ticket = other.ticket(location.removeprefix("https://x"))
    assert (await other.fetch(ticket)).status == 202
    store.now += 301
    with pytest.raises(ResultExpired):
        await other.fetch(ticket)


async def test_neither_a_clock_that_is_set_nor_a_machine_that_sleeps_changes_the_time(monkeypatch):
    clocks = {"time": 1_000.0, "monotonic": 10.0}
    for name in clocks:
        monkeypatch.setattr(f"gateway.relay.result_urls.{name}", lambda name=name: clocks[name])
    store = Store(5_000)
    results = ResultURLs(CONFIG, store)

    def end() -> float:
        location = results.location(DELIVERY, TASK, CONFIG.routes[0])
        return results.ticket(location.removeprefix("https://x")).expires

    store.on_connected.pop()()
    await asyncio.sleep(0.01)
    clocks["time"] = 1.0  # it is set back
    assert end() == 5_300
    await asyncio.sleep(0.01)
    store.now += 3_600  # it has slept: only the clock that is set goes on
    clocks["time"] += 3_600
    end()  # which asks Redis
    await asyncio.sleep(0.01)
    assert end() == 8_900


async def test_where_redis_does_not_tell_the_time_it_is_the_machine_s():
    ticket = Ticket(DELIVERY, TASK, time.time() + 100, "text/plain")
    assert (await ResultURLs(CONFIG, Store(None)).fetch(ticket)).status == 202
