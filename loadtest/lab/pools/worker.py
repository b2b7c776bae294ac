"""Start the workers whose pools are compared: by Celery's command, or from a script."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.bench import Bench, Front
from loadtest.lab import program
from loadtest.lab.pools.chords import Work, make_records
from loadtest.machine import python_path
from loadtest.stack import Measured, Stack, measured

COMMAND, PATCHED, UNPATCHED = "the command", "a script, patched first", "a script, not patched"

#: What tells whether a pool's library works on this Python at all.
_PROBES = {
    "gevent": "from gevent import monkey, spawn; monkey.patch_all(); spawn(int).get()",
    "eventlet": "import eventlet; eventlet.monkey_patch(); eventlet.spawn(int).wait()",
}
_READY = 60  # seconds


@dataclass(frozen=True)
class Start:
    """How a worker is started, and what is set: None is Celery's own setting.

    Each call `blocks` all else in its process for so many seconds.
    """

    pool: str
    size: int
    by: str = COMMAND
    heartbeat: int | None = None
    acks_late: bool = False
    blocks: float = 0.0

    @property
    def argv(self) -> list[str]:
        if self.by == COMMAND:
            return ["celery", "-A", "loadtest.lab.pools.app", "worker", "-P", self.pool]
        how = "patched" if self.by == PATCHED else "unpatched"
        return ["loadtest.lab.pools.script", how, self.pool]

    @property
    def settings(self) -> dict[str, Any]:
        chosen = {"broker_heartbeat": self.heartbeat, "task_acks_late": self.acks_late or None}
        return {name: value for name, value in chosen.items() if value is not None}


def unusable(pool: str) -> str:
    """Say why the library of `pool` does not work on this Python; empty where it does."""
    if pool not in _PROBES:
        return ""
    done = subprocess.run([sys.executable, "-c", _PROBES[pool]], capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def sleeping_server(stack: Stack, seconds: float) -> AbstractContextManager[Front]:
    """Run the server that calls wait for."""
    return program.serving(stack, "pools.sleeping_server", f"--seconds={seconds}")


def records_of(stack: Stack, work: Work) -> Path:
    """Return the SQLite file of `work`."""
    return stack.directory / f"{work.name}.sqlite"


def spawn(stack: Stack, bench: Bench, start: Start, work: Work, server: str) -> Measured:
    """Start a worker for `work` that calls `server`, and whose connections have the name of it.

    Its options are Celery's own, so that it has all connections that a worker usually has.
    Raises StackError where it does not become ready.
    """
    make_records(records_of(stack, work))
    node = f"{work.name}@localhost"
    options = ["-n", node, "-l", "INFO", "-c", str(start.size), "-Q", ",".join(work.queues)]
    named = {"broker_transport_options": {"client_properties": {"connection_name": work.name}}}
    env = {
        **python_path(),
        "GATEWAY_BROKER_URL": bench.broker.url,
        "GATEWAY_RESULT_BACKEND": bench.redis.url,
        "LAB_SERVER": f"{server}/{work.name}",
        "LAB_RECORDS": str(records_of(stack, work)),
        "LAB_BLOCKS": str(start.blocks),
        "LAB_SETTINGS": json.dumps({**named, **start.settings}),
    }
    argv = [sys.executable, "-m", *start.argv, *options]
    return measured(stack.spawn(work.name, argv, env=env, ready=f"{node} ready.", timeout=_READY))
