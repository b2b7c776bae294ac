"""What must hold whatever is combined with what: judged from what was told and what was done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.faults.combined.rules import RULES, Evidence, is_late
from tests.faults.combined.senders import GONE
from tests.faults.oracle import RECOVERY

#: The rules whose findings are figures, too.
_COUNTED = {
    "lost": "lost",
    "different answers": "different_answers",
    "second task ids": "second_ids",
    "late": "late",
    "500": "errors_500",
}


@dataclass
class Result:
    """What a seed has shown with a strategy.

    ``schedule`` is what was drawn, ``injected`` when each of it really began and ended.
    """

    seed: int
    strategy: str
    seconds: float  # of faults
    sent: int = 0  # deliveries
    tries: int = 0
    acknowledged: int = 0
    executed: int = 0
    lost: int = 0
    duplicated: int = 0
    second_ids: int = 0
    different_answers: int = 0
    late: int = 0
    errors_500: int = 0
    recovery: float = 0.0  # seconds after the last fault's end
    statuses: dict[str, int] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)
    schedule: list[str] = field(default_factory=list)
    injected: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.problems


def judge(result: Result, seen: Evidence) -> None:
    """Fill in `result`: its figures, and a line for each promise that was broken."""
    result.injected = [one.show(seen.began) for one in seen.injected]
    result.sent = len({one.delivery for one in seen.tries})
    result.tries = len(seen.tries)
    result.acknowledged = len({one.delivery for one in seen.tries if one.good})
    result.executed = len({one.id for one in seen.done})
    result.duplicated = len(seen.done) - len({one.task for one in seen.done})
    result.recovery = round(_recovery(seen), 2)
    result.statuses = dict(sorted(Counter(str(one.status) for one in seen.tries).items()))
    result.notes["machine_delay"] = max((one.delay for one in seen.tries), default=0.0)
    result.notes["late_but_excused"] = sum(is_late(one) for one in seen.tries)
    if not result.acknowledged:
        result.problems.append("nothing was acknowledged")
    if result.recovery > RECOVERY:
        result.problems.append(f"recovered only after {result.recovery} s")
    for what, rule in RULES.items():
        found = list(rule(seen))
        if what in _COUNTED:
            setattr(result, _COUNTED[what], len(found))
        if found:
            result.problems.append(f"{what}: {len(found)} ({'; '.join(found[:4])})")
    result.notes["late_but_excused"] -= result.late


def _recovery(seen: Evidence) -> float:
    """Return the seconds from the last fault's end to the last try that began and failed."""
    after = [one.at - seen.ended for one in seen.tries if not one.good and one.status != GONE]
    return max([0.0, *after])
