"""A child process: start, stop and kill it, with all that it starts itself."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from gateway.errors import GatewayError


class StackError(GatewayError):
    """A server is missing, did not start, or refused a command."""


class Server:
    """One running child process, in a session of its own: a terminal's Ctrl-C passes it by.

    `log` is the file that keeps its output, of all its starts; `url` and `admin_url` are empty
    where it has none. `on_change` is told of each start, as `+PID`, and of each end, as `-PID`.
    """

    url = ""
    admin_url = ""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path | str | None = None,
        ready: Callable[[], bool] | str | None = None,
        timeout: float = 60,
        on_line: Callable[[str, str], None] | None = None,
        on_change: Callable[[str], None] | None = None,
    ):
        self.name = name
        self.log = log
        self.env = dict(env)
        self._argv, self._cwd = list(argv), cwd
        self._ready, self._timeout = ready, timeout
        self._on_line, self._on_change = on_line, on_change
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> None:
        self._gone = False
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                env=self.env,
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._on_line else log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self._on_change:
            self._on_change(f"+{self.pid}")
        self._reader: threading.Thread | None = None
        if self._on_line:
            self._reader = threading.Thread(target=self._copy_lines, args=(self._process,))
            self._reader.start()

    def _copy_lines(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is None or self._on_line is None:
            return
        with process.stdout, self.log.open("ab", buffering=0) as log:
            for line in process.stdout:
                log.write(line)
                self._on_line(self.name, line.decode(errors="replace").rstrip())

    def alive(self) -> bool:
        """Tell whether the process itself, not merely a child of it, is running."""
        return self._process.poll() is None

    def wait_ready(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until the server serves.

        Raises StackError, with the end of the log, when it died or did not get there.
        """
        if not poll(lambda: not self.alive() or self._is_ready(), timeout):
            raise StackError(f"{self.name} is not ready after {timeout:g} s{self.tail()}")
        if not self.alive():
            self.kill()  # and have the last of its output
            raise StackError(f"{self.name} exited with {self._process.returncode}{self.tail()}")

    def _is_ready(self) -> bool:
        if isinstance(self._ready, str):
            return self._ready in self._read_log(self._log_start)
        return self._ready is None or self._ready()

    def output(self) -> str:
        """Return all that it has written, over all its starts."""
        return self._read_log(0)

    def _read_log(self, offset: int) -> str:
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")

    def tail(self) -> str:
        """Return its last lines, each on a new one; or where they are, if they were shown."""
        if self._on_line:
            return ": see its lines above"
        return "".join(f"\n    {line}" for line in self.output().splitlines()[-20:])

    def stop(self, timeout: float = 10) -> None:
        """Ask the process to end, wait at most `timeout` seconds, then kill what is left."""
        family = self.family()
        if self.alive():
            self.signal(signal.SIGCONT)  # a stopped process would not see the next one
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self._kill(family)

    def kill(self) -> None:
        """Kill the process and all its descendants at once; return when they are gone."""
        self._kill(self.family())

    def _kill(self, family: list[psutil.Process]) -> None:
        # All of them, as whoever inherited a listening socket keeps the port.
        def survivors() -> list[psutil.Process]:
            return [process for process in family if _lives(process)]

        if self._gone:
            return  # its process id may be somebody else's by now
        self.signal(signal.SIGKILL, survivors())
        self._process.wait()
        if not poll(lambda: not survivors(), 10):
            raise StackError(f"{self.name}: processes {survivors()} survived SIGKILL")
        if self._reader:
            self._reader.join()
        if self._on_change:
            self._on_change(f"-{self.pid}")
        self._gone = True

    def signal(self, number: signal.Signals, family: list[psutil.Process] | None = None) -> None:
        """Send a signal to the process and its descendants, or to those in `family`."""
        # By group, which also has those whose parent is gone; and one by one, for those that
        # have a group of their own, as what the Erlang VM starts.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        for process in self.family() if family is None else family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def restart(self) -> None:
        """Stop it if it runs, start it again with the same command, ports and data; wait."""
        self.stop()
        self._start()
        self.wait_ready(self._timeout)

    def pids(self) -> list[int]:
        """List the process and its descendants, as far as they are alive."""
        return [process.pid for process in self.family() if _lives(process)]

    def family(self) -> list[psutil.Process]:
        """Return the process and its descendants, those that nobody has waited for included."""
        table = list(psutil.process_iter(["ppid"]))
        # Who shares its session may have lost the parent that led back to it.
        family = [each for each in table if self.pid in (each.pid, _session(each.pid))]
        known = {each.pid for each in family}
        for one in family:  # grows as it goes
            for each in table:
                if each.info["ppid"] == one.pid and each.pid not in known:
                    family.append(each)
                    known.add(each.pid)
        return family


def _lives(process: psutil.Process) -> bool:
    """Does it run, and has it not merely nobody who has waited for it?"""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended, or is somebody else's
        return 0


def poll(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait until `condition` is true; return False when `timeout` seconds have passed."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
