"""The command line: a file in `commands` each. Only this package prints."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from gateway.errors import ConfigError, GatewayError
from gateway.plugins import Plugins, others
from gateway.similar import meant, similar

#: A command is a module with a docstring, ``options(parser)``, and ``run(arguments)``, which
#: returns the exit code. Only the module of the command that runs is imported.
COMMANDS = Plugins("commands", "gateway.cli.commands.{}")
#: Why something cannot be written: its reader, for example `head`, is gone, or there is no room.
_UNWRITTEN = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Returns the exit code: 0 success, 1 an error that the user can correct, 2 a package is missing
    (the app server's installation has no Tornado) or too old, 130 interrupted.
    """
    _open_streams()
    argv = sys.argv[1:] if argv is None else argv
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except ModuleNotFoundError as exc:
        missing = (exc.name or "gateway").partition(".")[0]
        if missing == "gateway":
            raise
        extra = "dev" if argv[:1] == ["dev"] else "serve"
        tell(f"no {missing}: pip install 'CHECKOUT-OR-WHEEL[{extra}]'")
        return 2
    except GatewayError as exc:
        for problem in exc.problems if isinstance(exc, ConfigError) else [exc]:
            tell(str(problem))
        return 1
    except OSError as exc:
        if exc.errno not in _UNWRITTEN:
            raise
        if exc.errno != errno.EPIPE:
            tell(f"its output cannot be written: {exc.strerror}; make room, or write elsewhere")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _open_streams() -> None:
    """Open the standard streams that are closed, and let the output take any character.

    Otherwise a socket would get the number of such a stream, and with it what is printed.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(argv: list[str]) -> int:
    for each in argv:
        if each.encode(errors="replace").decode() != each:
            raise GatewayError(f"{each!a} is not UTF-8: set the terminal to UTF-8")
    if argv[:1] == ["--version"]:
        return _print_version(argv[1:])
    if argv and argv[0].startswith("-") and argv[0] not in ("-h", "--help"):
        argv = ["serve", *argv]
    if argv[:1] == ["serve"]:
        # A request to reload would end what has no handler yet: it waits until there is one.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    if old := [*_too_old()]:
        for problem in old:
            tell(problem)
        return 2
    arguments, unknown = command_line(argv[:1]).parse_known_args(argv)
    if unknown:
        _refuse(arguments.parser, unknown)
    code: int = arguments.run(arguments)
    return code


def tell(text: str) -> None:
    """Print a line, or several, to standard error."""
    with suppress(OSError):  # nobody reads it
        lines = f"gateway: {text}".split("\n")
        print(*map(shown, lines), sep="\n", file=sys.stderr, flush=True)


def shown(text: str) -> str:
    """Return `text` with escapes for characters that a terminal would interpret."""
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


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
                        f"{need.name} {found} is installed, and it has to be "
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
        self.exit(2, f"{self.prog}: {message}; `{self.prog} --help` lists what there is\n")


#: The settings that are options, with their metavars and what they are.
SETTINGS = {
    "strategy": ("NAME", "how results are awaited (redis); `gateway strategies` lists them"),
    "config": ("FILE", "the configuration, as gateway.toml (GATEWAY_CONFIG)"),
    "host": ("HOST", "address to listen on (127.0.0.1)"),
    "port": ("PORT", "port to listen on (8000)"),
    "uds": ("PATH", "UNIX socket, instead of a port"),
    "processes": ("N", "serving processes (1)"),
    "broker": ("URL", "amqp:// or amqps://"),
    "result_backend": ("URL", "redis://, rediss:// or sentinel://"),
    "timeout": ("SECONDS", "a request's deadline (10)"),
    "max_in_flight": ("N", "per process (10000)"),
    "admin_host": ("HOST", "for the pages and health (127.0.0.1)"),
    "admin_port": ("PORT", "for the pages and health (9464); 0: off"),
    "archive_url": ("URL", "postgresql:// or sqlite:///"),
    "log_format": ("text|json", "how log lines are written (text)"),
    "loop": ("auto|asyncio|uvloop", "the event loop (auto: uvloop if it is installed)"),
}


def add_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add an option for each of these `SETTINGS`; the configuration reads its value."""
    for name in names:
        metavar, text = SETTINGS[name]
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            dest="broker_url" if name == "broker" else name,
            metavar=metavar,
            type=Path if metavar in ("FILE", "PATH") else str,
            choices=metavar.split("|") if "|" in metavar else None,
            help=text,
        )


def _refuse(command: argparse.ArgumentParser, unknown: list[str]) -> None:
    """End the process, as no option of the `command` has these names; exit code 2."""
    options = [option for action in command._actions for option in action.option_strings]
    option, lists = unknown[0].partition("=")[0], f"`{command.prog} --help` lists what there is"
    hint = meant(option, options, lists)
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
    chosen = [name for name in names if name[:1] != "-" and name in COMMANDS]
    for name in [*COMMANDS.own, *(name for name in chosen if name not in COMMANDS.own)]:
        summary = COMMANDS[name].summary()
        command = commands.add_parser(name, help=summary, description=summary)
        if name in chosen:
            module = COMMANDS[name].load()
            with COMMANDS[name].named():
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
