"""Say what is running and how long the rest will take."""

from __future__ import annotations

from datetime import timedelta
from math import inf

from rich import progress
from rich.console import Console
from rich.text import Text


class Progress(progress.Progress):
    """Prints a line for each step; a terminal has a bar below, while this context is entered.

    `seconds` is what all steps together are expected to take; what is left of that is corrected by
    what the steps really take.
    """

    def __init__(self, seconds: float):
        console = Console(highlight=False, markup=False, emoji=False)
        super().__init__(
            progress.BarColumn(),
            progress.TimeElapsedColumn(),
            "passed, about",
            _Left(),
            "left",
            console=console,
            transient=True,
            disable=not console.is_interactive,
            # Seldom, as a client may be sending from this process, to the millisecond.
            refresh_per_second=0.5,
            speed_estimate_period=inf,
        )
        self._task = self.add_task("", total=seconds, ends=seconds)
        self._planned = 0.0

    def step(self, text: str, seconds: float) -> None:
        """Announce a step that is expected to take `seconds`."""
        self.update(self._task, completed=self._planned)
        self._planned += seconds
        (task,) = self.tasks
        elapsed, left = task.elapsed or 0.0, task.time_remaining or task.remaining or 0.0
        self.update(self._task, ends=elapsed + left, refresh=True)
        print(f"{_clock(elapsed)}  {text} (about {_clock(left)} left)", flush=True)

    def note(self, text: str) -> None:
        """Print a result of the current step."""
        print(f"         {text}", flush=True)


class _Left(progress.ProgressColumn):
    """What is left of the time, which passes within a step, too."""

    def render(self, task: progress.Task) -> Text:
        return Text(_clock(max(0.0, task.fields["ends"] - (task.elapsed or 0.0))))


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
