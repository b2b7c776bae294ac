"""What the tests of `gateway check` share: running it, and reading what it prints."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.support import command
from tests.support.environment import inherited
from tests.support.stack import RabbitMQ, Server, Stack

ROUTE = '[[routes]]\npath = "/"\n'
KEYED = ROUTE + 'idempotency = "header:Idempotency-Key"\n'
#: Seconds that a check may take, and those that a busy machine may take for all the rest.
SECONDS, SLOWNESS = 5, 10
#: A Celery app as anybody writes it; {} are further lines.
STOCK = """\
import os, time
from celery import Celery
app = Celery("stock", broker=os.environ["GATEWAY_BROKER_URL"], backend=os.environ.get("BACKEND"))
app.conf.result_expires = 300
{}

@app.task(name="api.core.main")
def main(*args):
    open("ran", "a").close()
    time.sleep(20)
"""
_LINE = re.compile(r"(ok|warn|FAIL|skip) +(.*?)(?:: (.*))?")


class Line(NamedTuple):
    """A line of `gateway check`."""

    status: str
    check: str
    text: str


@dataclass
class Checked:
    """What `gateway check` has printed."""

    code: int
    lines: list[Line] = field(default_factory=list)

    def of(self, check: str) -> Line:
        """Return the only line of what begins with `check`."""
        (line,) = (line for line in self.lines if line.check.startswith(check))
        return line

    def worst(self, check: str) -> Line:
        """Return the first line of what begins with `check` that is not well."""
        return next(
            line for line in self.lines if line.check.startswith(check) and line.status != "ok"
        )

    @property
    def well(self) -> bool:
        return self.code == 0 and {line.status for line in self.lines} == {"ok"}


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `gateway check` to its end, and see that it ends in time and with no traceback."""
    done = command.run("check", *args, env=inherited() | env, timeout=SECONDS + SLOWNESS)
    assert done.stderr == "" and "Traceback" not in done.stdout, done.stdout + done.stderr
    return done


def check(*args: str, **env: str) -> Checked:
    """Run `gateway check`; return what it says."""
    done = run(*args, **env)
    lines = [_LINE.fullmatch(line) for line in done.stdout.splitlines()]
    assert all(lines), done.stdout
    return Checked(done.returncode, [Line(m[1], m[2], m[3] or "") for m in lines])


def servers_at(broker: str, results: str) -> list[str]:
    """Return the options that name broker and result store."""
    return ["--broker", broker, "--result-backend", results]


def write(directory: Path, text: str) -> list[str]:
    """Write a configuration; return the option that names it."""
    path = directory / "gateway.toml"
    path.write_text(text)
    return ["--config", str(path)]


def apply(rabbitmq: RabbitMQ, remedy: str) -> None:
    """Run the `rabbitmqctl` commands that a remedy begins with."""
    (first, *_) = re.split(r" \(|, or |; rabbitmq-diag", remedy[remedy.index("rabbitmqctl ") :])
    for one in first.split(" and "):
        rabbitmq.ctl(*shlex.split(one)[1:])


@contextmanager
def worker_of(
    stack: Stack,
    broker: str,
    directory: Path,
    backend: str,
    lines: str | None = None,
    pool: str = "solo",
    **env: str,
) -> Iterator[Server]:
    """Run a worker: of the app server, or of a stock app with these further `lines`."""
    options = {"pool": pool}
    if lines is not None:
        (directory / "stock.py").write_text(STOCK.format(lines))
        options |= {"app": "stock", "cwd": directory}
        env = {"BACKEND": backend, **env}
    server = stack.worker(broker, backend, env=env, **options)
    try:
        yield server
    finally:
        server.kill()
