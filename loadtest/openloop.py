"""A client that sends at a constant rate, whatever the answers do.

A latency counts from the moment when its request was due: a server that stands still for a
second makes every request late that was due in it, also those that could not be sent. wrk waits
for an answer before it sends again, and sees one slow request where a thousand would have been.

The requests are made by openloop.lua, in a process of its own.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import psutil

from loadtest import wrk
from loadtest.client import result
from loadtest.envelope import PLAIN, SECRET, Envelope
from loadtest.summary import latency

SCRIPT = Path(__file__).with_name("openloop.lua")

Mark = tuple[float, Callable[[], None]]

OPEN = 32  # connections that are open before the first request, at least
_LEAD = 0.05  # seconds before the first request is due
_SLACK = 30.0  # seconds that the client may take beyond its time


@contextmanager
def schedule(
    url: str,
    rate: float,
    seconds: float,
    connections: int = OPEN,
    envelope: Envelope = PLAIN,
) -> Iterator[Client]:
    """Open so many connections; give what POSTs `rate` distinct bodies a second to `url`.

    Whoever measures the server does so from then on, and has nothing of connections in it. Where
    the `envelope` identifies bodies, one of 25 is a later try of another. Raises `WrkError`.
    """
    client = Client(url, rate, seconds, connections, envelope)
    try:
        yield client
    finally:
        client.close()


class Client:
    """Sends for so many `seconds`, once."""

    def __init__(self, url: str, rate: float, seconds: float, connections: int, envelope: Envelope):
        self._rate, self._seconds = rate, seconds
        self._total = max(1, round(rate * seconds))
        target = urlsplit(url)
        address = f"http://{socket.gethostbyname(target.hostname or '')}:{target.port}"
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        period = round(1e9 / rate)  # nanoseconds
        argv = [wrk.program(), "-t1", "-c1", "-d1s", "-s", str(SCRIPT), address, "--", path]
        argv += map(str, (secrets.token_hex(4), period, self._total, connections))
        argv += [envelope.name, SECRET.decode()]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"open\n":
            raise self._error()

    def send(self, timeout: float, marks: Sequence[Mark] = ()) -> dict[str, Any]:
        """Send, then wait for the rest for as long as `timeout`; what has no answer is missing.

        Among the errors, `expired` are 504s, and `status` all others that are not 2xx.

        `marks` say what to call so many seconds after the first request was due. Returns what
        `wrk.run` does, and `schedule`: the `rate` that was asked for, what was `sent` a second,
        `late_ms` (how long after it was due each request was sent), the `connections` open at the
        end, and `client_cpu_us` per request.
        """
        begin = monotonic() + _LEAD
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{begin:.9f} {timeout:.3f}\n".encode())
            self._process.stdin.flush()
            for after, reached in marks:
                sleep(max(0.0, begin + after - monotonic()))
                reached()
            left = begin + self._seconds + timeout + _SLACK - monotonic()
            printed, _ = self._process.communicate(timeout=max(_SLACK, left))
        except (BrokenPipeError, subprocess.TimeoutExpired) as exc:
            raise self._error() from exc
        line, _, figures = printed.partition(b"\n")
        if self._process.returncode or not line:
            raise self._error()
        return self._found(json.loads(line), array("d", figures))

    def _found(self, counted: dict[str, Any], seconds: array[float]) -> dict[str, Any]:
        finished, sent = counted["finished"], counted["sent"]
        # Of a whole number of requests; the rate is none.
        share = sent / self._total
        longer = max(1.0, counted["last_sent"] / self._seconds)
        return {
            **result(
                counted["answered"],
                max(counted["seconds"], self._seconds),
                seconds[:finished],
                counted["wrong"],
                **counted["errors"],
                missing=self._total - finished,
            ),
            "schedule": {
                "rate": round(self._rate, 1),
                "sent": round(self._rate * share / longer, 1),
                "late_ms": latency(seconds[finished:]),
                "connections": counted["connections"],
                "client_cpu_us": round(counted["cpu"] * 1e6 / self._total, 1),
            },
        }

    def cpu_seconds(self) -> float:
        """Return the CPU time of its process; once it has ended, its parent's children have it."""
        with suppress(psutil.NoSuchProcess):
            used = psutil.Process(self._process.pid).cpu_times()
            return float(used.user + used.system)
        return 0.0

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _error(self) -> wrk.WrkError:
        self._process.kill()
        _, said = self._process.communicate()
        return wrk.WrkError(f"openloop.lua: {said.decode().strip() or 'it did not end'}")
