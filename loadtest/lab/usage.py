"""What a process of the lab has used, read by itself."""

from __future__ import annotations

import re
from pathlib import Path


def peak_memory() -> float:
    """Return the most resident memory that this process has had, in MiB.

    getrusage(2) would tell that of the process that has started it, where that was more.
    """
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
