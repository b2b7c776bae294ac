"""Whose word for a sender's address is believed, and how much of it is remembered."""

from __future__ import annotations

import pytest

from gateway.http import head
from gateway.http.head import Proxies


def test_what_senders_make_up_is_remembered_in_bounds():
    known = Proxies(["10.0.0.0/8"])
    for number in range(3 * head._REMEMBERED):
        made_up = f"{number}{'x' * 10_000}"
        assert known.sender("10.0.0.1", made_up) == made_up[: head._LONGEST]
    assert len(known._known) <= head._REMEMBERED
    assert max(map(len, known._known)) <= head._LONGEST


@pytest.mark.parametrize(
    ("forwarded", "sender"),
    [
        ("203.0.113.7:52344", "203.0.113.7"),
        ("203.0.113.7:52344, 10.0.0.2:80", "203.0.113.7"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:db8::1, 10.0.0.2", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("[::ffff:10.0.0.2]:80", "10.0.0.1"),  # a trusted proxy, too
        ("unknown", "unknown"),
        (":80", "10.0.0.1"),
        ("[", "10.0.0.1"),
        ("\x9b31m\x85!", r"'\x9b31m\x85!'"),  # what a terminal obeys is not to be in a log
    ],
)
def test_a_port_is_no_part_of_an_address(forwarded, sender):
    assert Proxies(["10.0.0.0/8"]).sender("10.0.0.1", forwarded) == sender
