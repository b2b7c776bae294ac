"""TLS settings for connections to the broker and the stores."""

from __future__ import annotations

import ssl

from pydantic import model_validator

from gateway.model import File, Model


class TLS(Model):
    """The paths of PEM files for amqps:// and rediss://."""

    ca: File | None = None
    """(default: the system's) a PEM file of authorities"""
    cert: File | None = None
    """the client's own certificate, a PEM file"""
    key: File | None = None
    """the key of `cert`, a PEM file"""
    verify: bool = True
    """the certificate has to come from such an authority and name the URL's host; false: every
    certificate is accepted"""

    @model_validator(mode="after")
    def _usable(self) -> TLS:
        for name in ("ca", "cert", "key"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ValueError(f"{name}: no such file: {path}")
        if self.key and not self.cert:
            raise ValueError("key: needs a certificate; set cert, too")
        if names := [name for name in ("ca", "cert", "key") if getattr(self, name)]:
            try:
                self.context()
            except OSError as exc:  # one of OpenSSL is one, too
                raise ValueError(
                    f"{', '.join(names)}: {exc}; name PEM files that this account may read, a key "
                    "without a password, and the certificate of that key"
                ) from exc
        return self

    def context(self) -> ssl.SSLContext:
        """Return the client's TLS context; raises OSError where a file cannot be used."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            context.load_cert_chain(self.cert, self.key, "")  # it would ask for a password
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
