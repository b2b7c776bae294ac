"""Run README's `make install` and `make test` on other machines: releases of Debian, as chroots.

Each machine is made once, below build/matrix. What is committed here is cloned into it, installed
with the network, and tested without it; its log is beside it. `rm -rf build/matrix` has all of them
made anew, of that day's packages. Exit codes: 0 all tests pass on each of them; 1 they do not.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import astuple, dataclass
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "matrix"
#: By name: Debian's suite, and packages that `make test` would not install.
MACHINES = {
    "debian-12": ["bookworm"],
    "debian-13": ["trixie"],
    "debian-testing": ["testing"],
    "debian-testing-valkey": ["testing", "valkey-server"],
}
#: What README asks for, and what pip knows its index by.
PACKAGES = ["python3-venv", "make", "ca-certificates"]
#: How this machine reaches the network: the others have to do the same.
NETWORK = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
VARIABLES = re.compile(r"PIP_\w+|\w+_proxy|SSL_CERT_FILE", re.IGNORECASE)
# All that is mounted and started here ends with the command: the namespaces are its own.
ENTER = """
mount --rbind /dev "$0/dev"
mount -t tmpfs tmpfs "$0/dev/shm"
ip link set lo up
exec chroot "$0" sh -c "cd /src && $1"
"""

log = logging.getLogger("matrix")


@dataclass
class Run:
    """What became of one machine; times are in seconds."""

    machine: str
    python: str = ""
    rabbitmq: str = ""
    redis: str = ""
    install: int = 0
    test: int = 0
    passed: int = 0
    failed: int = 0
    verdict: str = "FAILED"


class Machine:
    """A machine: its root directory and its log."""

    def __init__(self, name: str):
        self.name, self.root = name, BUILD / name
        self._log = BUILD / f"{name}.log"
        self._log.unlink(missing_ok=True)

    def run(self, command: str) -> Run:
        """Make it if it is missing, install, and run `command`, which tests or measures."""
        run = Run(self.name)
        try:
            if not self.root.exists():
                self._make()
            self._clone()
            run.install = self._inside("make install && tests/install-servers.sh")
            run.python, run.rabbitmq, run.redis = self._versions()
            run.test = self._inside(command, "--net")
            run.verdict = "passed"
        except subprocess.CalledProcessError as error:
            log.info("%s: exit code %d, see %s", self.name, error.returncode, self._log)
        # What pytest says at its end, as "== 3 failed, 4072 passed, 1 error in 1080.22s".
        ends = re.findall(r"^=+ (.+) in [\d.]+s", self._log.read_text(errors="replace"), re.M)
        for number, word in re.findall(r"(\d+) (passed|failed|error)", ends[-1] if ends else ""):
            if word == "passed":
                run.passed = int(number)
            else:
                run.failed += int(number)
        return run

    def _make(self) -> None:
        suite, *packages = MACHINES[self.name]
        partial = self.root.with_suffix(".partial")
        self._call("rm", "-rf", "--one-file-system", str(partial))
        argv = ["mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES + packages)}"]
        # As this machine's own apt; and a mirror may have been brought up to date last week.
        options = [
            *_lines("apt-config", "dump", "Acquire::http"),
            'Acquire::Check-Valid-Until "0";',
        ]
        argv += [f"--aptopt={option}" for option in options]
        self._call(*argv, suite, str(partial), _mirror())
        (partial / "etc/hosts").write_text("127.0.0.1 localhost\n")
        if (partial / "usr/bin/valkey-server").exists():  # it then stands for Redis
            (partial / "usr/bin/redis-server").symlink_to("valkey-server")
        # Nothing that is installed later starts as a service.
        policy = partial / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        partial.rename(self.root)

    def _clone(self) -> None:
        for path in filter(os.path.exists, NETWORK):
            shutil.copy(path, f"{self.root}{path}")
        source = self.root / "src"
        self._call(
            "rm", "-rf", "--one-file-system", str(source), *map(str, self.root.glob("tmp/*"))
        )
        # Whoever owns this checkout: it is root that reads it.
        self._call("git", "-c", "safe.directory=*", "clone", "--quiet", str(ROOT), str(source))

    def _inside(self, command: str, *options: str) -> int:
        """Run a command in the clone; return how many seconds it took."""
        began = monotonic()
        log.info("%s: %s", self.name, command)
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *options]
        argv += [f"--mount-proc={self.root}/proc", "sh", "-euc", ENTER, str(self.root), command]
        self._call(*argv)
        return round(monotonic() - began)

    def _call(self, *argv: str) -> None:
        """Run a command with its output in the log; raises CalledProcessError where it fails."""
        env = {name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)}
        env |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "env": env}
        told = 0
        with (
            self._log.open("ab", buffering=0) as kept,
            subprocess.Popen(argv, stdout=subprocess.PIPE, **options) as process,
        ):
            for line in process.stdout:
                kept.write(line)
                done = re.search(rb"\[ *(\d+)%\]\s*$", line)
                if done and int(done[1]) >= told + 10:
                    told = int(done[1])
                    log.info("%s: %d %%", self.name, told)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, argv)

    def _versions(self) -> tuple[str, str, str]:
        """Return the versions of Python, and of RabbitMQ and Redis or Valkey by their packages."""
        (python,) = _lines("chroot", str(self.root), "python3", "-V")
        query = ["dpkg-query", f"--root={self.root}", "--show"]
        lines = _lines(*query, "--showformat=${Package} ${source:Upstream-Version}\\n")
        versions = dict(line.split() for line in lines)
        valkey = versions.get("valkey-server")
        redis = f"Valkey {valkey}" if valkey else f"Redis {versions['redis-server']}"
        return python.removeprefix("Python "), versions["rabbitmq-server"], redis


def _lines(*argv: str) -> list[str]:
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def _mirror() -> str:
    """Return the mirror that this machine's own packages come from."""
    wanted = ("--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
    mirrors = _lines("apt-get", "indextargets", *wanted)
    if not mirrors:
        sys.exit("this machine has no mirror of Debian, or has not read it: apt-get update")
    return mirrors[0]


def _table(runs: list[Run]) -> str:
    cells = ["machine", "Python", "RabbitMQ", "Redis", "install", "test", "passed", "failed", ""]
    rows = [cells, *([str(cell) for cell in astuple(run)] for run in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help=", ".join(MACHINES))
    parser.add_argument("--pytest", default="", metavar="ARGS", help="the ARGS of `make test`")
    parser.add_argument("--run", metavar="COMMAND", help="another command than `make test`")
    chosen = parser.parse_args()
    if unknown := set(chosen.machines) - set(MACHINES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MACHINES)}")
    if os.geteuid():
        sys.exit("make matrix has to be run by root, as it makes chroots and enters them")
    if not shutil.which("mmdebstrap"):
        sys.exit("please install: mmdebstrap")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    BUILD.mkdir(parents=True, exist_ok=True)
    command = chosen.run or f"make test ARGS={shlex.quote(chosen.pytest)}"
    runs = [Machine(name).run(command) for name in chosen.machines or MACHINES]
    log.info("seconds, and tests:\n%s", _table(runs))
    return int(any(run.verdict == "FAILED" for run in runs))


if __name__ == "__main__":
    sys.exit(main())
