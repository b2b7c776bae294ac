"""List the senders that are known, or print the block of one."""

from __future__ import annotations

import argparse

from gateway.errors import ConfigError
from gateway.similar import meant
from gateway.sources import BLOCKS, OWN, SCHEMES, described, find, text_of
from gateway.sources.base import Options


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=["show"], help="show: print a block")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the sender")


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "show":
        print(_shown(arguments.name or ""), end="")
    else:
        for name in sorted(SCHEMES):
            print(f"{name:<24} {_needs(name)}")
    return 0


def _shown(name: str) -> str:
    if name in BLOCKS:
        return text_of(name)
    if name in SCHEMES:
        what = "the keys of your own table" if name == OWN else "code"
        raise ConfigError([f"show: {name} is {what}, and no block; {described(name)} describes it"])
    hint = meant(name, SCHEMES, "`gateway senders` lists them")
    raise ConfigError([f"show: there is no sender {name or 'without a name'}; {hint}"])


def _needs(name: str) -> str:
    """Say what a source of the scheme needs in the configuration."""
    source = find(name)
    own = source.options_class.model_fields.keys() - Options.model_fields.keys()
    more = ["the keys of a block"] if name == OWN else sorted(own)
    public = ["public_url"] if source.needs_public_url else []
    return ", ".join(["secrets", *more, *public])
