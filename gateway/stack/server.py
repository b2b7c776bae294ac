"""Start, stop and kill a child process, with all its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep

import psutil

from gateway.clock import monotonic
from gateway.errors import GatewayError


class StackError(GatewayError):
    """A server is missing, did not start, or refused a command."""


class Server:
    """One running child process, in a session of its own, so that Ctrl-C does not signal it.

    `log` is the file with the output of all its starts; `url` and `admin_url` are empty where it
    has none. `on_change` is called with `+PID` at each start, and with `-PID` at each end.
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
        """Tell whether the process itself is running, and not only a child of it."""
        return self._process.poll() is None

    def wait_ready(self) -> None:
        """Wait at most `timeout` seconds until the server serves.

        Raises StackError, with the end of the log, when it has ended or is not ready in time.
        """
        if not poll(lambda: not self.alive() or self._is_ready(), self._timeout):
            raise StackError(f"{self.name} is not ready after {self._timeout:g} s{self.tail()}")
        if not self.alive():
            self.kill()  # and wait for the end of its output
            raise StackError(f"{self.name} exited with {self._process.returncode}{self.tail()}")

    def _is_ready(self) -> bool:
        if isinstance(self._ready, str):
            return self._ready in self._read_log(self._log_start)
        return self._ready is None or self._ready()

    def output(self) -> str:
        """Return the output of all its starts."""
        return self._read_log(0)

    def _read_log(self, offset: int) -> str:
        with self.log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")

    def tail(self) -> str:
        """Return its last lines, each on a new line; or a hint, if they were printed already."""
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
        """Kill the process and all its descendants immediately; return when they have ended."""
        self._kill(self.family())

    def _kill(self, family: list[psutil.Process]) -> None:
        # All of them, because a process that has inherited a listening socket occupies the port.
        def survivors() -> list[psutil.Process]:
            return [process for process in family if lives(process)]

        if self._gone:
            return  # its process id may be another process's by now
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
        # The group includes processes whose parent has ended. Then each one is signalled, because
        # some have a group of their own, for example those that the Erlang VM starts.
        if not self._succeeded():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)
        for process in self.family() if family is None else family:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _succeeded(self) -> bool:
        """Has another process, of somebody else, got this one's id?

        That can be once this one was waited for, and its session has no members any more: until
        then the kernel gives the id to nobody.
        """
        return self._process.poll() is not None and psutil.pid_exists(self.pid)

    def family(self) -> list[psutil.Process]:
        """Return the process and its descendants, including zombies."""
        if self._succeeded():
            return []
        table = list(psutil.process_iter(["ppid"]))
        # A descendant whose parent has ended is found by its session.
        family = [each for each in table if self.pid in (each.pid, _session(each.pid))]
        known = {each.pid for each in family}
        for one in family:  # which grows during the loop
            for each in table:
                if each.info["ppid"] == one.pid and each.pid not in known:
                    family.append(each)
                    known.add(each.pid)
        return family


def lives(process: psutil.Process) -> bool:
    """Is the process running, and not a zombie?"""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended, or belongs to another user
        return 0


def poll(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait until `condition` is true; return False when `timeout` seconds have passed."""
    deadline = monotonic() + timeout
    while not condition():
        if monotonic() > deadline:
            return False
        sleep(0.02)
    return True
