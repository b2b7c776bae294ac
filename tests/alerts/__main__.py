"""Break what a gateway needs, and compare the alerts that fire with those that have to.

Exit codes: 0 all rows are as they have to be; 1 some are not, or a program is missing; 2 an option
is wrong.
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import dataclass, field
from time import monotonic, sleep

from gateway.stack.server import StackError, poll
from tests.alerts.rows import ROWS, Row
from tests.alerts.site import Site
from tests.faults.report import markdown
from tests.support.numbers import numbers
from tests.support.stack import RabbitMQ, Stack

log = logging.getLogger("alerts")

FACTOR = 12.0
WELL = 5.0  # seconds without an alert before a fault
LONGEST = 120.0  # seconds until alerts have to fire, and until they have to be over
#: Minutes, unshortened, that a fault lasts at least: the longest time until an alert that rates
#: requests fires.
LASTS = 8.0


@dataclass
class Result:
    """Which alerts have fired in a row, after how many seconds, and when all were silent again."""

    row: Row
    fired: dict[str, float] = field(default_factory=dict)
    silent: float | None = None
    before: set[str] = field(default_factory=set)

    @property
    def holds(self) -> bool:
        allowed = self.row.fires | self.row.may
        expected = self.row.fires <= self.fired.keys() <= allowed
        return expected and not self.before and self.silent is not None

    def cells(self) -> tuple[str, ...]:
        def listed(names: set[str]) -> str:
            return ", ".join(f"{name} {self.fired[name]:.0f} s" for name in sorted(names))

        missing = ", ".join(sorted(self.row.fires - self.fired.keys()))
        return (
            self.row.title,
            listed(self.row.fires & self.fired.keys()),
            listed(self.row.may & self.fired.keys()),
            listed(self.fired.keys() - self.row.fires - self.row.may),
            ", ".join([*([missing] if missing else []), *sorted(self.before)]),
            "never" if self.silent is None else f"{self.silent:.0f} s",
            "" if self.holds else "wrong",
        )


HEAD = ("fault", "has to fire, after", "may fire", "fires wrongly", "missing", "silent after", "")


def run(row: Row, stack: Stack, broker: RabbitMQ, factor: float) -> Result:
    """Run a row; the alerts of a gateway that was well before count as wrong."""
    result = Result(row)
    with Site(stack, broker, row.config, factor) as site:
        sleep(WELL)
        result.before = site.prometheus.firing()
        began = monotonic()
        with row.fault(site):
            while True:
                for name in site.prometheus.firing():
                    result.fired.setdefault(name, monotonic() - began)
                lasted = monotonic() - began
                complete = row.fires <= result.fired.keys()
                if lasted > LONGEST or (complete and lasted > 60 * LASTS / factor):
                    break
                sleep(0.5)
        ended = monotonic()
        if poll(lambda: not site.prometheus.firing(), LONGEST):
            result.silent = monotonic() - ended
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="make alerts", description=__doc__)
    parser.add_argument("--rows", help="1,3,5-7: all", default=f"1-{len(ROWS)}", type=_rows)
    parser.add_argument("--factor", help=f"by which durations are divided ({FACTOR:g})", type=float)
    parser.set_defaults(factor=FACTOR)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        return int(not run_rows(options.rows, options.factor))
    except StackError as exc:
        log.error("%s", exc)
        return 1


def run_rows(rows: list[Row], factor: float) -> bool:
    """Run rows one after the other, and print them as a table; tell whether all of them hold."""
    began = monotonic()
    results = []
    with Stack() as stack:
        broker = stack.rabbitmq()
        for n, row in enumerate(rows, 1):
            minutes = (monotonic() - began) / 60
            log.info("%4.1f min  %d of %d: %s", minutes, n, len(rows), row.title)
            results.append(Result(row))
            try:
                results[-1] = run(row, stack, broker, factor)
                broker.recover()
                broker.wipe()
            except StackError as exc:  # it spoils the row and no other one
                log.error("          could not be run: %s", exc)
            log.info("          %s", " | ".join(results[-1].cells()[1:]))
    log.info("\n%s", markdown(HEAD, [result.cells() for result in results]))
    return all(result.holds for result in results)


def _rows(text: str) -> list[Row]:
    chosen = numbers(text)
    if unknown := [n for n in chosen if not 1 <= n <= len(ROWS)]:
        raise argparse.ArgumentTypeError(f"no such row: {unknown}; there are 1 to {len(ROWS)}")
    return [ROWS[n - 1] for n in chosen]


if __name__ == "__main__":
    sys.exit(main())
