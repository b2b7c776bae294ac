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


def main() -> None:
    """Keep the list of running process groups; when the input ends, kill them."""
    groups: set[int] = set()
    for line in sys.stdin:
        change = groups.add if line.startswith("+") else groups.discard
        change(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
