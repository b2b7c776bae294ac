"""Kill the servers of a stack whose process was killed, and remove its directory.

    python -I reaper.py DIRECTORY

Reads lines `+PID` and `-PID`, for process groups that begin or have ended, until its standard input
is closed, because the stack's process has ended or was killed.
"""

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """Keep the list of running process groups; when the input ends, kill them."""
    groups: dict[int, str] = {}  # with the start of each group's leader
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups[group] = started(group)
        else:
            groups.pop(group, None)
    for group, start in groups.items():
        # A leader with another start is somebody else's: its id was free, as this group had ended.
        if started(group) in ("", start):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


def started(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; empty: there is none with this id."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


if __name__ == "__main__":
    main()
