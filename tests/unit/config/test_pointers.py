"""Where the operator says that a delivery's key stands, and the queue that a key leads to."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.pointers import MAX_LENGTH, chooser, filler, finder
from gateway.delivery import Delivery
from gateway.errors import BadRequest

DOCUMENT = {
    "id": "evt_1", "number": 17, "float": 1.5, "true": True, "null": None, "empty": "",
    "a/b": "slash", "m~n": "tilde", "m~1n": "both", "": "no name",
    "list": ["zero", {"id": "in a list"}], "nested": {"list": [[5]]}, "große": "ü",
}  # fmt: skip


def delivery(body: bytes = b"{}", **headers: str) -> Delivery:
    return Delivery("id", "/", {"tenant": "t1"}, {}, "", headers, body, "127.0.0.1", 0.0)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/id", "evt_1"), ("/number", "17"), ("/a~1b", "slash"), ("/m~0n", "tilde"),
        ("/m~01n", "both"), ("/", "no name"), ("/list/0", "zero"), ("/list/1/id", "in a list"),
        ("/nested/list/0/0", "5"), ("/große", "ü"),
    ],
)  # fmt: skip
def test_a_json_pointer_finds_text_and_numbers(pointer, value):
    assert finder(f"json:{pointer}")(delivery(json.dumps(DOCUMENT).encode())) == value


@pytest.mark.parametrize(
    "pointer",
    [
        "", "/missing", "/float", "/true", "/null", "/empty", "/list", "/nested", "/list/2",
        "/list/-", "/list/-1", "/list/00", "/list/٠", "/list/id", "/id/0", "/number/0",
    ],
)  # fmt: skip
def test_what_identifies_nothing_is_malformed(pointer):
    with pytest.raises(BadRequest):
        finder(f"json:{pointer}")(delivery(json.dumps(DOCUMENT).encode()))


@pytest.mark.parametrize("body", [b"", b"[]", b"no JSON", b'{"id":NaN}', b'{"id":"\xff"}'])
def test_a_body_that_is_no_json_object_is_malformed(body):
    with pytest.raises(BadRequest):
        finder("json:/id")(delivery(body))


def test_half_an_emoji_is_a_key_and_chooses_a_queue():
    one = delivery(rb'{"id":"\ud83d"}')
    assert finder("json:/id")(one) == "\ud83d"
    assert chooser("json:/id", ["a", "b"])(one) in ("a", "b")
    with pytest.raises(BadRequest, match="printable"):
        filler("orders.{json:/id}")(one)


@given(st.binary(max_size=200))
def test_any_body_is_read_or_malformed(body):
    with suppress(BadRequest):
        assert finder("json:/id")(delivery(body))


def test_headers_and_parameters():
    one = delivery(**{"idempotency-key": "key"})
    assert finder("header:Idempotency-Key")(one) == "key"
    assert finder("param:tenant")(one) == "t1"
    with pytest.raises(BadRequest, match="header:X-Other"):
        finder("header:X-Other")(one)


def test_a_key_has_a_limit():
    assert len(finder("header:key")(delivery(key="x" * MAX_LENGTH))) == MAX_LENGTH
    with pytest.raises(BadRequest):
        finder("header:key")(delivery(key="x" * (MAX_LENGTH + 1)))


def chosen(queues: list[str]) -> dict[str, str]:
    choose = chooser("header:key", queues)
    return {key: choose(delivery(key=key)) for key in map(str, range(4_000))}


def test_keys_are_spread_over_all_queues():
    shares = Counter(chosen(["a", "b", "c", "d"]).values())
    assert set(shares) == set("abcd")
    assert all(850 < share < 1_150 for share in shares.values())


def test_another_queue_takes_its_share_and_moves_nothing_else():
    before, after = chosen(["a", "b", "c"]), chosen(["a", "d", "b", "c"])
    moved = {key for key in before if before[key] != after[key]}
    assert {after[key] for key in moved} == {"d"}
    assert 850 < len(moved) < 1_150


def test_a_queue_less_moves_only_its_own_share():
    before, after = chosen(["a", "b", "c"]), chosen(["c", "a"])
    assert all(after[key] == queue for key, queue in before.items() if queue != "b")


def test_every_process_chooses_the_same():
    # Written down: another answer would break the order of what is under way at an upgrade.
    choose = chooser("header:key", ["a", "b", "c", "d"])
    assert [choose(delivery(key=key)) for key in ("1", "2", "3", "ü")] == list("aaca")
