"""The options of `python -m tests.faults`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.config.strategies import STRATEGIES
from tests.faults.rows import ALONE, CLUSTER, ROWS
from tests.support.numbers import numbers

ALL = list(STRATEGIES)
MINUTES = 42.0  # of rows; after so many no further one is begun
SECONDS = 120.0  # of random faults
SEEDS = list(range(1, 21))
RANDOM = ["pika", "redis", "ioloop"]
AT_ONCE = 5


def parse(description: str | None) -> argparse.Namespace:
    """Read the command line; what is left out has the value that goes with rows or seeds."""
    parser = argparse.ArgumentParser(prog="make faults", description=description)
    option = parser.add_argument
    option(
        "--rows",
        type=_rows,
        default=ALONE,
        metavar="1,3,12-15",
        help="those of one broker and one Redis; cluster: the others",
    )
    option("--strategies", type=_names, metavar="A,B", help="all; pika,redis,ioloop with --random")
    option("--resume", action="store_true", help="leave out what the file says holds")
    option("--json", type=Path, metavar="FILE", help="build/faults.json or random-faults.json")
    option("--logs", action="store_true", help="keep the logs of what holds, too")
    option(
        "--minutes",
        type=float,
        help=f"begin no further row after so many ({MINUTES:g}); with --random: of faults (2)",
    )
    seeds = parser.add_argument_group("random faults")
    option = seeds.add_argument
    option("--random", action="store_true", help="instead of the rows")
    option("--seeds", type=numbers, default=SEEDS, metavar="1,3,5-20", help="1-20")
    option("--seconds", type=float, help="of faults, in the place of --minutes")
    option("--at-once", type=int, default=AT_ONCE, metavar="N", help=f"lanes ({AT_ONCE})")
    options = parser.parse_args()
    if options.random and "blocking" in (options.strategies or []):
        parser.error("blocking answers one request at a time: it has no random faults")
    if options.at_once < 1:
        parser.error("--at-once: one or more")
    options.strategies = options.strategies or (RANDOM if options.random else ALL)
    name = "random-faults" if options.random else "faults"
    options.json = options.json or Path(f"build/{name}.json")
    if options.random:
        minutes = SECONDS / 60 if options.minutes is None else options.minutes
        options.seconds = 60 * minutes if options.seconds is None else options.seconds
        if options.seconds <= 0:
            parser.error("--minutes, --seconds: more than nothing")
    elif options.minutes is None:
        options.minutes = MINUTES
    return options


def _rows(text: str) -> list[int]:
    rows = CLUSTER if text == "cluster" else numbers(text)
    if unknown := [row for row in rows if row not in ROWS]:
        raise argparse.ArgumentTypeError(f"no such row: {unknown}")
    return rows


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in STRATEGIES]:
        raise argparse.ArgumentTypeError(f"no such strategy: {unknown}")
    return names
