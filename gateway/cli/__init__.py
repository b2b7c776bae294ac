"""The command line: one file per command. Only this package prints and ends the process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from importlib import import_module

from gateway.errors import ConfigError, GatewayError

#: Each command is a module of this package; only the module of the command that runs is imported.
COMMANDS = ("serve", "dev", "check", "send", "deliveries", "strategies", "completion")


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Returns the exit code: 0 success, 1 an error that the user can correct, 2 a package is missing
    (the app server's installation has no Tornado), 130 interrupted.
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
    except BrokenPipeError:  # the reader, for example `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def command_line(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser for the commands called `names`."""
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
