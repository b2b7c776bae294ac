"""The two ends of each scheme's example, and the requests between them."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from gateway.delivery import Request
from gateway.errors import Unverified
from gateway.sources import of, options_class
from gateway.sources.base import Draft, Signed, Source
from tests.unit.sources.examples import EXAMPLES, NOW, PUBLIC_URL
from tests.unit.sources.messages import source

URL = "https://hooks.example.com/in/one?a=b"


def sender(scheme: str, **changes: Any) -> Source:
    """Return the sending end with the example's options, changed."""
    return source(scheme, PUBLIC_URL, **{**EXAMPLES[scheme].options, **changes})


def receiver(scheme: str, **changes: Any) -> Source:
    """Return the receiving end with the example's options, changed."""
    return sender(scheme, **{**(EXAMPLES[scheme].receiver or {}), **changes})


@cache
def ends(scheme: str) -> tuple[Source, Source]:
    """Return both ends as they are, for tests that ask often: some keys take long to be read."""
    return sender(scheme), receiver(scheme)


def own(**block: Any) -> Source:
    """Return the source of a block of one's own."""
    values = {"secrets": "key", "signature": "header:X-Sig", **block}
    options = options_class(values).model_validate(values)
    return of(options)(options, PUBLIC_URL)


def send(scheme: str, body: bytes | None = None, at: float = NOW, **changes: Any) -> Request:
    """Return the request, received now, with the example's body or another, signed then."""
    example = EXAMPLES[scheme]
    body = example.body if body is None else body
    draft = Draft(body, URL, at, example.event, example.identity)
    source = sender(scheme, **changes) if changes else ends(scheme)[0]
    return received(source.sign(draft))


def received(signed: Signed, url: str = URL) -> Request:
    """Return `signed` as it arrives now."""
    parts = urlsplit(url)
    query = "&".join(filter(None, [parts.query, urlencode(signed.query)]))
    headers = {key.lower(): value for key, value in signed.headers.items()}
    return Request("POST", parts.path, query, headers, signed.body, "192.0.2.1", 0.0, NOW)


def unverified(source: Source, request: Request) -> None:
    """See that `source` refuses a request as one that nobody has proved."""
    with pytest.raises(Unverified):
        source.verify(request)
