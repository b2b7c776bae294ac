"""A clock that can be stepped, for one process and all that it starts."""

from __future__ import annotations

from pathlib import Path

from gateway.stack.programs import find_faketime


class Clock:
    """The wall clock of whoever is started with `env`; the monotonic clock goes on as ever.

    It begins with the true time. `file` is what the processes read it from.
    """

    def __init__(self, file: Path):
        self._file = file
        #: What a process that goes by this clock has in its environment.
        self.env = {
            "LD_PRELOAD": find_faketime(),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.step(0)

    def step(self, seconds: float) -> None:
        """Set the clock so many seconds before (below 0) or after the true time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+.3f}\n")
        new.replace(self._file)
