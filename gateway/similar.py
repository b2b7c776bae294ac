"""Find the name that somebody probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

_words = re.compile(r"[^\W_]+").findall
_ALIKE = 0.65  # of 0 to 1, of `SequenceMatcher`
_LONGEST = 200  # characters that are compared: many more would take seconds


def similar(given: str, known: Iterable[str]) -> str:
    """Return the name in `known` that is most similar to `given`; empty: none is.

    Words that two names have in common at the beginning or at the end do not count: `shop.refund`
    is not meant by `shop.charge`. A name with words missing at its end is similar.
    """
    likeness = {name: _likeness(given[:_LONGEST], name) for name in known}
    best = max(likeness, key=lambda name: likeness[name], default="")
    return best if likeness.get(best, 0) >= _ALIKE else ""


def meant(given: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint: the name in `known` that is similar to `given`, else `otherwise`, or all."""
    near = similar(given, known) if isinstance(given, str) else ""
    return f"did you mean {near}?" if near else otherwise or f"there are {', '.join(known)}"


def _likeness(one: str, other: str) -> float:
    whole = SequenceMatcher(None, one, other).ratio()
    mine, theirs = _words(one.lower()), _words(other.lower())
    while mine and theirs and mine[0] == theirs[0]:
        del mine[0], theirs[0]
    while mine and theirs and mine[-1] == theirs[-1]:
        del mine[-1], theirs[-1]
    if not mine or not theirs:
        return whole
    return min(whole, SequenceMatcher(None, " ".join(mine), " ".join(theirs)).ratio())
