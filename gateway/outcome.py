"""How a task ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SUCCESS, FAILURE, REVOKED = "SUCCESS", "FAILURE", "REVOKED"
#: The final states; STARTED, RETRY and custom states are ignored.
FINAL = frozenset((SUCCESS, FAILURE, REVOKED))


@dataclass(slots=True)
class Outcome:
    """A task's final state.

    ``value`` is what the task returned (SUCCESS); ``error`` names the exception's type
    (FAILURE, REVOKED) or, on SUCCESS, says why the result cannot be read. ``detail`` is the
    exception's text, which is for the operator and not for the sender. ``attempts`` is
    Celery's retries and one, without redeliveries of a lost worker's message; 0: not known.
    """

    state: str
    value: Any = None
    error: str | None = None
    detail: str = ""
    attempts: int = 0
