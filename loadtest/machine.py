"""What was measured, with what, and where: numbers mean little without it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from loadtest import wrk

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "celery": "celery",
    "kombu": "kombu",
    "pika": "pika",
    "redis-py": "redis",
    "hiredis": "hiredis",
    "tornado": "tornado",
    "gevent": "gevent",
    "uvloop": "uvloop",
}


def commit() -> str:
    """Return the commit, marked ``-dirty`` where files differ from it, or ``unknown``."""
    argv = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def versions() -> dict[str, str | None]:
    """Return the versions of what runs in this Python, and wrk's; None: not installed."""
    # wrk -v shows its usage as well, and fails.
    shown = subprocess.run([wrk.program(), "-v"], capture_output=True, text=True).stdout
    return {
        "python": platform.python_version(),
        **{name: _version(package) for name, package in PACKAGES.items()},
        "wrk": shown.split()[1],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, str | int]:
    """Describe the machine: usable cores, CPU model, memory in MiB, kernel."""
    memory = re.search(r"MemTotal: *(\d+) kB", _read("/proc/meminfo"))
    model = re.search(r"model name\s*: *(.+)", _read("/proc/cpuinfo"))
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "memory_mb": int(memory[1]) // 1024 if memory else 0,
        "kernel": f"{platform.system()} {platform.release()}",
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
