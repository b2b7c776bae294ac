"""A finding of a check: what was checked, what is wrong with it, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice

OK, WARN, FAIL, SKIPPED = "ok", "warn", "fail", "skipped"
_WORDS = {OK: "ok", WARN: "warn", FAIL: "FAIL", SKIPPED: "skip"}
_FEW = 3  # the most names that a line lists
_numbered = re.compile(r"(.*?)(\d+)", re.DOTALL).fullmatch

#: Seconds for all answers of a server. All checks begin at the same time, about a second after the
#: command.
LIMIT = 3.2


@dataclass(slots=True, frozen=True)
class Finding:
    """One line of `gateway check`, and one object of its JSON.

    Where a check was skipped, ``problem`` is the reason; ``detail`` is for checks that are ok.
    """

    check: str
    status: str
    problem: str = ""
    remedy: str = ""
    detail: str = ""

    def __str__(self) -> str:
        text = "; ".join(filter(None, (self.problem, self.remedy))) or self.detail
        line = f"{_WORDS[self.status]:<5} {self.check}{': ' + text if text else ''}"
        # Names from servers and workers may contain line breaks, and a finding is one line.
        return "".join(each if each.isprintable() else "?" for each in line)


def ok(check: str, detail: str = "") -> Finding:
    """Return a finding that there is no problem."""
    return Finding(check, OK, detail=detail)


def warn(check: str, problem: str, remedy: str) -> Finding:
    """Return a finding about something that works, and should be changed."""
    return Finding(check, WARN, problem, remedy)


def fail(check: str, problem: str, remedy: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(check, FAIL, problem, remedy)


def skipped(check: str, why: str, remedy: str = "") -> Finding:
    """Return a finding about a check that was not made, with the reason."""
    return Finding(check, SKIPPED, why, remedy)


def listed(names: Collection[str]) -> str:
    """Return a text with the first few of `names` and the number of the others."""
    more = len(names) - _FEW
    return ", ".join(islice(names, _FEW)) + (f" and {more} more" if more > 0 else "")


def ranged(names: Iterable[str]) -> str:
    """Return a text with `names`; a range stands for those that end with successive numbers."""
    runs: list[list[str]] = []
    last = ("", -1)
    for stem, number, name in sorted((*_parts(name), name) for name in names):
        if runs and number > 0 and last == (stem, number - 1):
            runs[-1].append(name)
        else:
            runs.append([name])
        last = (stem, number)
    return listed([run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs])


def _parts(name: str) -> tuple[str, int]:
    found = _numbered(name)
    return (found[1], int(found[2])) if found else (name, -1)


def counted(number: int, noun: str) -> str:
    """Return a text with `number` and the noun in singular or plural."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
