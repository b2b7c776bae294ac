"""Print a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gateway.config.strategies import STRATEGIES
from gateway.sources import SCHEMES

#: What an option's value may be, beside what the parser knows.
_VALUES = {"--strategy": sorted(STRATEGIES), "--as": sorted(SCHEMES)}

_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
# What nothing here completes is completed as a file's name.
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
    from gateway.cli import command_line

    parser = command_line()
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


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command, the commands below it, and the words that may follow each."""
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
    """Yield the options whose values are a few words."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _values(below)
        elif action.option_strings and action.choices:
            yield "|".join(action.option_strings), list(action.choices)
