"""The command line: one file per command; only here is the environment read, printed, exited."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from importlib import import_module

from gateway.errors import ConfigError, GatewayError

#: Each is a module here; only the one that is run is imported.
COMMANDS = ("serve", "dev", "check", "send", "deliveries", "strategies", "completion")


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Returns the exit code: 0 well, 1 a user's mistake, 2 a package is missing, as beside a worker,
    130 interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0].startswith("-") and argv[0] not in ("-h", "--help", "--version"):
        argv = ["serve", *argv]
    try:
        parser = command_line(argv[:1] if argv and argv[0] in COMMANDS else COMMANDS)
    except ModuleNotFoundError as exc:
        missing = (exc.name or "gateway").partition(".")[0]
        if missing == "gateway":
            raise
        print(f"gateway: no {missing}: pip install 'celery-gateway[serve]'", file=sys.stderr)
        return 2
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except ConfigError as exc:
        for problem in exc.problems:
            print(f"gateway: {problem}", file=sys.stderr)
        return 1
    except GatewayError as exc:
        print(f"gateway: {exc}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # who reads, `head` for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def command_line(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return what parses the command line of the commands called `names`."""
    from gateway import __version__

    parser = argparse.ArgumentParser(
        prog="gateway",
        description="An HTTP-to-Celery gateway for webhooks.",
        epilog="An option without a command means `serve`.",
    )
    parser.add_argument("--version", action="version", version=f"gateway {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in names:
        module = import_module(f"gateway.cli.{name}")
        summary = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.options(command)
        command.set_defaults(run=module.run)
    return parser
