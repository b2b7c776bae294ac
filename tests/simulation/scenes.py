"""Scenes: orders of events that chance seldom makes; some seeds have one, again and again.

A scene is the steps at which something happens to whoever reaches them, one after the other, and
how the senders are. What happens is in `faults.at_step`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, takewhile

#: Steps of a claim: its first try has it, its confirm is sent to Redis, another try has taken it
#: over, a try has it after a failure. All steps of a scene are those of one claim.
CLAIMED, CONFIRMING = "claimed", "confirming"
TAKEN_OVER, CLAIMED_AGAIN = "taken over", "claimed again"
#: Steps of a worker: a failure is stored that nobody waits for, a result is about to be stored for
#: which a sender still waits though it is not looked for any more.
FAILED, RESULT = "failed", "result"
SHARE = 1 / 12  # of the seeds that have faults
BEGIN, END = 3.0, 56.0  # seconds from the beginning of the faults


@dataclass(frozen=True)
class Scene:
    """A scene, which is played every so many seconds."""

    steps: tuple[str, ...] = ()
    every: float = 12.0
    patience: float = 0.0  # seconds that senders wait; 0: beyond the deadline
    quick: float = 0.97  # the share of tasks that take less than a second
    longest: float = 12.0  # seconds that a task takes, at most
    failing: float = 0.1  # the share of deliveries whose tasks may fail


NONE = Scene()
LONG = Scene(patience=3.0, quick=0.85, longest=45.0)
SCENES = (
    # A process renews a lease that another has taken over.
    Scene((CLAIMED, TAKEN_OVER), patience=4.0),
    # A confirm is written when its task has failed, and the process that has the next one has died.
    Scene((CONFIRMING, CLAIMED_AGAIN), patience=4.0, failing=1.0),
    # A message whose task has failed comes again and succeeds while another try has another task.
    Scene((FAILED,), every=6.0, patience=0.4, quick=0.7, failing=1.0),
    # A result is published while nobody is subscribed.
    Scene((RESULT,), every=4.0, quick=0.5),
)


def times(scene: Scene) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Yield when a scene begins, and its steps; the last time nothing begins."""
    if scene.steps:
        yield from ((at, scene.steps) for at in takewhile(END.__gt__, count(BEGIN, scene.every)))
        yield END, ()


class Stage:
    """Says who has reached the next step of a scene."""

    def __init__(self) -> None:
        self._left: list[str] = []
        self._key = b""

    def begin(self, steps: tuple[str, ...]) -> None:
        self._left, self._key = list(steps), b""

    def reached(self, step: str, key: bytes = b"") -> bool:
        """Tell whether it is the next step, of the same claim as those before."""
        if self._left[:1] != [step] or self._key not in (b"", key):
            return False
        del self._left[0]
        self._key = key
        return True
