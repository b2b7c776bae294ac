"""Answer each GET after a random time: what a task that waits for another service waits for.

    python -m loadtest.lab.pools.sleeping_server --port N --seconds 2

``/NAME/NUMBER`` sleeps for 0.9 to 1.05 times ``--seconds``, and tells how long in JSON. The time
depends on the number alone: whoever asks for the same numbers waits for the same times. ``/NAME``
tells how often each number has been asked for below this name.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter, defaultdict
from random import Random
from typing import Any

from tornado.web import Application, RequestHandler

SEED = 20
#: As 180 to 210 s are of 200 s.
LEAST, MOST = 0.9, 1.05


def sleep_of(number: int, seconds: float) -> float:
    """Return for how many seconds the request of this number sleeps."""
    return Random(f"{SEED}/{number}").uniform(LEAST, MOST) * seconds


class Sleep(RequestHandler):
    """``/NAME/NUMBER``."""

    def initialize(self, seconds: float, asked: dict[str, Counter[str]]) -> None:
        self._seconds, self._asked = seconds, asked

    async def get(self, name: str, number: str) -> None:
        self._asked[name][number] += 1
        sleep = sleep_of(int(number), self._seconds)
        await asyncio.sleep(sleep)
        self.write({"sleep": sleep})


class Asked(RequestHandler):
    """``/NAME``."""

    def initialize(self, asked: dict[str, Counter[str]]) -> None:
        self._asked = asked

    def get(self, name: str) -> None:
        self.write(dict(self._asked[name]))


async def serve(port: int, seconds: float) -> None:
    """Serve on loopback until the process is ended."""
    asked: dict[str, Counter[str]] = defaultdict(Counter)
    paths: list[Any] = [
        (r"/([\w-]+)/(\d+)", Sleep, {"seconds": seconds, "asked": asked}),
        (r"/([\w-]+)", Asked, {"asked": asked}),
    ]
    Application(paths).listen(port, "127.0.0.1")
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="sleeping_server", description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.seconds))


if __name__ == "__main__":
    main()
