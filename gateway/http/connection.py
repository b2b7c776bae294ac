"""Tornado's HTTP/1 connection, with faster code for usual headers and bodies.

The faster code accepts only what Tornado's own code would accept with the same meaning; everything
else is left to Tornado. https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

import re
from collections.abc import Awaitable

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPMessageDelegate

from gateway.errors import BadRequest, HeaderTooLarge
from gateway.http.read_buffer import Refused, bare_line_end
from gateway.http.stream import Stream

#: The most header lines that a request may have.
MAX_HEADERS = 256

# RFC 9110, 5.1 and 5.5: a token, a colon, and neither control characters nor line ends. The
# possessive quantifiers do not backtrack.
_field_lines = re.compile(
    r"(?<=\n)([!#$%&'*+\-.^_`|~0-9A-Za-z]++):([^\x00-\x08\x0a-\x1f\x7f]*+)\r\n"
).findall


class Headers(dict[str, str]):
    """Header fields by their names in lower case, repeated ones joined by ``", "``.

    A look-up ignores the case, because Tornado spells names with capitals.
    """

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and dict.__contains__(self, name.lower())

    def __getitem__(self, name: str) -> str:
        return dict.__getitem__(self, name.lower())

    def get(  # type: ignore[override]
        self, name: str, default: str | None = None
    ) -> str | None:
        return dict.get(self, name.lower(), default)

    @classmethod
    def of(cls, lines: list[tuple[str, str]]) -> Headers:
        """Make headers from lines (name, value) whose names are in lower case."""
        headers = cls(lines)
        if len(headers) != len(lines):
            for name in headers:
                headers[name] = ", ".join(value for other, value in lines if other == name)
        return headers


class Connection(HTTP1Connection):
    """One request and its answer on a stream; `remote` is the peer's address."""

    def __init__(self, stream: Stream, params: HTTP1ConnectionParameters, remote: str):
        # The stream has those methods of an IOStream that this class uses.
        super().__init__(stream, False, params)  # type: ignore[arg-type]
        self.remote = remote
        self._bytes = stream

    @property
    def last(self) -> bool:
        """Does the connection end after this request, because the client wants that?"""
        return self._disconnect_on_finish

    def end(self, last: bool) -> None:
        """Finish the request, whose answer was given to the stream; close if it is the `last`."""
        if last:  # Tornado itself closes only after a request that was not read to its end
            self._disconnect_on_finish = True
        self.finish()

    def _parse_headers(  # type: ignore[override] # ours are a dict
        self, data: bytes
    ) -> tuple[str, Headers]:
        text = data.decode("latin1")
        start = text.find("\r\n")
        lines = _field_lines(text, start + 2, len(text) - 2)
        if len(lines) == text.count("\n") - 2:  # all but the first line and the empty one
            fields = [(name.lower(), value.strip(" \t")) for name, value in lines]
        elif bare_line_end(data):
            raise Refused(BadRequest("A header line does not end in CR LF."))
        else:
            first, headers = super()._parse_headers(data)
            start, text = len(first), first
            fields = [(name.lower(), value) for name, value in headers.get_all()]
        if len(fields) > MAX_HEADERS:
            raise Refused(HeaderTooLarge(f"There are more than {MAX_HEADERS} header lines."))
        return text[:start], Headers.of(fields)

    def _read_body(  # type: ignore[override]
        self, code: int, headers: Headers, delegate: HTTPMessageDelegate
    ) -> Awaitable[None] | None:
        # The delegate has already refused a length that is not a number.
        if "transfer-encoding" not in headers:
            body = self._bytes.take(int(dict.get(headers, "content-length", "0")))
            if body is not None:
                delegate.data_received(body)
                return None
        return super()._read_body(code, headers, delegate)  # type: ignore[arg-type]
