"""Start several workers of the pool `solo`, and start each again that has ended.

Where tasks are short, such workers run more of them than a pool of processes does, where each task
and its result cross a pipe. `appserver.watch` limits the time of their tasks.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

#: The variable in which a worker finds the descriptor of a pipe that is closed when its supervisor
#: has ended.
VARIABLE = "APPSERVER_SUPERVISOR"
#: The exit code of a worker that is to be replaced, which is that of Celery's recycled processes.
RECYCLED = 155
UNUSABLE = 2  # the exit code of Celery where the app or an option cannot be used
PAUSE_MAX = 30.0  # seconds before a worker that has failed is started again
WELL = 60.0  # seconds after which a worker's earlier failures do not count any more

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
#: Options of Celery's worker that contradict what is done here, or would do it N times.
REFUSED = {
    **dict.fromkeys(("-n", "--hostname"), "the workers are called NAME1@%h and so on: use --name"),
    **dict.fromkeys(("-P", "--pool", "-c", "--concurrency"), "each worker is a process (`solo`)"),
    "--autoscale": "the number of workers is fixed",
    **dict.fromkeys(("-B", "--beat"), "each task would be sent N times: run `celery beat`"),
    **dict.fromkeys(("-D", "--detach"), "the supervisor waits for its workers"),
}

log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run the command ``python -m appserver`` with these arguments; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m appserver",
        description="Run N Celery workers of the pool `solo`, for short tasks.",
    )
    parser.add_argument("--workers", type=_number, required=True, metavar="N")
    parser.add_argument("--name", default="worker", help="they are called NAME1@%%h and so on")
    parser.add_argument("app", metavar="APP", help="what `celery -A` takes")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="those of `celery worker`")
    arguments = parser.parse_args(argv)
    for option in arguments.options:
        name = option.partition("=")[0] if option.startswith("--") else option[:2]
        if name in REFUSED:
            parser.error(f"{name} cannot be used here: {REFUSED[name]}")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    celery = [sys.executable, "-m", "celery", "-A", arguments.app, "worker", *arguments.options]
    names = [f"{arguments.name}{number}" for number in range(1, arguments.workers + 1)]
    commands = {name: [*celery, "-P", "solo", "-c", "1", "-n", f"{name}@%h"] for name in names}
    return supervise([Worker(name, command) for name, command in commands.items()])


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return int(text)


class Worker:
    """One worker: its process, and when that is to be started."""

    _process: subprocess.Popen[bytes]

    def __init__(self, name: str, command: Sequence[str]):
        self.name, self._command = name, command
        self.starts = self._failures = 0
        #: When it is to be started, in monotonic seconds; None: it runs.
        self.due: float | None = 0.0
        #: The exit code of its last process; negative: the signal that has ended it.
        self.code = 0

    @property
    def running(self) -> bool:
        return self.due is None

    def start(self, end: int) -> None:
        """Start it with the `end` of a pipe, and so that Ctrl-C signals only the supervisor."""
        self.due, self._began = None, time.monotonic()
        environ = {**os.environ, VARIABLE: str(end)}
        try:
            self._process = subprocess.Popen(
                self._command, env=environ, pass_fds=[end], process_group=0
            )
        except OSError as exc:  # processes or descriptors are used up
            log.error("%s cannot be started: %s", self.name, exc)
            self._fail()
        else:
            self.starts += 1

    def signal(self, number: int) -> None:
        if self.running:
            self._process.send_signal(number)

    def has_ended(self) -> bool:
        """Tell whether its process has ended since the last call, and set when the next starts."""
        if not self.running or (code := self._process.poll()) is None:
            return False
        self.due = time.monotonic()
        self.code = 0 if code == RECYCLED else code
        if code == RECYCLED or self.due - self._began > WELL:
            self._failures = 0
        if code != RECYCLED:
            self._fail()
            level = logging.WARNING if code else logging.INFO
            log.log(level, "%s has ended, %s", self.name, self._why())
        return True

    def _fail(self) -> None:
        self.due = time.monotonic() + min(2.0**self._failures, PAUSE_MAX)
        self._failures += 1

    def _why(self) -> str:
        if self.code >= 0:
            return f"with the exit code {self.code}"
        stuck = ": its task has not ended after its time limit"
        name = signal.Signals(-self.code).name
        return f"by {name}{stuck if self.code == -signal.SIGALRM else ''}"


def supervise(workers: Sequence[Worker]) -> int:
    """Run the workers until a signal tells to end; they get that one and all further ones.

    Return 0 where all have ended well then, else 1; `UNUSABLE` where none can be started.
    """
    stopping = False
    end, held = os.pipe()  # the kernel closes `held` when this process ends, in whatever way
    with _signals() as wait:
        while not stopping or any(worker.running for worker in workers):
            if not stopping:
                _start(workers, end)
            for number in wait(None if stopping else _seconds(workers)):
                stopping = True
                _signal(workers, number)
            for worker in workers:
                if worker.has_ended() and worker.code == UNUSABLE and worker.starts == 1:
                    stopping = True
                    _signal(workers, signal.SIGTERM)
    os.close(end)
    os.close(held)
    codes = {worker.code for worker in workers}
    return 0 if codes == {0} else UNUSABLE if UNUSABLE in codes else 1


def _start(workers: Sequence[Worker], end: int) -> None:
    now = time.monotonic()
    for worker in workers:
        if worker.due is not None and worker.due <= now:
            worker.start(end)


def _seconds(workers: Sequence[Worker]) -> float | None:
    """Return the seconds until a worker is to be started; None: all run."""
    dues = [worker.due for worker in workers if worker.due is not None]
    return max(min(dues) - time.monotonic(), 0) if dues else None


def _signal(workers: Sequence[Worker], number: int) -> None:
    for worker in workers:
        worker.signal(number)


@contextmanager
def _signals() -> Iterator[Callable[[float | None], list[int]]]:
    """Yield a function that waits some seconds, or for a signal, and returns those to forward."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno())
        handlers = {one: signal.signal(one, _noted) for one in (*FORWARDED, signal.SIGCHLD)}

        def wait(seconds: float | None) -> list[int]:
            if not select.select([reader], [], [], seconds)[0]:
                return []
            return [number for number in reader.recv(64) if number in FORWARDED]

        try:
            yield wait
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _noted(number: int, frame: object) -> None:
    """Do nothing: the number is written to the socket that is waited for."""
