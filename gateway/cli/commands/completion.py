"""Print a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from gateway.cli import COMMANDS, command_line
from gateway.config.strategies import STRATEGIES
from gateway.sources import SCHEMES

#: The values of those options whose choices the parser does not know.
_VALUES = {"--strategy": sorted(STRATEGIES), "--as": sorted(SCHEMES)}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help='eval "$(gateway completion bash)"')


def run(arguments: argparse.Namespace) -> int:
    parser = command_line([name for name in COMMANDS if _runs(name)])
    for action in _options(parser):
        action.choices = _VALUES.get(action.option_strings[-1], action.choices)
        if action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, arguments.shell))
    return 0


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options of all commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _options(below)
        elif action.option_strings:
            yield action


def _runs(command: str) -> bool:
    """Tell whether the packages that a command needs are installed; else only its name is known."""
    try:
        COMMANDS[command].load()
    except ModuleNotFoundError as exc:
        if (exc.name or "gateway").partition(".")[0] == "gateway":
            raise
        return False
    return True
