"""Run the fault matrix, or some of its rows; with --random, random faults.

Exit codes: 0 everything holds; 1 a promise is broken, or a row could not be run; 2 an option is
wrong; 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from time import monotonic

from amqp.exceptions import AMQPError
from redis.exceptions import RedisError

from gateway.errors import GatewayError
from tests.faults import options, seeds
from tests.faults.oracle import Result, RowResult
from tests.faults.report import Report, line, table
from tests.faults.rows import ALONE, ROWS
from tests.faults.servers import Servers
from tests.faults.trial import Row, run
from tests.support.stack import Stack

log = logging.getLogger("faults")

#: What breaking things may raise, and checking them: it spoils the row and no other one.
ERRORS = (GatewayError, AMQPError, RedisError, OSError, ValueError, LookupError, AssertionError)


def main() -> int:
    chosen = options.parse(__doc__)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    seeds.end_when_told()
    try:
        holds = seeds.run_seeds(chosen) if chosen.random else run_rows(chosen)
    except KeyboardInterrupt:
        log.error("interrupted; go on with --resume")
        return 130
    return int(not holds)


def run_rows(chosen: argparse.Namespace) -> bool:
    """Run the rows that were asked for; tell whether all of them hold."""
    some = chosen.rows != ALONE or chosen.strategies != options.ALL
    report = Report(chosen.json, keep=some or chosen.resume, experiment=chosen.json.stem)
    began, begun, holds = monotonic(), 0, True
    planned = [(ROWS[number], _strategies(ROWS[number], chosen, report)) for number in chosen.rows]
    planned = [(row, strategies) for row, strategies in planned if strategies]
    with Stack() as stack:
        servers = Servers(stack)
        for row, strategies in planned:
            minutes = (monotonic() - began) / 60
            if minutes > chosen.minutes:
                log.error("out of time; go on with --resume")
                holds = False
                break
            begun += 1
            log.info("%4.1f min  row %d of %d: %s", minutes, begun, len(planned), row.title)
            logs = chosen.json.with_suffix("") / f"row-{row.number}"
            results = attempt(row, servers, strategies, logs, chosen.logs)
            report.add(results, servers.versions)
            for result in results:
                log.info(line(result))
            if not all(result.holds for result in results):
                holds = False
                servers.discard()
    log.info("\n%s", table([one for one in report.results if one.row in chosen.rows]))
    return holds


def attempt(
    row: Row, servers: Servers, strategies: tuple[str, ...], logs: Path, always: bool
) -> list[Result]:
    """Run a row; one that cannot be run holds for nobody."""
    began = monotonic()
    try:
        results = run(row, servers, strategies, logs=logs, always=always)
    except ERRORS as exc:
        log.error("row %d could not be run", row.number, exc_info=exc)
        problem = f"could not be run: {type(exc).__name__}: {exc}"
        results = [
            RowResult(row=row.number, title=row.title, strategy=s, problems=[problem])
            for s in strategies
        ]
    for result in results:
        result.notes["seconds"] = round(monotonic() - began, 1)
    return results


def _strategies(row: Row, chosen: argparse.Namespace, report: Report) -> tuple[str, ...]:
    return tuple(
        strategy
        for strategy in row.strategies
        if strategy in chosen.strategies
        and not (chosen.resume and report.has(row.number, strategy))
    )


if __name__ == "__main__":
    sys.exit(main())
