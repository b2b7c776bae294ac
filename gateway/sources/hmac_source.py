"""Base of the schemes whose senders put an HMAC into one header."""

from __future__ import annotations

import hmac
from base64 import b64encode
from binascii import hexlify
from collections.abc import Callable

from gateway.delivery import Request
from gateway.sources.base import Options, Source
from gateway.sources.signatures import check, header, mac, raw, secrets

_ENCODINGS: dict[str, Callable[[bytes], bytes]] = {"hex": hexlify, "base64": b64encode}


class HMACSource(Source):
    """Sends ``prefix + encode(HMAC(secret, signed))`` in the header named `header`.

    A scheme passes the signed bytes to `check` and to `signature`.
    """

    header: str
    #: Another name of the header, which is used where the first is missing; "": there is none.
    other_header: str = ""
    algorithm: str = "sha256"
    prefix: bytes = b""
    #: ``hex`` or ``base64``.
    encoding: str = "hex"

    def __init__(self, options: Options, public_url: str = ""):
        super().__init__(options, public_url)
        self._encode = _ENCODINGS[self.encoding]
        self._keys = [hmac.new(key, digestmod=self.algorithm) for key in secrets(options)]

    def check(self, request: Request, *signed: bytes) -> None:
        """Raise `Unverified` unless the header's signature was made with one of the secrets."""
        name = self.header
        if self.other_header and name not in request.headers:
            name = self.other_header
        given = raw(header(request, name))
        check([given], (self._signature(key, signed) for key in self._keys))

    def signature(self, *signed: bytes) -> dict[str, str]:
        """Return the header that the sender makes with the first secret."""
        return {self.header: self._signature(self._keys[0], signed).decode()}

    def _signature(self, key: hmac.HMAC, signed: tuple[bytes, ...]) -> bytes:
        return self.prefix + self._encode(mac(key, signed))
