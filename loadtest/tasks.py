"""The tasks of the load test: what the worker does with each request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A task that answers with the body after `seconds`."""

    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Task:
        """Read ``echo`` or ``sleep:SECONDS``; raises ValueError."""
        if text == "echo":
            return cls()
        kind, _, seconds = text.partition(":")
        if kind != "sleep" or not 0 < float(seconds) <= 10:
            raise ValueError(text)
        return cls(float(seconds))

    @property
    def name(self) -> str:
        return "appserver.tasks.sleep" if self.seconds else "appserver.tasks.echo"

    @property
    def title(self) -> str:
        return f"{self.seconds * 1e3:g} ms" if self.seconds else "echo"

    @property
    def path(self) -> str:
        return f"/sleep?seconds={self.seconds:g}" if self.seconds else "/echo"

    @property
    def pool(self) -> tuple[str, int]:
        """The worker's pool and its size: one task at a time, or as many as may sleep at once."""
        return ("threads", 128) if self.seconds else ("solo", 1)

    def deadline(self, connections: int) -> float:
        """Return a deadline in seconds that even a strategy that works one by one can keep."""
        return 30 + 2 * connections * self.seconds
