"""``gateway deliveries replay``: say what is replayed, ask, and show how it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.cli import printed
from gateway.config.settings import Config
from gateway.errors import GatewayError
from gateway.journal.entry import OPEN, SUCCEEDED, Entry
from gateway.journal.filter import Filter
from gateway.journal.reading import reading
from gateway.journal.replay import outcomes, replaying
from gateway.journal.tries import choose
from gateway.outcome import SUCCESS


@dataclass(frozen=True)
class How:
    """The options of a replay: ``rate`` is a second, ``wait`` in seconds for the results.

    ``again``: also what may have run already, in an interrupted replay or in another try.
    """

    dry_run: bool
    unasked: bool
    again: bool
    rate: float | None
    wait: float


async def run(config: Config, wanted: Sequence[str] | Filter, how: How) -> int:
    """Replay the deliveries with these ids, or those that a filter takes; return the exit code."""
    async with reading(config) as reader:
        left, others = await choose(reader, wanted, how.again)
        named = not isinstance(wanted, Filter)
        for entry, other in others:
            text = "{} left out: {} is another try of the same delivery, {}; see --again"
            print(text.format(entry.id, other.id, other.state), file=sys.stderr)
        if twice := _twice(left):
            print(twice, file=sys.stderr)
        if how.dry_run:
            print(printed.HEAD)
            for entry in left:
                print(printed.line(entry))
            print(f"{len(left)} would be replayed", file=sys.stderr)
            return 0
        code = 1 if named and others else 0
        if not left:
            print("gateway: nothing to replay", file=sys.stderr)
            return code
        if not named and not how.unasked and not _agreed(len(left)):
            print("gateway: nothing was replayed", file=sys.stderr)
            return 1
        return await _publish(config, left, how) or code


def _twice(chosen: Sequence[Entry]) -> str:
    """Say how many of those have not failed; empty: none."""
    states = [entry.state for entry in chosen]
    succeeded = states.count(SUCCEEDED)
    unfinished = sum(state in OPEN for state in states)
    counts = [
        f"{number} {what}"
        for number, what in ((succeeded, "succeeded"), (unfinished, "may still run"))
        if number
    ]
    return f"of {len(states)} to replay, {' and '.join(counts)}" if counts else ""


def _agreed(number: int) -> bool:
    """Ask whether so many deliveries are to be replayed; without a terminal that takes --yes."""
    if not sys.stdin.isatty():
        raise GatewayError(f"{number} deliveries would be replayed: say --yes, or see --dry-run")
    return input(f"Replay {number} deliveries? [y/N] ").strip().lower() in ("y", "yes")


async def _publish(config: Config, chosen: Sequence[Entry], how: How) -> int:
    taken: dict[str, str] = {}
    well = True
    async with replaying(config) as replays:
        async for begun in replays.run_all(chosen, how.again, how.rate):
            delivery_id = begun.delivery_id
            if begun.problem:
                task = f": task {begun.task_id}" if begun.task_id else ""
                print(printed.shown(f"{delivery_id} {begun.problem}{task}"), flush=True)
                well = False
            else:
                print(f"{delivery_id} taken: task {begun.task_id}", flush=True)
                taken[begun.task_id] = delivery_id
        async for task_id, outcome in outcomes(config, list(taken), how.wait):
            delivery_id = taken.pop(task_id)
            await replays.settle(delivery_id, task_id, outcome)
            print(f"{delivery_id} {printed.outcome_text(outcome)}")
            well = well and outcome.state == SUCCESS
    for delivery_id in taken.values():
        print(f"{delivery_id} no result" + (f" in {how.wait:g} s" if config.results else ""))
    return 0 if well and not taken else 1
