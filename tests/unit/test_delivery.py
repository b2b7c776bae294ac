"""What is read of headers: preferences, as RFC 7240 has them, and senders' trace contexts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.delivery import Preference, read_prefer, recorded_trace, traceparent_of

ASYNC = Preference("accept", None, "respond-async")


def wait(seconds: int) -> Preference:
    return Preference("wait-then-accept", float(seconds), f"wait={seconds}")


@pytest.mark.parametrize(
    ("header", "preference"),
    [
        *((header, ASYNC) for header in (
            "respond-async", "Respond-Async", "respond-async; foo=bar", "foo, respond-async",
        )),
        *((header, wait(10)) for header in (
            "wait=10", "WAIT = 10", 'wait="10"', "wait=10; foo", "respond-async, wait=10",
            "wait=10,respond-async", "wait=10, wait=20",  # Only the first of a name counts.
        )),
        ("wait=0", Preference("accept", None, "wait=0")),
        ("wait=0, respond-async", ASYNC),
        # What stands in a quoted string is a value, not a preference.
        ('foo="a, wait=3"', None),
        ('foo="a\\", respond-async", wait=3', wait(3)),
        ('foo; bar="respond-async, wait=3"', None),
        *((header, None) for header in (
            "", ",,", "handling=lenient", "wait", "wait=", "wait=-1", "wait=1.5", "wait=soon",
            "wait=123456", "wait=١", "wait=1 0", "xwait=10", "respond-async-not",
            f"respond-async, {'x' * 986}",
        )),
    ],
)  # fmt: skip
def test_what_is_asked_for(header, preference):
    assert read_prefer(header) == preference


@given(st.text(max_size=100))
def test_anything_may_be_sent(text):
    read_prefer(text)


TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def traceparent(text: str) -> str:
    return traceparent_of({"traceparent": text})


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        (f"00-{TRACE}-{PARENT}-01", True), (f"00-{TRACE}-{PARENT}-00", False),
        (f"00-{TRACE}-{PARENT}-03", True), (f"fe-{TRACE}-{PARENT}-01", True),
        (f"01-{TRACE}-{PARENT}-01-of.another-version", True),
    ],
)  # fmt: skip
def test_a_trace_context_is_told_and_one_that_is_recorded_may_be_an_exemplar(text, recorded):
    assert traceparent(text) == text
    assert recorded_trace(text) == (TRACE if recorded else "")


@pytest.mark.parametrize(
    "text",
    [
        "", "00-ab", f"00-{TRACE}-{PARENT}", f"00-{TRACE}-{PARENT}-01-more",
        f"01-{TRACE}-{PARENT}-01more", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01, 00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01\n",
        f"01-{TRACE}-{PARENT}-01-{'x' * 10_000}", "\u00fc" * 60_000,
    ],
)  # fmt: skip
def test_what_is_no_trace_context_is_left_out(text):
    assert traceparent(text) == recorded_trace(text) == ""
