"""Kill what a stack leaves running when its owner is killed, and remove its directory.

    python -I reaper.py DIRECTORY

Reads `+PID` and `-PID`, a line for each process group that begins or has ended, until its
standard input is closed: by the owner's exit, or by its death.
"""

import os
import shutil
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Follow the list; at its end, kill whoever is on it."""
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
