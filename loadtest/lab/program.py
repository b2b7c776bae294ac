"""Run the programs of this package, as an experiment does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gateway.stack import StackError, free_port
from gateway.stack.loopback import accepts
from loadtest.bench import Front
from loadtest.machine import python_path
from loadtest.stack import Stack, measured


def run(module: str, *options: str, timeout: float) -> dict[str, Any]:
    """Run a program to its end and return the figures that it prints.

    Raises StackError, with the last lines of its output, where it fails or is still running after
    `timeout` seconds. No process of it is left then.
    """
    with subprocess.Popen(
        [*_command(module), *options],
        env={**os.environ, **python_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as exc:
            raise StackError(f"{module} was still running after {timeout:.0f} s") from exc
        finally:
            if process.returncode != 0:
                # Its children are in its group. They would wait for each other.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode or not output:
        last = "".join(f"\n    {line}" for line in errors.splitlines()[-5:])
        raise StackError(f"{module} exited with {process.returncode}{last}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@contextmanager
def serving(stack: Stack, module: str, *options: str) -> Iterator[Front]:
    """Run a server of this package."""
    port = free_port()
    argv = [*_command(module), "--port", str(port), *options]
    server = stack.spawn(module, argv, env=python_path(), ready=lambda: accepts(port))
    with measured(server) as running:
        yield Front(f"http://127.0.0.1:{port}", {"gateway": running})


def _command(module: str) -> list[str]:
    return [sys.executable, "-P", "-m", f"loadtest.lab.{module}"]
