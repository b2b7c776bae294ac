"""A clock that can be set, for one Python process and all that it starts."""

from __future__ import annotations

import os
import struct
from pathlib import Path

# Not libfaketime, which leaves the monotonic clock alone only where nobody sleeps by it: with two
# threads, the one that waits for the interpreter's lock spins or never wakes.
_SITE = """\
import mmap, os, struct, time

_file = os.open(os.environ["STACK_CLOCK"], os.O_RDONLY)
_setting = mmap.mmap(_file, 16, prot=mmap.PROT_READ)
os.close(_file)
_true = time.time

def _time():
    rate, seconds = struct.unpack_from("dd", _setting)
    return rate * _true() + seconds

time.time = _time
"""


class Clock:
    """What `time.time` says to whoever is started with `env`; the monotonic clock goes on as ever.

    It begins with the true time. `directory` is new, and its own.
    """

    def __init__(self, directory: Path):
        directory.mkdir()
        (directory / "sitecustomize.py").write_text(_SITE)
        self._setting = directory / "setting"
        self._setting.write_bytes(struct.pack("dd", 1.0, 0.0))
        path = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))
        #: What a process that goes by this clock has in its environment.
        self.env = {"PYTHONPATH": path, "STACK_CLOCK": str(self._setting)}

    def step(self, seconds: float) -> None:
        """Set the clock so many seconds before (below 0) or after the true time."""
        self._set(1.0, seconds)

    def stop(self, at: float) -> None:
        """Let the clock stand still at this time, in seconds since the epoch."""
        self._set(0.0, at)

    def _set(self, rate: float, seconds: float) -> None:
        with self._setting.open("r+b", buffering=0) as file:  # the mapped one, not another
            file.write(struct.pack("dd", rate, seconds))
