"""Start the workers in other languages, which `tests/install-servers.sh` has built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.stack import ProgramMissing
from gateway.stack.programs import find
from tests.support.stack import Server, Stack

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "polyglot"
LANGUAGES = ("go", "node")


def start_worker(
    stack: Stack,
    language: str,
    broker: str,
    results: str,
    queue: str = "celery",
    env: Mapping[str, str] | None = None,
) -> Server:
    """Start the worker in `language`; raises ProgramMissing where it is not built."""
    wanted = BUILD / "go-worker" if language == "go" else BUILD / "node" / "node_modules"
    if not wanted.exists():
        raise ProgramMissing(f"{wanted} is missing: run examples/polyglot/build.sh")
    if language == "go":
        argv = [str(wanted)]
    else:
        argv = [find("node", "nodejs"), str(ROOT / "examples" / "polyglot" / "node" / "worker.js")]
    urls = {"GATEWAY_BROKER_URL": broker, "GATEWAY_RESULT_BACKEND": results, "QUEUE": queue}
    env = {**urls, "NODE_PATH": str(BUILD / "node" / "node_modules"), **(env or {})}
    return stack.spawn(f"{language}-worker", argv, env=env, ready=f"consumes {queue}")
