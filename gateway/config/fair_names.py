"""The names of fair queues, which gateways publish to.

Workers consume them: `appserver.fair` has the same names and bounds, and a test compares both. It
is not imported here, as an app may have a module of that name.
"""

from __future__ import annotations

FEWEST, MOST = 4, 128  # fair queues of one name
_FAIR = ".fair."


def fair_names(queue: str, number: int) -> list[str]:
    """Return the names of the `number` fair queues of `queue`.

    With 0 it is `queue` alone: it is one of a route's `queues`, or it is not fair.
    """
    return [f"{queue}{_FAIR}{n}" for n in range(number)] or [queue]


def fair_name_of(queue: str) -> str:
    """Return the name of which `queue` is a fair queue; its own where it is none."""
    return queue.partition(_FAIR)[0]
