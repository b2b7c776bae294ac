"""The schemes that are known: blocks of data, and code. Each is loaded when it is used."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from gateway.errors import PluginError
from gateway.plugins import OURS, Plugins
from gateway.similar import meant
from gateway.sources.base import Options, Source

#: The blocks of the senders that are data, by name.
_FILES = {file.stem: file for file in Path(__file__).parent.glob("senders/*.toml")}
#: The names of the senders that are data.
BLOCKS = sorted(_FILES)
#: The scheme of a table that is a block itself.
OWN = "hmac"


def text_of(name: str) -> str:
    """Return the block of a sender as its file has it, without the vectors at its end."""
    return _FILES[name].read_text("utf-8").partition("\n[[vectors]]")[0]


SCHEMES = Plugins("sources", "gateway.sources.senders.{}", (OWN, *BLOCKS))


@cache
def find(scheme: str) -> type[Source]:
    """Return the class for the name in a source's `scheme`; raises `PluginError`."""
    if scheme != OWN and scheme not in _FILES:
        return SCHEMES[scheme].load_class(Source)
    from gateway.sources import declared  # imported when it is used: it takes time

    if scheme == OWN:
        return declared.own()
    table = tomllib.loads(text_of(scheme))
    if like := table.pop("like", None):  # the keys of another sender, for those not given here
        table = {**tomllib.loads(text_of(like)), **table}
    return declared.source_of(scheme, table)


def described(scheme: str) -> str:
    """Return what describes a scheme, for messages."""
    if scheme in _FILES:
        return f"`gateway senders show {scheme}`"
    found = SCHEMES[scheme]
    return f"docs/sources.md#{scheme}" if found.package == OURS else f"the package {found.package}"


def options_class(values: Any) -> type[Options]:
    """Return the class of the options in the table of a source, which has a scheme or is a block.

    Raises ValueError where there is no such scheme.
    """
    scheme = _scheme(values)
    if is_known(values):
        try:
            return find(scheme).options_class
        except PluginError as exc:
            raise ValueError(f"scheme: {exc}") from exc
    hint = meant(scheme, SCHEMES, "`gateway senders` lists them")
    what = "there is no such scheme" if scheme else "is needed, or signature and the keys beside it"
    raise ValueError(f"scheme: {what}; {hint}")


def is_known(values: Any) -> bool:
    """Does the table of a source have a known scheme, or is it a block?"""
    scheme = _scheme(values)
    return isinstance(scheme, str) and scheme in SCHEMES


def _scheme(values: Any) -> Any:
    table = values if isinstance(values, dict) else {}
    return table.get("scheme", OWN if "signature" in table else None)


def of(options: Options) -> type[Source]:
    """Return the class of the source that has these options."""
    own: type[Source] | None = getattr(options, "source", None)
    return own or find(options.scheme)
