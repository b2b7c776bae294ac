"""Certificates that are right, and such as are wrong in one way each."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gateway.config.settings import TLS


class Authority:
    """Issues certificates, as PEM files in `home`."""

    def __init__(self, home: Path, name: str):
        self._home, self._ca = home, home / f"{name}.pem"
        self._make(name, "keyUsage=critical,keyCertSign")

    def _make(self, name: str, *extensions: str, signer: Path | None = None) -> tuple[Path, Path]:
        cert, key = self._home / f"{name}.pem", self._home / f"{name}.key"
        argv = ["openssl", "req", "-x509", "-nodes", "-days", "1", "-subj", f"/CN={name}"]
        argv += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        argv += ["-out", str(cert), "-keyout", str(key)]
        if signer:
            argv += ["-CA", str(signer), "-CAkey", str(signer.with_suffix(".key"))]
        for extension in extensions:
            argv += ["-addext", extension]
        subprocess.run(argv, check=True, capture_output=True)
        return cert, key

    def tls(self, name: str) -> TLS:
        """Issue a certificate to 127.0.0.1 and trust its issuer."""
        extensions = "basicConstraints=critical,CA:FALSE", "subjectAltName=IP:127.0.0.1"
        cert, key = self._make(name, *extensions, signer=self._ca)
        return TLS(ca=self._ca, cert=cert, key=key)


class Certificates:
    """Of a server and a client, by one authority, and of a stranger by another."""

    def __init__(self, home: Path):
        ours = Authority(home, "ours")
        self.server, self.client = ours.tls("server"), ours.tls("client")
        self.stranger = Authority(home, "theirs").tls("stranger")
        #: What a client may have got wrong.
        self.mistakes = {
            "a foreign CA": self.client.model_copy(update={"ca": self.stranger.ca}),
            "no certificate": self.client.model_copy(update={"cert": None, "key": None}),
            "a foreign certificate": self.stranger.model_copy(update={"ca": self.client.ca}),
        }
