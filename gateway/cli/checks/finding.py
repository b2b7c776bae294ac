"""What a check finds: what was looked at, what is wrong with it, and the remedy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

OK, WARN, FAIL, SKIPPED = "ok", "warn", "fail", "skipped"
_WORDS = {OK: "ok", WARN: "warn", FAIL: "FAIL", SKIPPED: "skip"}
_FEW = 3  # names that a line lists

#: Seconds that a server has to answer all. Checks begin at once, about a second after the command.
LIMIT = 3.2


@dataclass(slots=True, frozen=True)
class Finding:
    """One line of `gateway check`, and one object of its JSON.

    ``problem`` says of what was skipped why; ``detail`` says more of what is well.
    """

    check: str
    status: str
    problem: str = ""
    remedy: str = ""
    detail: str = ""

    def __str__(self) -> str:
        text = "; ".join(filter(None, (self.problem, self.remedy))) or self.detail
        line = f"{_WORDS[self.status]:<5} {self.check}{': ' + text if text else ''}"
        # Names come from servers and workers, and a line is one line.
        return "".join(each if each.isprintable() else "?" for each in line)


def ok(check: str, detail: str = "") -> Finding:
    """Return that all is well."""
    return Finding(check, OK, detail=detail)


def warn(check: str, problem: str, remedy: str) -> Finding:
    """Return what works, and should be otherwise."""
    return Finding(check, WARN, problem, remedy)


def fail(check: str, problem: str, remedy: str) -> Finding:
    """Return what does not work."""
    return Finding(check, FAIL, problem, remedy)


def skipped(check: str, why: str, remedy: str = "") -> Finding:
    """Return what was not looked at, and why."""
    return Finding(check, SKIPPED, why, remedy)


def listed(names: Collection[str]) -> str:
    """Return the first few of `names`, and how many more there are."""
    more = len(names) - _FEW
    return ", ".join(islice(names, _FEW)) + (f" and {more} more" if more > 0 else "")


def counted(number: int, noun: str) -> str:
    """Return `number` and the noun, in the plural where that is needed."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
