"""Programs that the load lab measures: libraries and servers by themselves, without the gateway.

Those that measure end by themselves and print their figures as a line of JSON. They need no server
but those that their options name, so each can be run alone: ``python -m loadtest.lab.NAME``.
"""

from __future__ import annotations

import re
from pathlib import Path


def peak_memory() -> float:
    """Return the most resident memory that this process has had, in MiB.

    getrusage(2) would tell that of the process that has started it, where that was more.
    """
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
