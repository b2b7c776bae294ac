"""What a sender prefers: https://www.rfc-editor.org/rfc/rfc7240"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LENGTH = 1_000  # characters

_wait = re.compile(r'wait\s*=\s*"?([0-9]{1,5})"?').fullmatch
# What stands between commas, those in quoted strings left alone.
_parts = re.compile(r'(?:"(?:\\.|[^"\\])*"|[^,"])+').findall


@dataclass(slots=True, frozen=True)
class Preference:
    """``answer`` is the mode asked for, ``wait`` the seconds; ``applied`` is the answer's
    Preference-Applied."""

    answer: str
    wait: float | None
    applied: str


@dataclass(slots=True, frozen=True)
class Terms:
    """How a request is answered, by its route and what its sender prefers.

    ``deadline`` is monotonic seconds, ``applied`` the answer's Preference-Applied.
    """

    answer: str
    deadline: float
    applied: str = ""


def read(header: str) -> Preference | None:
    """Return what a Prefer header asks for; None where nothing that is known.

    What cannot be understood is ignored, as the RFC demands, and so is what is too long.
    """
    if len(header) > MAX_LENGTH:
        return None
    wait, respond_async = None, False
    for part in _parts(header):
        part = part.split(";")[0].strip().lower()
        if part == "respond-async":
            respond_async = True
        elif (found := _wait(part)) and wait is None:
            wait = int(found[1])
    if wait:
        return Preference("wait-then-accept", float(wait), f"wait={wait}")
    if respond_async or wait == 0:
        return Preference("accept", None, "respond-async" if respond_async else "wait=0")
    return None
