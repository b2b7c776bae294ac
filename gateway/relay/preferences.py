"""Read the Prefer header of a request: https://www.rfc-editor.org/rfc/rfc7240"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LENGTH = 1_000  # characters

_wait = re.compile(r'wait\s*=\s*"?([0-9]{1,5})"?').fullmatch
# The parts between commas; a comma in a quoted string does not separate.
_parts = re.compile(r'(?:"(?:\\.|[^"\\])*+"?|[^,"])+').findall


@dataclass(slots=True, frozen=True)
class Preference:
    """What a sender prefers.

    ``answer`` is the mode that it asks for, ``wait`` is in seconds; ``applied`` is the answer's
    Preference-Applied.
    """

    answer: str
    wait: float | None
    applied: str


def read(header: str) -> Preference | None:
    """Return the preference in a Prefer header; None where it has none that is known.

    An unknown or malformed preference is ignored, as the RFC demands, and so is a header that is
    too long.
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
