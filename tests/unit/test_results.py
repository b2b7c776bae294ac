"""Tokens of result URLs: what was made is read, anything else is not found."""

from __future__ import annotations

import base64
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config
from gateway.errors import NotFound, ResultExpired
from gateway.results import Results, Tokens
from gateway.route import Route

PATHS = [("/", "text/plain"), ("/xml", "text/xml")]
TOKENS = Tokens(b"a key of sixteen bytes", PATHS)
TASK = str(uuid4())


def test_what_was_made_is_read_until_it_expires():
    token = TOKENS.make(TASK, "/xml", 1_000)

    ticket = TOKENS.read(token, 999.9)

    assert (ticket.task_id, ticket.content_type) == (TASK, "text/xml")
    with pytest.raises(ResultExpired):
        TOKENS.read(token, 1_000)


def test_a_token_is_safe_in_a_path_and_tells_nothing_of_the_route():
    token = TOKENS.make(TASK, "/xml", 1_000)
    assert set(token) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
    assert token[43:] != TOKENS.make(TASK, "/", 1_000)[43:]


@given(st.binary(max_size=64))
def test_random_bytes_find_nothing(data):
    with pytest.raises(NotFound):
        TOKENS.read(base64.urlsafe_b64encode(data).rstrip(b"=").decode(), 0)


@given(st.text(max_size=80))
def test_random_text_finds_nothing(text):
    with pytest.raises(NotFound):
        TOKENS.read(text, 0)


@given(st.integers(0, 8 * 44 - 1))
def test_no_bit_can_be_changed(bit):
    data = bytearray(base64.urlsafe_b64decode(TOKENS.make(TASK, "/", 1_000) + "="))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(NotFound):
        TOKENS.read(base64.urlsafe_b64encode(data).rstrip(b"=").decode(), 0)


@pytest.mark.parametrize("change", ["{}=", "{}A", " {}", "{}\n", "{}%3D", "/{}", "é{}", "{}/"])
def test_a_token_has_one_spelling(change):
    with pytest.raises(NotFound):
        TOKENS.read(change.format(TOKENS.make(TASK, "/", 1_000)), 0)


def test_the_last_character_s_unused_bits_are_no_second_spelling():
    token = TOKENS.make(TASK, "/", 1_000)
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = token[:-1] + digits[digits.index(token[-1]) ^ 1]
    assert base64.urlsafe_b64decode(other + "=") == base64.urlsafe_b64decode(token + "=")
    with pytest.raises(NotFound):
        TOKENS.read(other, 0)


@pytest.mark.parametrize(
    "foreign",
    [
        Tokens(b"another key of 16 bytes", PATHS),
        Tokens(b"a key of sixteen bytes", [("/gone", "text/plain")]),
    ],
)
def test_another_key_s_and_a_removed_route_s_are_not_found(foreign):
    path = "/gone" if foreign._routes.keys() != TOKENS._routes.keys() else "/"
    with pytest.raises(NotFound):
        TOKENS.read(foreign.make(TASK, path, 1_000), 0)


def test_without_a_key_there_is_no_location():
    config = Config(routes=[Route(path="/")])
    assert Results(config, None).location(TASK, "/") == ""


def test_the_location_of_an_old_delivery_ends_when_the_first_one_s_does(monkeypatch):
    config = Config(
        routes=[Route(path="/")], secret_key="k" * 16, public_url="https://x", result_expires=100
    )
    monkeypatch.setattr("gateway.results.time.time", lambda: 1_000)
    results = Results(config, object())

    first, second = results.location(TASK, "/"), results.location(TASK, "/", age=40)

    assert first.startswith("https://x/results/")
    read = Tokens(b"k" * 16, PATHS).read
    assert read(first.rpartition("/")[2], 1_099).task_id == TASK
    assert read(second.rpartition("/")[2], 1_059).task_id == TASK
    with pytest.raises(ResultExpired):
        read(second.rpartition("/")[2], 1_060)
