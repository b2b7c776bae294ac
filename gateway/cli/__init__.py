"""The command line: a file in `commands` each. Only this package prints."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NoReturn

from gateway.errors import ConfigError, GatewayError
from gateway.plugins import Plugins, others
from gateway.similar import similar

#: A command is a module with a docstring, ``options(parser)``, and ``run(arguments)``, which
#: returns the exit code. Only the module of the command that runs is imported.
COMMANDS = Plugins("commands", "gateway.cli.commands.{}")


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Returns the exit code: 0 success, 1 an error that the user can correct, 2 a package is missing
    (the app server's installation has no Tornado) or too old, 130 interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    for each in argv:
        if each.encode(errors="replace").decode() != each:
            print(f"gateway: {each!a} is not UTF-8: set the terminal to UTF-8", file=sys.stderr)
            return 1
    if argv[:1] == ["--version"]:
        return _print_version(argv[1:])
    if argv and argv[0].startswith("-") and argv[0] not in ("-h", "--help"):
        argv = ["serve", *argv]
    try:
        if old := [*_too_old()]:
            print(*old, sep="\n", file=sys.stderr)
            return 2
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
    except GatewayError as exc:
        for problem in exc.problems if isinstance(exc, ConfigError) else [exc]:
            print(f"gateway: {problem}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, for example `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _too_old() -> Iterator[str]:
    """Yield a problem for each package that is installed in an older version than is needed."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    with suppress(PackageNotFoundError):  # of this package: what it needs is not known
        for need in map(Requirement, requires("celery-gateway") or ()):
            if need.marker and not need.marker.evaluate({"extra": "serve"}):
                continue
            with suppress(PackageNotFoundError):  # where it is imported, that is said
                found, least = version(need.name), (e for e in need.specifier if e.operator == ">=")
                if not all(each.contains(found, prereleases=True) for each in least):
                    yield (
                        f"gateway: {need.name} {found} is installed, and it has to be "
                        f"{need.specifier}: pip install 'CHECKOUT-OR-WHEEL[serve]', in an "
                        f"environment of its own if something else needs this {need.name}; "
                        "docs/versions.md says more"
                    )


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one line, with the name that was probably meant."""

    def error(self, message: str) -> NoReturn:
        text, _, choices = message.partition(" (choose from ")
        near = similar(text.rpartition(" ")[2].strip("'"), re.findall(r"[\w-]+", choices))
        if near:
            self.exit(2, f"{self.prog}: {text}; did you mean {near}?\n")
        message = message.replace("invalid int value: ", "has to be a whole number, and not ")
        message = re.sub(r"invalid \w+ value: ", "has to be a number, and not ", message)
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` lists what there is\n")


def _refuse(command: argparse.ArgumentParser, unknown: list[str]) -> None:
    """End the process, as no option of the `command` has these names; exit code 2."""
    options = [option for action in command._actions for option in action.option_strings]
    near = similar(unknown[0].partition("=")[0], options)
    hint = f"did you mean {near}?" if near else f"`{command.prog} --help` lists what there is"
    command.exit(2, f"{command.prog}: unrecognized arguments: {' '.join(unknown)}; {hint}\n")


def command_line(names: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser of the gateway's own commands, with the options of those in `names`.

    A command of another package is in the parser if `names` has it: to look for all of them would
    take longer than everything else that `gateway --help` does.
    """
    parser = _Parser(
        prog="gateway",
        description="An HTTP-to-Celery gateway for webhooks.",
        epilog="An option without a command means `serve`. Other packages may bring further "
        "commands: `gateway --version --plugins` lists them.",
    )
    # `main` has read it already where it comes first.
    parser.add_argument("--version", action="store_true", help="print it; --plugins: list plugins")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    known = [name for name in names if name[:1] != "-" and name in COMMANDS]
    for name in [*COMMANDS.own, *(name for name in known if name not in COMMANDS.own)]:
        summary = COMMANDS[name].summary()
        command = commands.add_parser(name, help=summary, description=summary)
        if name in known:
            module = COMMANDS[name].load()
            module.options(command)
            command.set_defaults(run=module.run, parser=command)
    return parser


def _print_version(argv: list[str]) -> int:
    from gateway import __version__

    parser = _Parser(prog="gateway --version", description="Print the version.")
    parser.add_argument(
        "--plugins",
        action="store_true",
        help="also what other packages bring: its name, its kind, the package, the version",
    )
    arguments = parser.parse_args(argv)
    print(f"gateway {__version__}")
    for each in others() if arguments.plugins else ():
        print(f"{each.name:<23} {each.kind:<10} {each.package} {each.version}")
    return 0
