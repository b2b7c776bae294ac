"""How many refused requests are kept, and how much of their bodies."""

from __future__ import annotations

import pytest

from gateway.journal import refusals
from gateway.journal.refusals import BODY, Allowance, _cut


def test_an_allowance_is_spent_and_comes_back():
    allowance = Allowance(2, pause=10.0)
    for has in (True, True, False):
        assert allowance.has(("a",), 100.0) is has
        if has:
            allowance.take(("a",))
    assert allowance.has(("b",), 100.0)
    assert not allowance.has(("a",), 109.0) and allowance.has(("a",), 110.5)
    assert allowance.has(("a",), 1_000.0)
    allowance.take(("a",))
    assert allowance.has(("a",), 1_000.0)


def test_only_so_many_addresses_are_remembered(monkeypatch):
    monkeypatch.setattr(refusals, "_MOST", 10)
    allowance = Allowance(2, pause=10.0)
    assert all(allowance.has((f"192.0.2.{number}",), 0.0) for number in range(100))
    assert len(allowance._buckets) <= 10


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b"short", b"short"),
        (b"\xff", b"\xff"),
        (b"x" * BODY, b"x" * BODY),
        (b"x" * BODY + b"y", b"x" * BODY),
        (b"x" + "ü".encode() * BODY, b"x" + "ü".encode() * (BODY // 2 - 1)),
        (b"\xff" * BODY * 2, b"\xff" * BODY),
    ],
)
def test_a_body_is_cut_between_characters(body, kept):
    assert _cut(body) == kept
