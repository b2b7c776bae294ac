"""Run wrk with wrk.lua and read what it found."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.errors import GatewayError
from gateway.stack.programs import find
from loadtest.envelope import PLAIN, Envelope

SCRIPT = Path(__file__).with_name("wrk.lua")

#: Bodies that are signed before a run, and used in turn: several times as many as are in flight.
SIGNED = 16_384
_SIZE = 250  # bytes of a body, as wrk.lua's own

#: Seconds that wrk may take beyond its duration: to connect, to stop and to add up.
_SLACK = 60


class WrkError(GatewayError):
    """wrk did not do its work."""


def program() -> str:
    """Return wrk's path; raises `ProgramMissing` where it is not installed."""
    return find("wrk", "wrk")


def run(
    url: str,
    connections: int,
    threads: int,
    duration: int,
    timeout: float,
    envelope: Envelope = PLAIN,
) -> dict[str, Any]:
    """Load `url` for `duration` seconds and return what wrk.lua prints.

    That is `requests` (answers of any kind), `seconds`, `wrong_answers`, `errors` by kind and
    `latency_ms`. wrk adds to the latencies what a connection that waited would have seen had it
    gone on sending, which raises the upper percentiles. `timeout`, in seconds, is the latency
    that counts as an error. Raises `WrkError`.
    """
    # wrk gives each thread the same number of connections, and leaves out the remainder.
    threads = max(n for n in range(1, threads + 1) if connections % n == 0)
    argv = [program(), f"-t{threads}", f"-c{connections}", f"-d{duration}s"]
    argv += ["--timeout", f"{timeout:.0f}s", "-s", str(SCRIPT), url]
    run_id = secrets.token_hex(4)
    argv += ["--", run_id, envelope.name]
    env = {**os.environ, "LOADTEST_CONNECTIONS": str(connections)}
    with tempfile.NamedTemporaryFile("wb") as file:
        if envelope.signed:
            file.writelines(_signed(envelope, run_id))
            file.flush()
            argv += [str(threads), file.name]
        try:
            done = subprocess.run(
                argv, env=env, capture_output=True, text=True, timeout=duration + _SLACK
            )
        except subprocess.TimeoutExpired as exc:
            raise WrkError(f"wrk was still running {_SLACK} s after its time") from exc
    lines = done.stdout.splitlines()
    if done.returncode or not lines or not lines[-1].startswith("{"):
        raise WrkError(f"wrk exited with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _signed(envelope: Envelope, run_id: str) -> Iterator[bytes]:
    """Yield bodies with their header lines, as wrk.lua reads them."""
    start, end = f'{{"run":"{run_id}","padding":"'.encode(), b'","n":%010d}'
    padding = b"x" * (_SIZE - len(start) - len(end % 0))
    for n in range(SIGNED):
        body = start + padding + end % n
        lines = envelope.head(body).removesuffix(b"\r\n").replace(b"\r\n", b"\t")
        yield b"%b\t%b\n" % (body, lines)
