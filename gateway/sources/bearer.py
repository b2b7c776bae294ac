"""Base of the schemes whose senders send the secret itself."""

from __future__ import annotations

from typing import ClassVar

from gateway.delivery import Request
from gateway.sources.base import Options, Source
from gateway.sources.signatures import check, header, raw, secrets


class BearerSource(Source):
    """Sends the secret in the header named `header`, and signs nothing.

    Anybody who can read one request can send others, so such a route needs TLS on the whole way.
    """

    header: ClassVar[str]

    def __init__(self, options: Options, public_url: str = ""):
        super().__init__(options, public_url)
        self._secrets = secrets(options)

    @property
    def covers_body(self) -> bool:
        return False

    def check(self, request: Request) -> None:
        """Raise `Unverified` unless the header has one of the secrets."""
        check([raw(header(request, self.header))], self._secrets)

    def token(self) -> dict[str, str]:
        """Return the header that the sender makes with the first secret."""
        return {self.header: self._secrets[0].decode("latin-1")}
