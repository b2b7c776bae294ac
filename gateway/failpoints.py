"""Kill the process at a chosen step, for tests of the state that a crash leaves behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

#: The names of the steps, in the order in which a delivery reaches them.
CLAIMED, PUBLISHED, CONFIRMED = "claimed", "published", "confirmed"
#: And those of a late answer: its record is written, the fallback is given, the request is about to
#: be sent, the sender has answered it, that is written.
LATE = LATE_KEPT, LATE_GIVEN, LATE_BEGUN, LATE_SENT, LATE_ENDED = (
    "late-kept", "late-given", "late-begun", "late-sent", "late-ended",
)  # fmt: skip


class Failpoint:
    """Kills the process once at the step NAME, if the file at PATH exists.

    It is set by ``GATEWAY_FAILPOINT=NAME:PATH``; the file is removed first.
    """

    def __init__(self, setting: str = ""):
        self._name, _, path = setting.partition(":")
        self._path = Path(path)

    def reach(self, name: str) -> None:
        """Kill this process, as `kill -9` does, if it is set for the step `name`."""
        if name == self._name:
            try:
                self._path.unlink()
            except FileNotFoundError:
                return  # it was used already, perhaps by another process
            os.kill(os.getpid(), signal.SIGKILL)
