"""Write requests as commands that a shell and curl take as they stand, whoever has chosen them."""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Mapping


def curl(method: str, url: str, headers: Mapping[str, str], body: bytes) -> str:
    """Return the command that sends a request with curl."""
    before, data = argument(body, "@-")
    # curl leaves out a header that has nothing after its colon.
    lines = (f"{name}: {value}" if value else f"{name};" for name, value in headers.items())
    given = "".join(f" -H {quoted(line)}" for line in lines)
    # Without -g brackets in the URL would be many requests.
    return f"{before}curl -g -X {quoted(method)}{given} --data-binary {data} {quoted(url)}"


def argument(body: bytes, pipe: str) -> tuple[str, str]:
    """Return what stands before a command, and its argument for a body.

    What would be more than text there comes through a pipe, for which the argument is `pipe`.
    """
    text = body.decode(errors="replace")
    if text.encode() == body and _is_plain(text) and not text.startswith(("@", "-")):
        return "", quoted(text)
    return f"echo {b64encode(body).decode()} | base64 -d | ", pipe


def quoted(text: str) -> str:
    """Quote a text, for bash or zsh where it has a control character.

    That would reach a terminal as a key.
    """
    if _is_plain(text):
        return shlex.quote(text)
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in plain) + "'"


def _is_plain(text: str) -> bool:
    return text.replace("\n", "").isprintable()
