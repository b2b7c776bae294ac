"""Make the request that a webhook's sender would send."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from gateway.answer import JSON
from gateway.errors import BadRequest, GatewayError
from gateway.sources.base import Draft, Signed, Source
from gateway.sources.wechat_message import XML

FORM = "application/x-www-form-urlencoded"


class Outgoing(NamedTuple):
    """A complete request: URL, headers and body."""

    url: str
    headers: dict[str, str]
    body: bytes


def signed_request(source: Source, draft: Draft) -> Outgoing:
    """Sign `draft` with `source`. Raises `GatewayError` where it cannot be signed."""
    try:
        signed = source.sign(draft)
    except BadRequest as exc:
        raise GatewayError(f"the body cannot be signed: {exc}") from exc
    parts = urlsplit(draft.url)
    query = "&".join(filter(None, [parts.query, urlencode(signed.query)]))
    headers = {"content-type": _content_type(signed), **signed.headers}
    return Outgoing(parts._replace(query=query).geturl(), headers, signed.body)


def _content_type(signed: Signed) -> str:
    return {b"{": JSON, b"[": JSON, b"<": XML}.get(signed.body[:1], FORM)
