"""Use as much CPU time as a server that answers requests, and do nothing else.

    python -m loadtest.servers.busy --rate R --us US

It works for ``us`` microseconds, ``rate`` times a second, until it is stopped. Beside a client it
takes from broker and worker what a server would: what the client then has to wait for is the
machine's.
"""

from __future__ import annotations

import argparse
from time import monotonic, sleep, thread_time

READY = "busy from now on"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--us", type=float, required=True)
    options = parser.parse_args()
    print(READY, flush=True)
    due = monotonic()
    while True:
        due += 1 / options.rate
        sleep(max(0.0, due - monotonic()))
        until = thread_time() + options.us / 1e6
        while thread_time() < until:
            pass


if __name__ == "__main__":
    main()
