"""Pauses grow to the longest, vary, and begin anew."""

from __future__ import annotations

from gateway.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_are_shortened_by_up_to_a_half():
    pauses = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    for _ in range(100):
        backoff = Backoff(0.1, 1.0)
        assert all(most / 2 <= backoff.next() <= most for most in pauses)


def test_pauses_differ_between_processes():
    assert len({Backoff(1.0, 1.0).next() for _ in range(10)}) > 1


def test_after_a_success_pauses_are_short_again():
    backoff = Backoff(0.1, 1.0)
    for _ in range(10):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 0.1
