"""Check where requests are sent, and make the one that a webhook's sender would send."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from gateway.answer import JSON
from gateway.errors import BadRequest, ConfigError, GatewayError
from gateway.sources.base import Draft, Signed, Source
from gateway.sources.wechat_message import XML

_WRITTEN = (
    "is written as http://HOST:PORT/PATH or https://..., in ASCII and without spaces: xn--... in "
    "the host, %.. in the path; a port is 1 to 65535"
)
FORM = "application/x-www-form-urlencoded"


class Outgoing(NamedTuple):
    """A complete request: URL, headers and body."""

    url: str
    headers: dict[str, str]
    body: bytes


def checked_url(name: str, text: str) -> str:
    """Return a URL with a path and without a fragment. Raises `ConfigError` unless it is of HTTP.

    The error does not quote it, as it may have a password.
    """
    try:
        parts = urlsplit(text)
        well = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        well = False
    if not well or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError([f"{name}: {_WRITTEN}"])
    return parts._replace(path=parts.path or "/", fragment="").geturl()


def without_account(url: str) -> str:
    """Return a URL without user and password, so that it can be shown."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


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
