"""Which faults a seed stands for: what happens to which server, when, and for how long."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

CONNECTIONS, ALARM = "connections closed", "memory alarm"
CLIENTS, SUBSCRIBERS = "clients cut", "subscribers cut"
KILLED, FROZEN, CHILD, RELOADED = "killed", "frozen", "child killed", "reloaded"

AT_ONCE = (0.0, 0.0)
#: What may happen to each kind of server, and for how many seconds: the least and the most.
#: A server that is killed is started again after so many.
KINDS = {
    "broker": {KILLED: (0.0, 4.0), FROZEN: (1.0, 9.0), CONNECTIONS: AT_ONCE, ALARM: (1.0, 8.0)},
    "redis": {KILLED: (0.0, 4.0), FROZEN: (1.0, 9.0), CLIENTS: AT_ONCE, SUBSCRIBERS: AT_ONCE},
    "worker": {KILLED: (0.0, 4.0), FROZEN: (1.0, 9.0), CHILD: AT_ONCE},
    "gateway": {KILLED: (0.0, 4.0), FROZEN: (1.0, 9.0), CHILD: AT_ONCE, RELOADED: AT_ONCE},
}
#: The servers, and how often each is drawn beside the others.
TARGETS = {"broker": 2, "redis": 2, "worker-1": 1, "worker-2": 1, "gateway-1": 1, "gateway-2": 1}
MOST = 3  # faults at once
SPREAD = 2.0  # seconds within which those that belong together begin; more if the first lasts
PAUSE = 4.0  # seconds without a fault, at most


@dataclass(frozen=True)
class Fault:
    """What happens to a server; `at` and `length` are seconds, `at` from the first fault's."""

    at: float
    target: str
    kind: str
    length: float

    @property
    def end(self) -> float:
        return self.at + self.length

    def __str__(self) -> str:
        return f"{self.target} {self.kind}" + (f" for {self.length:.1f} s" if self.length else "")

    @property
    def line(self) -> str:
        """The fault with its time."""
        return f"{self.at:6.1f} s  {self}"


def schedule(seed: int, seconds: float) -> list[Fault]:
    """Draw the faults of `seconds` from `seed` and from nothing else, in order of time.

    No server suffers two at the same time.
    """
    rng = random.Random(seed)
    faults: list[Fault] = []
    at = 0.0
    while at < seconds:
        group = [
            replace(fault, length=round(min(fault.length, seconds - fault.at), 1))
            for fault in _group(rng, at)
            if fault.at < seconds
        ]
        faults += group
        at = round(max(fault.end for fault in group) + rng.uniform(0, PAUSE), 1)
    return sorted(faults, key=lambda fault: fault.at)


def _group(rng: random.Random, at: float) -> list[Fault]:
    """Draw one to three faults of different servers, the first of them now."""
    # Who is drawn twice suffers once.
    drawn = rng.choices(list(TARGETS), list(TARGETS.values()), k=rng.randint(1, MOST + 1))
    target, *others = list(dict.fromkeys(drawn))[:MOST]
    first = _fault(rng, at, target)
    span = max(SPREAD, first.length)
    return [first, *(_fault(rng, at + rng.uniform(0, span), other) for other in others)]


def _fault(rng: random.Random, at: float, target: str) -> Fault:
    kinds = KINDS[target.partition("-")[0]]
    kind = rng.choice(list(kinds))
    return Fault(round(at, 1), target, kind, round(rng.uniform(*kinds[kind]), 1))
