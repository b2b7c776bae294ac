"""How much of the bodies of refused requests is kept."""

from __future__ import annotations

import pytest

from gateway.journal.refusals import BODY, _cut


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
