"""Compile the places and the texts of a block to functions that read a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gateway.errors import MethodNotAllowed
from gateway.sources.block import PLACEHOLDER, Block
from gateway.sources.keys import KEY, NAME
from gateway.sources.places import Reader, Seen, bytes_reader, first, reader


class Readers:
    """Makes the functions that read what a block names.

    `texts` are the secrets beside public keys that are fetched, `options` those of the source.
    """

    def __init__(self, block: Block, options: Any, public_url: str, texts: Sequence[bytes]):
        self.block, self.texts, self._options = block, texts, options
        self._base_url = public_url.rstrip("/")
        # A body with one member to read need not always be parsed.
        of_json = {text for _, text in block.texts if text.startswith("json:")}
        self._only, self.parses = len(of_json) == 1, len(of_json) > 1

    def first(self, texts: Iterable[str]) -> Reader:
        """Return a function that reads the first value that is at one of the places."""
        places = [place for text in texts for place in self.block.places(text)]
        return first([reader(place, self._base_url, self._only) for place in places])

    def as_bytes(self, text: str) -> Callable[[Seen], bytes]:
        if text in ("key", "name"):
            return constant(KEY if text == "key" else NAME)
        if text == "token":
            return lambda _seen: self.verify_token().encode()
        if text == "audience":
            if audience := getattr(self._options, "audience", ""):
                return constant(audience.encode())
            text = "url|noquery"
        places = self.block.places(text)
        return first([bytes_reader(place, self._base_url) for place in places])

    def filled(self, text: str) -> Callable[[Seen], list[bytes]]:
        """Return a function that fills in a text, once for each secret if it has one in it."""
        reads = pieces(text, self.as_bytes)

        def fill(seen: Seen) -> list[bytes]:
            parts = [read(seen) for read in reads]
            if KEY not in parts:
                return [b"".join(parts)]
            return [b"".join([s if part is KEY else part for part in parts]) for s in self.texts]

        return fill

    def verify_token(self) -> str:
        """Return the token of the handshake. Raises `MethodNotAllowed` where there is none."""
        token = getattr(self._options, "verify_token", None)
        if token is None:
            raise MethodNotAllowed(
                "This source takes no handshake: it has no verify_token.", headers={"Allow": "POST"}
            )
        return str(token.get_secret_value())


def constant(value: bytes) -> Callable[[Seen], bytes]:
    return lambda _seen: value


def pieces(
    text: str, read: Callable[[str], Callable[[Seen], bytes]]
) -> list[Callable[[Seen], bytes]]:
    """Return what reads each piece of a text: the places in it by `read`."""
    pieces = enumerate(PLACEHOLDER.split(text))
    return [read(piece) if i % 2 else constant(piece.encode()) for i, piece in pieces if piece]
