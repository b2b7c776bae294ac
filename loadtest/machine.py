"""What was measured, with what, and where: numbers mean little without it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import resource
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic

from gateway.stack import ProgramMissing
from gateway.stack.programs import find

ROOT = Path(__file__).parents[1]
#: The packages on a request's path, and what in them is beside it: the parent process serves none.
MEASURED = ("appserver", "gateway")
PARENT = ("child_handle", "health", "service_manager", "status", "supervisor")
BESIDE = (
    "gateway/admin",
    "gateway/cli",
    "gateway/stack",
    *(f"gateway/process/{module}.py" for module in PARENT),
)
#: What a report calls a package -> its name among distributions.
PACKAGES = {
    "celery": "celery", "kombu": "kombu", "pika": "pika", "redis-py": "redis",
    "hiredis": "hiredis", "tornado": "tornado", "gevent": "gevent", "eventlet": "eventlet",
    "uvloop": "uvloop", "flower": "flower", "fastapi": "fastapi", "uvicorn": "uvicorn",
    "pyzmq": "pyzmq", "py-amqp": "amqp", "aiohttp": "aiohttp", "granian": "granian",
    "taskiq": "taskiq", "taskiq-aio-pika": "taskiq-aio-pika", "taskiq-redis": "taskiq-redis",
    "faststream": "faststream",
}  # fmt: skip


def python_path() -> dict[str, str]:
    """Return what a process needs in its environment to import this project's packages."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))}


def commit() -> str:
    """Return the commit, marked ``-dirty`` where files differ from it, or ``unknown``."""
    argv = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def measured_code(root: Path = ROOT) -> str:
    """Return 12 hexadecimal digits that tell the measured code in `root` from any other.

    They depend on the names and the contents of its modules, comments included, and on nothing
    else: a clone without history has the same.
    """
    beside = [root / name for name in BESIDE]
    found = hashlib.sha256()
    for path in sorted(file for name in MEASURED for file in (root / name).rglob("*.py")):
        if not any(path.is_relative_to(each) for each in beside):
            content = path.read_bytes()
            found.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()[:12]


def versions() -> dict[str, str | None]:
    """Return the versions of what runs in this Python, wrk's and nginx's; None: not installed.

    `code` stands for this project's own: see `measured_code`.
    """
    return {
        "code": measured_code(),
        "python": platform.python_version(),
        **{name: _version(package) for name, package in PACKAGES.items()},
        # `wrk -v` shows its usage as well, and fails.
        "wrk": _shown_version("wrk", r"wrk (\S+)"),
        "nginx": _shown_version("nginx", r"nginx/(\S+)"),
    }


def _shown_version(program: str, pattern: str) -> str | None:
    try:
        done = subprocess.run([find(program, program), "-v"], capture_output=True, text=True)
    except ProgramMissing:
        return None
    found = re.search(pattern, done.stdout + done.stderr)
    return found[1] if found else None


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


class Cores:
    """Counts what all cores do from its making on; see proc_stat(5)."""

    def __init__(self) -> None:
        self._begin = monotonic()
        self._before, self._stolen = _core_seconds()

    def shares(self, ours: float) -> dict[str, float]:
        """Return what the cores were busy with, in per cent of all of them: anything at all;
        what is not `ours`, in seconds of CPU time; and what another machine had of them."""
        busy, stolen = _core_seconds()
        whole = (monotonic() - self._begin) * len(os.sched_getaffinity(0)) / 100
        busy, stolen = busy - self._before, stolen - self._stolen
        return {
            "busy_percent": round(busy / whole, 1),
            "others_percent": round(max(0.0, busy - ours) / whole, 1),
            "stolen_percent": round(stolen / whole, 1),
        }


def own_cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _core_seconds() -> tuple[float, float]:
    """Return the seconds that our cores were busy, and those that were stolen from them."""
    lines = dict(line.partition(" ")[::2] for line in _read("/proc/stat").splitlines())
    cores = [lines.get(f"cpu{core}", "0 " * 8).split() for core in os.sched_getaffinity(0)]
    fields = [sum(map(int, field)) for field in zip(*cores, strict=False)]
    user, nice, system, _idle, _waiting, irq, softirq, stolen, *_ = fields
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / tick, stolen / tick


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
