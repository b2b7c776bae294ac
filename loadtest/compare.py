"""Compare two reports of one experiment: ``loadtest/run.sh compare OLD.json NEW.json``.

A difference has to be greater than the noise, which is the spread of the repeats of both runs:
`differs` has the rule. Exit codes: 0 nothing got worse; 1 something did, or the new run failed;
2 the two cannot be compared; 3 other programs have disturbed one of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from loadtest import table
from loadtest.report import MOST_OTHERS, Report
from loadtest.summary import Summary, summarize
from loadtest.table import PROCESSES
from loadtest.targets import number

NAME = "compare"
#: Repeats of each measurement, of which there has to be a spread.
LEAST_REPEATS = 3
#: A smaller difference never counts, in per cent of the old figure: two starts of the same program
#: differ by as much.
LEAST_PERCENT = 3
#: Options that may differ.
FREE = {"repeats"}
#: With fewer repeats a spread is often too small by chance, and has to be exceeded twice. Of two
#: runs of the same program, this rule calls less than 1 figure of 100 different.
ENOUGH_REPEATS = 5
RULE = (
    "A difference counts if the repeats of both runs do not overlap, and if the medians differ by "
    "more than the greater of both spreads (greatest - least; twice that with fewer than "
    f"{ENOUGH_REPEATS} repeats), by more than {LEAST_PERCENT} %, and by more than can be measured "
    "(CPU: 5 us, memory: 1 MB, latency: 0.1 ms)."
)
SAME = "no difference beyond the noise"

_SPEED = ("faster", "slower")


@dataclass(frozen=True)
class Figure:
    """What is compared: where a row has it, the words for better and worse, what is better, and
    the least difference that counts, in the figure's unit."""

    name: str
    path: tuple[str, ...]
    words: tuple[str, str] = ("better", "worse")
    more_is_better: bool = False
    least: float = 0.0


FIGURES = [
    Figure("req/s", ("rps",), _SPEED, more_is_better=True),
    *(Figure(f"{p} ms", ("latency_ms", p), _SPEED, least=0.1) for p in ("p50", "p99")),
    *(
        Figure(f"{name} us", ("cpu_us_per_request", name), ("less CPU", "more CPU"), least=5)
        for name in PROCESSES
    ),
    *(
        Figure(f"{name} MB", ("rss_mb", name), ("less memory", "more memory"), least=1)
        for name in PROCESSES
    ),
    *(
        Figure(name, ("connections_open", part), ("fewer connections", "more connections"))
        for name, part in (("AMQP", "broker"), ("Redis", "redis"))
    ),
]


@dataclass(frozen=True)
class Difference:
    """A figure in both runs. `worse` is None where they differ by no more than the noise."""

    strategy: str
    case: str
    figure: Figure
    old: Sequence[float]
    new: Sequence[float]

    @property
    def worse(self) -> bool | None:
        if not differs(self.old, self.new, self.figure.least):
            return None
        return (median(self.new) > median(self.old)) is not self.figure.more_is_better

    @property
    def verdict(self) -> str:
        worse = self.worse
        return SAME if worse is None else self.figure.words[worse]

    def line(self) -> list[str]:
        old, new = median(self.old), median(self.new)
        change = f"{(new - old) / old:+.0%}" if old else "-"
        spreads = [f"{number(median(v))} ({number(min(v))}-{number(max(v))})" for v in self.values]
        return [self.strategy, self.case, self.figure.name, *spreads, change, self.verdict]

    @property
    def values(self) -> tuple[Sequence[float], Sequence[float]]:
        return self.old, self.new


HEAD = ["strategy", "case", "figure", "old", "new", "change", "verdict"]


class NotComparable(Exception):
    """Says why two reports cannot be compared; `code` is the exit code."""

    def __init__(self, why: str, code: int = 2):
        super().__init__(why)
        self.code = code


def differs(old: Sequence[float], new: Sequence[float], least: float = 0.0) -> bool:
    """Do the repeats of two runs differ by more than the noise? `RULE` says when."""
    if max(old) >= min(new) and max(new) >= min(old):
        return False
    apart = abs(median(new) - median(old))
    noise = max(max(old) - min(old), max(new) - min(new))
    if min(len(old), len(new)) < ENOUGH_REPEATS:
        noise *= 2
    return apart > max(noise, least, abs(median(old)) * LEAST_PERCENT / 100)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Return all figures that both reports have; raises NotComparable where that means nothing."""
    for which, document in (("old", old), ("new", new)):
        _see_that_it_can_be_used(which, document)
    _see_that_they_are_alike(old, new)
    figures = [*FIGURES, *_charted(new)]
    before = {(s.strategy, s.case): s for s in summarize(old["rows"])}
    pairs = [
        (before[key], s) for s in summarize(new["rows"]) if (key := (s.strategy, s.case)) in before
    ]
    if not pairs:
        raise NotComparable("they have no measurement in common")
    return [
        *(difference for pair in pairs for difference in _of(*pair, figures)),
        *_of_targets(old, new),
    ]


def main(argv: Sequence[str]) -> int:
    """Print the differences; returns the exit code."""
    options = _parser().parse_args(argv)
    old, new = options.old, options.new
    try:
        found = differences(old, new)
    except NotComparable as exc:
        print(f"loadtest: not compared: {exc}", file=sys.stderr)
        return exc.code
    Console(width=1_000, highlight=False, markup=False, emoji=False).print(
        table.draw([HEAD, *_lines(found, options.all)], names=3)
    )
    for text in _notes(old, new):
        print(text)
    worse = [difference for difference in found if difference.worse]
    better = [difference for difference in found if difference.worse is False]
    rest = len(found) - len(worse) - len(better)
    print(f"{RULE}\n{len(worse)} worse, {len(better)} better, {rest} of {len(found)}: {SAME}")
    if problems := new["problems"]:
        print(f"loadtest: the new run failed: {'; '.join(problems)}", file=sys.stderr)
    return 1 if worse or problems else 0


def _lines(found: Sequence[Difference], everything: bool) -> Iterator[list[str]]:
    """Yield what differs, and one line for each measurement of which nothing does."""
    for key in dict.fromkeys((d.strategy, d.case) for d in found):
        those = [d for d in found if (d.strategy, d.case) == key]
        shown = those if everything else [d for d in those if d.worse is not None]
        yield from (difference.line() for difference in shown)
        if not shown:
            yield [*key, f"{len(those)} figures", "", "", "", SAME]


def _notes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    yield f"old: commit {old['commit']}; new: commit {new['commit']}"
    before, after = old["versions"], new["versions"]
    if changed := [n for n in after if n in before and before[n] != after[n]]:
        yield "versions: " + ", ".join(f"{n} {before[n]} -> {after[n]}" for n in changed)
    keys = [{(s.strategy, s.case) for s in summarize(each["rows"])} for each in (old, new)]
    for which, only in (("old", keys[0] - keys[1]), ("new", keys[1] - keys[0])):
        if only:
            yield f"only in the {which} run: {'; '.join(sorted(map(', '.join, only)))}"


def _see_that_it_can_be_used(which: str, document: Mapping[str, Any]) -> None:
    if which == "old" and document["problems"]:
        raise NotComparable(f"the old run failed: {'; '.join(document['problems'])}")
    if not document["rows"]:
        why = "; ".join(document["problems"]) or "it has no measurement"
        raise NotComparable(f"the {which} run: {why}", 1 if document["problems"] else 2)
    report = Report(
        document["experiment"],
        rows=document["rows"],
        most_others=document.get("most_others", MOST_OTHERS),
    )
    if disturbance := report.disturbance():
        raise NotComparable(f"the {which} run: {disturbance}", 3)
    repeats = document["options"]["repeats"]
    if repeats < LEAST_REPEATS:
        raise NotComparable(
            f"the {which} run has {repeats} repeats, whose spread says nothing of the noise: "
            f"measure again with --repeats {LEAST_REPEATS} or more"
        )


def _see_that_they_are_alike(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if old["experiment"] != new["experiment"]:
        raise NotComparable(
            f"the old one is of {old['experiment']}, the new one of {new['experiment']}"
        )
    for what in ("machine", "options"):
        before, after = old[what], new[what]
        names = [n for n in {**before, **after} if n not in FREE or what == "machine"]
        if other := [n for n in names if before.get(n) != after.get(n)]:
            listed = "; ".join(f"{n}: {before.get(n)} / {after.get(n)}" for n in other)
            raise NotComparable(f"their {what} differ (old / new): {listed}")


def _charted(document: Mapping[str, Any]) -> list[Figure]:
    """Return the figures that an experiment draws and `FIGURES` lacks."""
    known = {figure.path for figure in FIGURES}
    return [
        Figure(title, tuple(path), more_is_better=better.startswith(("longer", "higher")))
        for title, better, path in document["shown"].get("charts", [])
        if tuple(path) not in known
    ]


def _of(old: Summary, new: Summary, figures: Sequence[Figure]) -> Iterator[Difference]:
    for figure in figures:
        before, after = old.values(*figure.path), new.values(*figure.path)
        if before and after and any([*before, *after]):
            yield Difference(new.strategy, new.case, figure, before, after)


def _of_targets(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the judged figures: ratios of two measurements of one round are the steadiest."""
    before = {target["name"]: target["values"] for target in old["targets"]}
    for target in new["targets"]:
        if target["name"] in before and target["reached"] is not None:
            figure = Figure(target["name"], (), more_is_better=target["at_least"] is not None)
            yield Difference("targets", "", figure, before[target["name"]], target["values"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"loadtest/run.sh {NAME}",
        description="Say what is better and what is worse in the new one of two reports of the "
        "same experiment, machine and options.",
        epilog=f"{RULE} Exit codes: 0 nothing got worse; 1 something did, or the new run failed; "
        "2 the two cannot be compared; 3 other programs have disturbed one of them.",
    )
    for name in ("old", "new"):
        parser.add_argument(name, type=_document, metavar=f"{name.upper()}.json")
    parser.add_argument("--all", action="store_true", help="show the figures without difference")
    return parser


def _document(path: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
        missing = {
            "experiment", "machine", "options", "rows", "problems", "targets", "shown", "versions",
            "commit",
        } - document.keys()  # fmt: skip
    except OSError as exc:
        raise argparse.ArgumentTypeError(f"{path}: {exc.strerror}") from None
    except (ValueError, AttributeError):
        raise argparse.ArgumentTypeError(f"{path}: not a report of loadtest/run.sh") from None
    if missing:
        listed = ", ".join(sorted(missing))
        raise argparse.ArgumentTypeError(f"{path}: not a report of loadtest/run.sh: no {listed}")
    return document
