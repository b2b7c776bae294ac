"""Which of the senders' trace contexts are valid."""

from __future__ import annotations

import pytest

from gateway.delivery import traceparent_of

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def traceparent(text: str) -> str:
    return traceparent_of({"traceparent": text})


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00", f"fe-{TRACE}-{PARENT}-01",
        f"01-{TRACE}-{PARENT}-01-of.another-version",
    ],
)  # fmt: skip
def test_a_trace_context_is_told(text):
    assert traceparent(text) == text


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
    assert traceparent(text) == ""
