"""The command line: one file per command. Only this package prints and ends the process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection
from importlib import import_module

from gateway.errors import ConfigError, GatewayError
from gateway.similar import similar

#: Each command is a module of this package, with the first line of its docstring. Only the module
#: of the command that runs is imported.
COMMANDS = {
    "serve": "Serve HTTP and relay requests as Celery tasks.",
    "dev": "Run everything on this machine: broker, result store, one worker, the gateway.",
    "check": "Check configuration, servers, workers and tasks: one line each, with the remedy.",
    "send": "Sign a webhook as its sender would, encrypt it where the scheme does so, and send it.",
    "deliveries": "List, show, watch and replay what was received, where `journal` is set.",
    "forward": "Send deliveries of a gateway to a local server: those that come, or kept ones.",
    "capacity": "Say how many gateways, workers, queues and connections a rate needs, and what "
    "breaks first.",
    "senders": "List the senders that are known, or print the block of one.",
    "strategies": "List the waiting strategies.",
    "completion": "Print a script that completes commands and options in a shell.",
}


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Returns the exit code: 0 success, 1 an error that the user can correct, 2 a package is missing
    (the app server's installation has no Tornado), 130 interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0].startswith("-") and argv[0] not in ("-h", "--help", "--version"):
        argv = ["serve", *argv]
    try:
        arguments, unknown = command_line(argv[:1]).parse_known_args(argv)
        if unknown:
            _refuse(arguments.parser, unknown)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as exc:
        missing = (exc.name or "gateway").partition(".")[0]
        if missing == "gateway":
            raise
        extra = "dev" if argv[:1] == ["dev"] else "serve"
        print(f"gateway: no {missing}: pip install 'CHECKOUT-OR-WHEEL[{extra}]'", file=sys.stderr)
        return 2
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


def _refuse(command: argparse.ArgumentParser, unknown: list[str]) -> None:
    """End the process, as no option of the `command` has these names; exit code 2."""
    options = [option for action in command._actions for option in action.option_strings]
    near = similar(unknown[0].partition("=")[0], options)
    hint = f"; did you mean {near}?" if near else ""
    command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def command_line(names: Collection[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of all commands, with the options of those in `names`."""
    from gateway import __version__

    parser = argparse.ArgumentParser(
        prog="gateway",
        description="An HTTP-to-Celery gateway for webhooks.",
        epilog="An option without a command means `serve`.",
    )
    parser.add_argument("--version", action="version", version=f"gateway {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name in names:
            module = import_module(f"gateway.cli.{name}")
            module.options(command)
            command.set_defaults(run=module.run, parser=command)
    return parser
