"""A place where a process kills itself, for tests of what a crash leaves behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

#: In the order in which a delivery reaches them.
CLAIMED, PUBLISHED, CONFIRMED = "claimed", "published", "confirmed"


class Failpoint:
    """Armed by ``GATEWAY_FAILPOINT=NAME:PATH``; goes off once, while the file at PATH exists."""

    def __init__(self, setting: str = ""):
        self._name, _, path = setting.partition(":")
        self._path = Path(path)

    def reach(self, name: str) -> None:
        """Kill this process, as `kill -9` does, if it is armed for `name`."""
        if name == self._name:
            try:
                self._path.unlink()
            except FileNotFoundError:
                return  # it has gone off, perhaps in another process
            os.kill(os.getpid(), signal.SIGKILL)
