"""Pointers, and patterns that operators write, which are matched in linear time."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.dynamic import check_pattern
from gateway.config.pointers import MAX_LENGTH, MAX_NAME, chooser, filler, finder, glob
from gateway.config.settings import Config
from gateway.delivery import Delivery, read_prefer
from gateway.errors import BadRequest, NotFound
from gateway.relay.routes import Routes

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


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("live", ["live"], ["", "liv", "live2", "*"]),
        ("*", ["", "a", "\n", "*"], []),
        ("a*", ["a", "ab", "a\n"], ["", "ba"]),
        ("*a", ["a", "ba"], ["", "ab"]),
        ("a*a", ["aa", "aba", "aaa"], ["a", "ab"]),
        ("a**b", ["ab", "a-b"], ["a", "b"]),
        ("*ab*ab*", ["abab", "-ab-ab-", "ababab"], ["ab", "aab"]),
        ("a*bc*c", ["abcc", "abc-bcc"], ["abc", "ac"]),
        ("[a-z]?.*", ["[a-z]?.", "[a-z]?.x"], ["a.", "ab."]),
    ],
)
def test_a_star_stands_for_any_characters_and_nothing_else_is_special(pattern, fitting, others):
    fits = glob(pattern)
    assert [text for text in fitting if not fits(text)] == []
    assert [text for text in others if fits(text)] == []


@pytest.mark.parametrize("stars", [3, 4, 12, 100])
def test_stars_are_matched_in_one_pass(stars):
    assert not glob("-".join("*" * stars) + "prod")("-" * MAX_LENGTH)


def test_an_event_is_matched_in_one_pass():
    route = {"path": "/", "source": "x", "events": ["-".join("*" * 50) + "z"]}
    source = {"scheme": "github", "secrets": ["s" * 20]}
    (route,) = Config(sources={"x": source}, routes=[route]).routes
    assert not route.takes_event("-" * MAX_NAME)


@pytest.mark.parametrize(
    ("path", "fitting", "long"),
    [
        ("/x/{a}-{b}-{c}-{d}/end", "/x/1-2-3-4-5/end", "/x/" + "-" * 8_000),
        ("/x/{a}.{b}", "/x/1.2.3", "/x/" + "." * 8_000 + "/"),
        ("/{a}{b}{c}{d}/end", "/1234/end", "/" + "1" * 8_000),
    ],
)
def test_parameters_of_one_segment_are_found_in_one_pass(path, fitting, long):
    routes = Routes(Config(routes=[{"path": path}]))
    endpoint, params = routes.find(fitting)
    assert endpoint.path == path
    assert list(params) == re.findall(r"{(.)}", path) and all(params.values())
    with pytest.raises(NotFound):
        routes.find(long)


def test_a_preference_without_its_last_quote_is_read_in_one_pass():
    assert read_prefer('"' + '\\"' * 200_000) is None


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|b)*", "([a-z]{2,}-){1,9}", "a*a*a*b", r"(a)\1+", "(?=a*)b", ".*-.*-.*x"],
)
def test_a_pattern_of_queues_that_a_sender_could_keep_busy_is_refused(pattern):
    with pytest.raises(ValueError, match="too many ways"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "session-[a-z0-9]{1,32}", "s-.+", "[)*+]+x", r"\(\d{3}\)+", "(eu|us)-[a-z]+", "a?b?c?",
        "x{3}",
    ],
)  # fmt: skip
def test_other_patterns_of_queues_are_taken(pattern):
    assert check_pattern(pattern) == pattern
