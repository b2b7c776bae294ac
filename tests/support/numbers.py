"""Numbers on a command line."""

from __future__ import annotations


def numbers(text: str) -> list[int]:
    """Read numbers and ranges: ``1,3,5-7``.

    Raises ValueError for anything else.
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
