"""Make the request that a webhook's sender would send, and the curl command for it."""

from __future__ import annotations

import shlex
from base64 import b64encode
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


def curl_line(outgoing: Outgoing) -> str:
    """Return the shell command that sends `outgoing` with curl."""
    headers = [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in outgoing.headers.items()]
    try:
        text = outgoing.body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # an argument of a command cannot have a NUL
        before = f"echo {b64encode(outgoing.body).decode()} | base64 -d | "
        body = "--data-binary @-"
    else:
        before, body = "", f"--data-raw {shlex.quote(text)}"
    return f"{before}{' '.join(['curl', *headers, body, shlex.quote(outgoing.url)])}"


def _content_type(signed: Signed) -> str:
    return {b"{": JSON, b"[": JSON, b"<": XML}.get(signed.body[:1], FORM)
