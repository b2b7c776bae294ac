"""gzip bodies: whole or not at all, and never much beyond the limit."""

from __future__ import annotations

import contextlib
import gzip
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest, BodyTooLarge
from gateway.http.received_request import MAX_MEMBERS, gunzip

LIMIT = 1024 * 1024


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_members_are_put_together(members):
    body = b"".join(gzip.compress(member) for member in members)
    assert gunzip(body, LIMIT) == b"".join(members)


@given(st.binary(max_size=200), st.data())
def test_what_is_cut_off_or_goes_on_is_refused(body, data):
    whole = gzip.compress(body)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BadRequest):
        gunzip(whole[:cut], LIMIT)
    more = data.draw(st.binary(min_size=1, max_size=20).filter(lambda b: b[:1] != b"\x1f"))
    with pytest.raises(BadRequest):
        gunzip(whole + more, LIMIT)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_changed_byte_is_noticed_or_without_effect(body, data):
    whole = bytearray(gzip.compress(body, mtime=0))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(BadRequest):
        assert gunzip(bytes(whole), LIMIT) == body


def test_limit_counts_what_is_decompressed():
    assert gunzip(gzip.compress(bytes(LIMIT)), LIMIT) == bytes(LIMIT)
    for body in (bytes(LIMIT + 1), bytes(100 * LIMIT)):
        with pytest.raises(BodyTooLarge):
            gunzip(gzip.compress(body), LIMIT)
    with pytest.raises(BodyTooLarge):
        gunzip(gzip.compress(bytes(LIMIT // 2)) * 3, LIMIT)


def test_members_are_limited():
    assert gunzip(gzip.compress(b"") * MAX_MEMBERS, LIMIT) == b""
    with pytest.raises(BadRequest):
        gunzip(gzip.compress(b"") * (MAX_MEMBERS + 1), LIMIT)


def test_bomb_costs_little_more_memory_than_the_limit():
    bomb = gzip.compress(bytes(64 * LIMIT))
    tracemalloc.start()
    with pytest.raises(BodyTooLarge):
        gunzip(bomb, LIMIT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * LIMIT
