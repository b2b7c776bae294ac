"""Say which claims of the original investigations hold, by this run's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEAD = ["claim", "verdict", "shown by"]
CONFIRMED, REFUTED, UNMEASURED = "confirmed", "refuted", "not measured"


@dataclass(frozen=True)
class Claim:
    """What was said, whether it `holds`, and the rows that show it.

    None: what would show it was not measured.
    """

    text: str
    holds: bool | None = None
    shown: str = ""

    @property
    def verdict(self) -> str:
        return {None: UNMEASURED, True: CONFIRMED, False: REFUTED}[self.holds]

    def line(self) -> list[str]:
        """Return the texts of the columns `HEAD`."""
        return [self.text, self.verdict, self.shown]


def lines(claims: Sequence[Claim]) -> list[list[str]]:
    """Return a table's head and lines."""
    return [HEAD, *(claim.line() for claim in claims)]
