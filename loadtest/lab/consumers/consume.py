"""Consume all messages of some queues with one driver, and say what that took.

    python -m loadtest.lab.consumers.consume --driver pika --url URL --connections 8 --prefetch 16 \
        --messages 10000 --limit 60

Prints `ready` when its connections are open, begins when it gets a line, prints a line of JSON when
the broker has all acknowledgements, or after `limit` seconds, and ends when its input ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, NoReturn
from urllib.parse import urlsplit

from loadtest.lab.consumers import drivers
from loadtest.lab.consumers.part import Part, divide

_OPEN = 60  # seconds until its connections are open and it is started
_HUNG = 10  # seconds after its limit until a process is killed that does not look at it


class Run:
    """The clock, and what came."""

    def __init__(self, parts: Sequence[Part], limit: int):
        self._parts = parts
        self._begin = self._user = self._system = 0.0
        # In a signal handler, as a further thread would wait for the interpreter as well.
        signal.signal(signal.SIGALRM, lambda *_: self.end())
        signal.alarm(_OPEN)
        faulthandler.dump_traceback_later(_OPEN + limit + _HUNG, exit=True)
        self._limit = limit

    def begin(self) -> None:
        """Wait for the start signal."""
        print("ready", flush=True)
        if not sys.stdin.readline():
            raise SystemExit("consume: nobody has started it")
        signal.alarm(self._limit)
        self._user, self._system = _cpu()
        self._begin = perf_counter()

    def end(self) -> NoReturn:
        """Print what there is; end when the input ends."""
        seconds = perf_counter() - self._begin
        user, system = _cpu()
        signal.alarm(0)
        if not self._begin:
            raise SystemExit("consume: its connections were not open in time")
        figures = {
            "seconds": seconds,
            "user": user - self._user,
            "system": system - self._system,
            "missing": self._sum("left"),
            "wrong": self._sum("wrong"),
            "acks": self._sum("acks"),
            "ack_seconds": self._sum("ack_seconds"),
        }
        print(json.dumps(figures), flush=True)
        sys.stdin.read()
        # All is acknowledged; what a library does at its end is not measured.
        os._exit(0)

    def _sum(self, name: str) -> Any:
        return sum(getattr(part, name) for part in self._parts)


def _cpu() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


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
    url = urlsplit(options.url)
    broker = {
        "hostname": url.hostname,
        "port": url.port,
        "userid": url.username,
        "password": url.password,
        "virtual_host": url.path[1:] or "/",
    }
    sys.excepthook = _fail
    consume = drivers.find(options.driver)
    consume(broker, parts, options.prefetch, Run(parts, options.limit))


if __name__ == "__main__":
    main()
