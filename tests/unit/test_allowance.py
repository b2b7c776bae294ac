"""How many of something are allowed at once, and later."""

from __future__ import annotations

from gateway import allowance as module
from gateway.allowance import Allowance


def test_an_allowance_is_spent_and_comes_back():
    allowance = Allowance(2, pause=10.0)
    for has in (True, True, False):
        assert (not allowance.wait(("a",), 100.0)) is has
        if has:
            allowance.take(("a",))
    assert not allowance.wait(("b",), 100.0)
    assert 0.9 < allowance.wait(("a",), 109.0) < 1.1 and not allowance.wait(("a",), 110.5)
    assert not allowance.wait(("a",), 1_000.0)
    allowance.take(("a",))
    assert not allowance.wait(("a",), 1_000.0)


def test_only_so_many_addresses_are_remembered(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 10)
    allowance = Allowance(2, pause=10.0)
    assert not any(allowance.wait((f"192.0.2.{number}",), 0.0) for number in range(100))
    assert len(allowance._buckets) <= 10
