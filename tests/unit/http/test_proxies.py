"""Whose word for a sender's address is believed, and how much of it is remembered."""

from __future__ import annotations

from gateway.http import proxies
from gateway.http.proxies import Proxies


def test_what_senders_make_up_is_remembered_in_bounds():
    known = Proxies(["10.0.0.0/8"])
    for number in range(3 * proxies._REMEMBERED):
        made_up = f"{number}{'x' * 10_000}"
        assert known.sender("10.0.0.1", made_up) == made_up[: proxies._LONGEST]
    assert len(known._known) <= proxies._REMEMBERED
    assert max(map(len, known._known)) <= proxies._LONGEST
