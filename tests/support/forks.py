"""The `gateway` command in forks of a process that has imported what a command needs.

Most of the CPU time of a command that looks at servers are its imports. A fork does not show that
the command can be started: a test that is about that, or about what is imported, starts it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(
    args: Sequence[str], env: Mapping[str, str], timeout: int
) -> subprocess.CompletedProcess[str]:
    """Run `gateway` with `args` in the environment `env`, as `subprocess.run` would do.

    Raises TimeoutExpired where it does not end within `timeout` seconds.
    """
    with (
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        connection.connect(_process())
        request = {"args": args, "env": dict(env), "timeout": timeout}
        files = [output.fileno(), errors.fileno()]
        socket.send_fds(connection, [json.dumps(request).encode()], files)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as answer:
            code = int(answer.read())
        output.seek(0)
        errors.seek(0)
        done = subprocess.CompletedProcess(args, code, output.read(), errors.read())
    if code == -signal.SIGALRM:
        raise subprocess.TimeoutExpired(done.args, timeout, done.stdout, done.stderr)
    return done


@cache
def _process() -> str:
    """Start the process that is forked, which ends with this one; return its socket's name."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n").replace("@", "\0", 1)


def _serve() -> int:
    """Fork for each command; return in the fork, with the command's exit code."""
    from gateway.cli import check, main  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")  # to a name that nobody has
        listening.listen()
        sys.stdout.write(listening.getsockname().decode().replace("\0", "@", 1) + "\n")
        sys.stdout.flush()
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            with connection:
                if not os.fork():
                    return main(_command(connection))
    return 0


def _command(connection: socket.socket) -> list[str]:
    """Fork once more; return the command's arguments there, and tell here how it ends."""
    request, files, _, _ = socket.recv_fds(connection, 65536, 2)
    while more := connection.recv(65536):
        request += more
    command = json.loads(request)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(str(status).encode())
        os._exit(0)
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(command["env"])
    signal.alarm(command["timeout"])
    return list(command["args"])


if __name__ == "__main__":
    sys.exit(_serve())
