"""Start a serving process, ask for its health, and end it, from its parent."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.clock import monotonic
from gateway.config.settings import Config
from gateway.process.counters import Counters
from gateway.process.handover import HEAD, Start, write

START_TIMEOUT = 30.0  # seconds until a new child must answer
ASK_TIMEOUT = 1.0  # seconds within which a working loop answers
END_TIMEOUT = 10.0  # seconds beyond the grace period until a child that does not end is killed

#: The longest line of a child, in bytes: each of its warnings may name many routes.
_LINE = 1024 * 1024
# A running parent starts children of the version that is installed by then, so `process/child.py`
# and its `main` must not be renamed. `-m` is not used, because it imports from the working
# directory first, which may contain a redis.py, for example. What the strategy `patches` is patched
# before any other import, as modules that were imported earlier would not be.
_CHILD = f"""\
import sys
from importlib import import_module
sys.path.append({str(Path(__file__).parents[2])!r})
for name in sys.argv[2:]:
    module, _, function = name.partition(":")
    getattr(import_module(module), function)()
from gateway.process.child import main
main()
"""


class ChildHandle:
    """The parent's handle of a child process."""

    def __init__(self, config: Config, sockets: list[socket.socket]):
        self.config = config
        self._sockets = sockets
        self._asking = asyncio.Lock()
        self._asked = 0
        self._answered = False
        self.counters = Counters()
        self._child: asyncio.subprocess.Process
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self.retired = False
        #: What its last answer has warned of.
        self.warnings: list[str] = []
        self.started = monotonic()

    async def start(self) -> None:
        """Start the process and send it its configuration; raises OSError."""
        ours, theirs = socket.socketpair()
        fds = [s.fileno() for s in self._sockets]
        argv = [sys.executable, "-P", "-c", _CHILD, str(theirs.fileno())]
        argv += self.config.strategy_info.patches.split()
        # A whole group of processes may get them, which are meant for the parent. What is blocked
        # here stays so in the child, from its first moment to its last.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
        try:
            self._child = await asyncio.create_subprocess_exec(
                *argv, pass_fds=[theirs.fileno(), self.counters.fileno(), *fds]
            )
        except BaseException:
            ours.close()
            self.close()
            raise
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LINE)
        start = write(Start(self.config, fds, self.counters.fileno()))
        self._writer.write(HEAD.pack(len(start)) + start)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def starting(self) -> bool:
        """Is it still within the time that it has for its first answer?"""
        return not self._answered and monotonic() - self.started < START_TIMEOUT

    async def ask(self, timeout: float = ASK_TIMEOUT) -> dict[str, str] | None:
        """Return the child's own checks, or None where its loop does not answer in time."""
        try:
            async with asyncio.timeout(timeout), self._asking:
                # Many may have waited for their turn when it ended, and asyncio logs each write.
                if self._reader.at_eof() or self._writer.is_closing():
                    return None
                self._asked += 1
                self._writer.write(b"%d\n" % self._asked)
                while line := await self._reader.readline():
                    number: int
                    checks: dict[str, Any]
                    number, checks, *_ = json.loads(line)  # another version may tell more
                    if number == 0:
                        self.warnings = checks.get("warnings", [])
                    if number == self._asked:  # otherwise it is the late answer to an earlier line
                        self._answered = True
                        return checks
                return None
        except (TimeoutError, OSError, ValueError):  # the last: a line that is too long
            return None

    def serves(self, checks: dict[str, str], path: str = "") -> bool:
        """Tell from its `checks` whether the child serves a route; with `path`, all routes there.

        What a route does not need may be away.
        """
        lacking = {name for name, error in checks.items() if error}
        routes = [route for route in self.config.routes if path in ("", route.path)]
        served = [lacking <= self.config.unneeded(route) for route in routes]
        return any(served) and (not path or all(served))

    async def ready(self, timeout: float = START_TIMEOUT) -> bool:
        """Wait until the child serves a route; False: it does not, or has ended."""
        end = monotonic() + timeout
        # Each answer may take all the time that is left: where a machine is busy, a child that
        # starts well can be silent for longer than `ASK_TIMEOUT`.
        while (checks := await self.ask(end - monotonic())) is not None:
            if self.serves(checks):
                return True
            await asyncio.sleep(0.05)
        return False

    async def wait(self) -> int:
        code = await self._child.wait()
        self._writer.close()
        return code

    def signal(self, number: int) -> None:
        # The process may just have ended by itself.
        with suppress(ProcessLookupError):
            self._child.send_signal(number)

    def end(self) -> None:
        """Let the child drain and end; kill it after the grace period and `END_TIMEOUT`."""
        self.signal(signal.SIGTERM)
        patience = self.config.grace + END_TIMEOUT
        asyncio.get_running_loop().call_later(patience, self.signal, signal.SIGKILL)

    def close(self) -> None:
        self.counters.close()
