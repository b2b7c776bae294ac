"""Run the fault matrix, or some of its rows.

Exit codes: 0 everything holds; 1 a promise is broken, or a row could not be run; 2 an option is
wrong; 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path
from time import monotonic

from amqp.exceptions import AMQPError
from redis.exceptions import RedisError

from gateway.errors import GatewayError
from gateway.stack import Stack
from gateway.strategies import STRATEGIES
from tests.faults.oracle import Result
from tests.faults.report import Report, line, table
from tests.faults.rows import ROWS, Row, run
from tests.faults.servers import Servers

log = logging.getLogger("faults")

#: What breaking things may raise, and checking them: it spoils the row and no other one.
ERRORS = (GatewayError, AMQPError, RedisError, OSError, ValueError, LookupError, AssertionError)


def main() -> int:
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    some = options.rows != list(ROWS) or options.strategies != list(STRATEGIES)
    report = Report(options.json, keep=some or options.resume)
    began, passed, failed = monotonic(), 0, False
    planned = [
        (ROWS[number], _strategies(ROWS[number], options, report)) for number in options.rows
    ]
    planned = [(row, strategies) for row, strategies in planned if strategies]
    try:
        with Stack() as stack:
            servers = Servers(stack)
            for row, strategies in planned:
                minutes = (monotonic() - began) / 60
                if minutes > options.minutes:
                    log.error("out of time; go on with --resume")
                    failed = True
                    break
                log.info(
                    "%4.1f min  row %d of %d: %s", minutes, passed + 1, len(planned), row.title
                )
                passed += 1
                logs = options.json.with_suffix("")
                results = attempt(row, servers, strategies, logs, options.logs)
                report.add(results)
                for result in results:
                    log.info(line(result))
                if not all(result.holds for result in results):
                    failed = True
                    servers.discard()
    except KeyboardInterrupt:
        log.error("interrupted; go on with --resume")
        return 130
    log.info("\n%s", table(one for one in report.results if one.row in options.rows))
    return int(failed)


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
        results = [Result(row.number, row.title, s, problems=[problem]) for s in strategies]
    for result in results:
        result.notes["seconds"] = round(monotonic() - began, 1)
    return results


def _strategies(row: Row, options: argparse.Namespace, report: Report) -> tuple[str, ...]:
    return tuple(
        strategy
        for strategy in row.strategies
        if strategy in options.strategies
        and not (options.resume and report.has(row.number, strategy))
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    option = parser.add_argument
    option("--rows", type=_rows, default=list(ROWS), metavar="1,3,12-15", help="all")
    option("--strategies", type=_names, default=list(STRATEGIES), metavar="A,B", help="all")
    option("--resume", action="store_true", help="leave out what the file says holds")
    option("--json", type=Path, default=Path("build/faults.json"), metavar="FILE")
    option("--logs", action="store_true", help="keep the logs of rows that hold, too")
    option("--minutes", type=float, default=42, help="begin no further row after so many")
    return parser


def _rows(text: str) -> list[int]:
    rows = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        rows += range(int(first), int(last or first) + 1)
    if unknown := [row for row in rows if row not in ROWS]:
        raise argparse.ArgumentTypeError(f"no such row: {unknown}")
    return rows


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in STRATEGIES]:
        raise argparse.ArgumentTypeError(f"no such strategy: {unknown}")
    return names


if __name__ == "__main__":
    sys.exit(main())
