"""Say what is running and how long the rest will take."""

from __future__ import annotations

import time


class Progress:
    """Prints a line for each step; the remaining time is corrected by what steps really take.

    `seconds` is what all steps together are expected to take.
    """

    def __init__(self, seconds: float):
        self._expected = seconds
        self._passed = 0.0
        self._start = time.monotonic()

    def step(self, text: str, seconds: float) -> None:
        """Announce a step that is expected to take `seconds`."""
        elapsed = time.monotonic() - self._start
        # After a few steps, the plan's own error is known.
        pace = elapsed / self._passed if self._passed > 10 else 1
        left = (self._expected - self._passed) * pace
        self._passed += seconds
        print(f"{_clock(elapsed)}  {text} (about {_clock(left)} left)", flush=True)

    def note(self, text: str) -> None:
        """Print a result of the current step."""
        print(f"       {text}", flush=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:2}:{int(seconds) % 60:02}"
