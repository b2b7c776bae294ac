"""Consume all messages of some queues with one driver, and say what that took.

    python -m loadtest.lab.consumers.consume --driver pika --url URL --connections 8 --prefetch 16 \
        --messages 10000 --limit 60

Prints `ready` when its connections are open, begins when it gets a line, prints a line of JSON when
the broker has all acknowledgements, or after `limit` seconds, and ends when its input ends.
"""

from __future__ import annotations

import argparse
import os
import sys
from types import TracebackType

from kombu.utils.url import parse_url

from loadtest.lab.consumers import drivers
from loadtest.lab.consumers.part import divide


def _fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End with the error as the last words, whatever a library would write at its end."""
    sys.__excepthook__(kind, error, trace)
    os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="consume", description=__doc__.partition("\n")[0])
    parser.add_argument("--driver", choices=drivers.DRIVERS, required=True)
    parser.add_argument("--url", required=True)
    for name in ("connections", "prefetch", "messages", "limit"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    parts = divide(options.messages, options.connections, options.prefetch)
    sys.excepthook = _fail
    consume = drivers.find(options.driver)
    run = drivers.Run(parts, options.limit)
    consume(parse_url(options.url), parts, options.prefetch, run)


if __name__ == "__main__":
    main()
