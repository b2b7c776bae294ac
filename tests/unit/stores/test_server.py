"""What servers like Redis tell of themselves; each leaves out other things."""

from __future__ import annotations

import pytest

from gateway.claims.idempotency import share_used


@pytest.mark.parametrize(
    ("memory", "share"),
    [
        (b"# Memory\r\nused_memory:25\r\nmaxmemory:100\r\ntotal_system_memory:1000\r\n", 0.25),
        (b"used_memory:25\r\nmaxmemory:0\r\ntotal_system_memory:1000\r\n", 0.025),
        (b"used_memory:25\r\ntotal_system_memory:1000\r\n", 0.025),
        (b"used_memory:25\r\nmaxmemory:-1\r\n", 0.0),
        (b"used_memory:25\r\nmaxmemory:unlimited\r\ntotal_system_memory:\xb2\r\n", 0.0),
        (b"maxmemory:100\r\n", 0.0),
        ("used_memory:25\r\nmaxmemory:100", 0.25),
        ([], 0.0),
    ],
)
def test_the_share_of_memory_is_told_or_is_0(memory, share):
    assert share_used(memory) == share
