"""Acme, which signs its body and the time."""

from __future__ import annotations

from gateway.sources.declared import source_of

Acme = source_of(
    "acme",
    {
        "title": "Acme",
        "sources": ["an example"],
        "signature": "header:x-acme-signature",
        "algorithm": "hmac-sha256",
        "signed": "{time}.{body}",
        "time": "header:x-acme-time",
        "identity": "json:/id",
        "event": "json:/type",
        "deadline": 4.5,
    },
)
