"""Print a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gateway.cli import COMMANDS, command_line
from gateway.config.strategies import STRATEGIES
from gateway.sources import SCHEMES

#: The values of those options whose choices the parser does not know.
_VALUES = {"--strategy": sorted(STRATEGIES), "--as": sorted(SCHEMES)}

_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
# Words for which the script has no completion are completed as names of files.
_SCRIPT = """\
_gateway() {{
  local given="${{COMP_WORDS[*]:1:COMP_CWORD-1}}" words
  case "${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    *) case "$given " in
{commands}
      *) words="{names}" ;;
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _gateway gateway
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help='eval "$(gateway completion bash)"')


def run(arguments: argparse.Namespace) -> int:
    parser = command_line([name for name in COMMANDS if _runs(name)])
    commands = dict(_commands(parser, ""))
    names = commands.pop("")
    values = dict(_values(parser)) | _VALUES
    # The longer ones first: `deliveries list` before `deliveries`.
    order = sorted(commands, key=len, reverse=True)
    script = _SCRIPT.format(
        values="\n".join(f'    {option}) words="{" ".join(v)}" ;;' for option, v in values.items()),
        commands="\n".join(f'      "{c} "*) words="{" ".join(commands[c])}" ;;' for c in order),
        names=" ".join(names),
    )
    print((_ZSH if arguments.shell == "zsh" else "") + script, end="")
    return 0


def _runs(command: str) -> bool:
    """Tell whether the packages that a command needs are installed; else only its name is known."""
    try:
        COMMANDS[command].load()
    except ModuleNotFoundError as exc:
        if (exc.name or "gateway").partition(".")[0] == "gateway":
            raise
        return False
    return True


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command and subcommand, with the words that may follow it."""
    words: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words += action.choices
            for word, below in action.choices.items():
                yield from _commands(below, f"{name} {word}".strip())
        elif action.option_strings:
            words.append(action.option_strings[-1])
        else:
            words += action.choices or ()
    yield name, words


def _values(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Yield the options with a fixed choice of values, and the values."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _values(below)
        elif action.option_strings and action.choices:
            yield "|".join(action.option_strings), list(action.choices)
