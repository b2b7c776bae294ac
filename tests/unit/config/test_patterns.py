"""What an operator writes as a pattern is matched in linear time, whatever a sender sends.

Before, the long cases would have taken hours: they would end by the suite's timeout.
"""

from __future__ import annotations

import re

import pytest

from gateway.config.dynamic import check_pattern
from gateway.config.pointers import MAX_LENGTH, MAX_NAME, glob
from gateway.config.settings import Config
from gateway.delivery import read_prefer
from gateway.errors import NotFound
from gateway.relay.routes import Routes


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
