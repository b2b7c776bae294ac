"""Places in a request, as blocks of senders name them, compiled to functions that read them.

    header:NAME  query:NAME  form:NAME  sig:NAME  json:/pointer   a named value, or one in JSON
    claim:/pointer                                                a value in a JSON Web Token
    headers:NAME,OTHER              all headers that the header NAME names, these among them
    body  raw_body  url  path  method                             the whole body, URL or method
    id  time  event  digest                                       what the block itself names
    ... | filter                                                  e.g. `body|sha256hex`

`raw_body` is the body as it was sent, `body` what it contains: only compressed ones differ.
In a JSON pointer ``*`` stands for all items of a list: the place has their different values, in
their order, joined by commas. A `form:` place is empty where the body looks like JSON, so that no
text in it passes for a field.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any
from zlib import crc32

from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function, str_schema

from gateway.delivery import Request
from gateway.errors import BadRequest, Unverified
from gateway.sources import reading
from gateway.sources.proofs import Key, WebToken, digest, raw
from gateway.sources.reading import at, name, pointer, read_form, read_loosely

_NAMED, _DEFINED = ("header", "query", "form", "sig"), ("id", "time", "event", "digest")
WRITTEN = (
    "a place is header:NAME, query:NAME, form:NAME, sig:NAME, json:/pointer, claim:/pointer, "
    "headers:NAME, body, raw_body, url, path, method, id or time, and filters behind `|`"
)
#: Kinds that are read from the body.
IN_BODY = ("json", "form", "body", "raw_body", "digest")
#: Parts of a multipart form that are read.
MAX_PARTS = 100
#: Kinds whose text is what was received, one character a byte (latin-1); others are UTF-8.
AS_RECEIVED = ("header", "headers", "sig", "url", "path", "method")
_valid = re.compile(
    r"(header:[!#$%&'*+\-.^_`~0-9A-Za-z]+|(query|form|sig|headers):[^|]+"
    rf"|json:(/[^\r\n|]*)?|claim:/[^\r\n|]*|body|raw_body|url|path|method|{'|'.join(_DEFINED)})(\|[^|]+)*"
).fullmatch


#: What a value may not have in it that stands between others: a further name.
_further_name = re.compile("&[^&=]+=").search
#: What a name may not have in it: it could be several fields.
_ends_name = re.compile("[&=]").search


def _pairs(body: bytes, without: Sequence[str]) -> bytes | None:
    """Return a form's fields as ``name=value&...``, not escaped, in the order of their names."""
    pairs = sorted((key, value) for key, value in read_form(body) if key not in without)
    # Nobody could tell such a field from two, and of two with one name which is meant.
    several = any(_ends_name(key) or _further_name(value) for key, value in pairs)
    if several or len(dict(pairs)) < len(pairs):
        return None
    return raw("&".join([f"{key}={value}" for key, value in pairs]))


def _lines(message: Any, names: Sequence[str]) -> bytes | None:
    lines: list[str] = []
    for each in names if isinstance(message, dict) else ():
        if (text := message.get(each)) is None:
            continue
        # A line end would do in all but the first: nobody can tell where the first one ends.
        if not isinstance(text, str) or (lines and "\n" in text):
            return None
        lines += each, text
    return "\n".join([*lines, ""]).encode(errors="surrogatepass") if lines else None


#: From the text behind a filter's name to a function from bytes, or from JSON, to a value, which is
#: None, or raises ValueError or `BadRequest`, where these cannot be read so.
FILTERS: dict[str, Callable[[str], Callable[[Any], Any]]] = {
    "sha256hex": lambda _: lambda text: sha256(text).hexdigest(),
    "sha256base64": lambda _: lambda text: b64encode(sha256(text).digest()),
    # A text as JSON has it, as JavaScript writes it.
    "string": lambda _: lambda text: json.dumps(text.decode(), ensure_ascii=False),
    "crc32": lambda _: lambda text: str(crc32(text)),
    "base64": lambda _: lambda text: b64decode(text, validate=True),
    "noquery": lambda _: lambda url: url.partition(b"?")[0],
    # A form's names and values, sorted by name, without separators.
    "sortedform": lambda _: lambda body: raw("".join(map("".join, sorted(read_form(body))))),
    "pairs": lambda names: lambda body: _pairs(body, names.split(",")),
    # The members of a JSON object that are there: a line with the name, a line with the text.
    "lines": lambda names: lambda body: _lines(read_loosely(body), names.split(",")),
    "json": lambda text: lambda body: _at(read_loosely(body), pointer(text)),
    "member-besides": lambda other: (
        lambda message: next(
            (each for each in (message if isinstance(message, dict) else ()) if each != other), ""
        )
    ),
}


class Place(str):
    """A place as it is written in a block, a header's name in lower case.

    It has a `kind`, a `name` and `filters`. Raises ValueError, with what is valid.
    """

    kind: str
    name: str
    filters: tuple[str, ...]

    def __new__(cls, text: str) -> Place:
        if not _valid(text):
            raise ValueError(f"{text} is no place; {WRITTEN}")
        plain, *filters = text.split("|")
        for each in filters:
            if each.partition(":")[0] not in FILTERS:
                known = ", ".join(FILTERS)
                raise ValueError(f"{text}: there is no filter {each}; there are {known}")
        plain = plain.lower() if plain.startswith("header") else plain
        place = super().__new__(cls, "|".join([plain, *filters]))
        place.kind, _, place.name = plain.partition(":")
        place.filters = tuple(filters)
        return place

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return no_info_after_validator_function(cls, str_schema())

    @property
    def plain(self) -> str:
        """The place without its filters."""
        return self.partition("|")[0]

    @property
    def is_parsed(self) -> bool:
        """Is the body's JSON or form parsed to read it?"""
        parsing = ("json", "lines", "pairs", "sortedform")
        return self.kind in ("json", "form") or any(
            each.startswith(parsing) for each in self.filters
        )

    @property
    def items(self) -> list[str] | None:
        """The tokens of a pointer to a value of each item of a list; None: it is something else."""
        tokens = pointer(self.name) if self.kind == "json" and not self.filters else []
        return tokens if "*" in tokens else None

    @property
    def missing(self) -> str:
        """What to say where nothing is there."""
        what = {"header": "header", "query": "parameter", "claim": "claim"}.get(self.kind, "field")
        return f"The {what} {self.name} is missing."


class Seen:
    """A request that is being verified, with what was read from it: each part is read once.

    ``json`` is None where the body is not JSON. ``form`` has one character a byte, and of several
    fields with one name the last. ``sig`` has the named fields of the header with the signature.
    ``content`` is what the task gets, ``key`` has verified the signature; ``token`` is the
    signature where that is a JSON Web Token.
    """

    json: Any
    form: dict[str, str]
    query: dict[str, str]
    claims: dict[str, Any]
    sha256: str
    key: Key | None = None
    token: WebToken
    event = ""

    def __init__(self, request: Request):
        self.request = request
        self.headers, self.body = request.headers, request.body
        self.content = request.body
        self.sig: dict[str, str] = {}

    def __getattr__(self, part: str) -> Any:
        """Read a part that was not asked for before."""
        if part not in _PARTS:
            raise AttributeError(part)
        value = _PARTS[part](self)
        setattr(self, part, value)
        return value


def _form(seen: Seen) -> dict[str, str]:
    if seen.body[:2] == b"--":
        return _multipart(seen.body)
    try:
        return dict(read_form(seen.body))
    except BadRequest:
        return {}


def _multipart(body: bytes) -> dict[str, str]:
    """Return the fields of multipart/form-data, of the first parts. RFC 7578"""
    found = {}
    for part in body.split(body.partition(b"\r\n")[0], MAX_PARTS)[1:]:
        head, _, content = part.partition(b"\r\n\r\n")
        if named := re.search(rb'[; ]name="([^"]+)"', head):
            found[named[1].decode("latin-1")] = content.removesuffix(b"\r\n").decode("latin-1")
    return found


_PARTS: dict[str, Callable[[Seen], Any]] = {
    "json": lambda seen: read_loosely(seen.body),
    "form": _form,
    "query": lambda seen: reading.read_query(seen.request.query_string),
    "claims": lambda seen: seen.token.claims,
}
Reader = Callable[[Seen], Any]


def reader(place: Place, base_url: str = "", only: bool = False) -> Reader:
    """Return a function that reads the value at `place`; None or "" where there is none.

    `base_url` is what comes before the path of `url`. `only`: nothing else in the block reads the
    body's JSON, so that it may be left unparsed.
    """
    read = _plain(place.kind, place.name, base_url.rstrip("/"), only)
    for text in place.filters:
        read = _filtered(read, text, place.kind in AS_RECEIVED)
    return read


def bytes_reader(place: Place, base_url: str) -> Callable[[Seen], bytes]:
    """Return a function that reads the bytes at `place`, as a sender signs them."""
    kind, filters, read = place.kind, place.filters, reader(place, base_url)
    if place == "body":
        return read
    if kind in ("header", "sig") and not filters:
        return lambda seen: raw(read(seen))
    as_received = kind in AS_RECEIVED and not filters
    changed = kind in ("body", "raw_body") and filters and not filters[0].startswith("json")

    def read_bytes(seen: Seen) -> bytes:
        value = read(seen)
        if value is None and changed:
            raise Unverified(f"The body cannot be read as {filters[0]}.")
        return encoded(value, as_received)

    return read_bytes


def first(readers: Sequence[Reader]) -> Reader:
    """Return a function that reads the first value that is there."""

    def read(seen: Seen) -> Any:
        for each in readers:
            if (value := each(seen)) or value == 0:
                return value
        return None

    return readers[0] if len(readers) == 1 else read


def encoded(value: Any, as_received: bool = False) -> bytes:
    """Return a value's bytes: UTF-8, or of a text that was received so one byte a character."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        value = "" if value is None else json.dumps(value, separators=(",", ":"))
    return raw(value) if as_received else value.encode(errors="surrogatepass")


def _filtered(read: Reader, text: str, as_received: bool) -> Reader:
    title, _, argument = text.partition(":")
    change = FILTERS[title](argument)
    if title == "member-besides":
        return lambda seen: change(read(seen))

    def filtered(seen: Seen) -> Any:
        value = read(seen)
        if value is None or value == "":
            return value
        try:
            return change(encoded(value, as_received))
        except (BadRequest, ValueError):
            return None

    return filtered


def _plain(kind: str, key: str, base_url: str, only: bool) -> Reader:
    readers: dict[str, Reader] = {
        "header": lambda seen: seen.headers.get(key, ""),
        "query": lambda seen: seen.query.get(key, ""),
        "form": lambda seen: (
            "" if seen.body[:1] in b"{[" or key not in seen.form else reading.utf8(seen.form[key])
        ),
        "sig": lambda seen: seen.sig.get(key, ""),
        "body": lambda seen: seen.body,
        "raw_body": lambda seen: seen.request.raw_body or seen.body,
        "method": lambda seen: seen.request.method,
        "headers": lambda seen: _named_headers(seen.headers, key.split(",")),
        "url": lambda seen: base_url + _target(seen.request),
        "path": lambda seen: _target(seen.request),
        "event": lambda seen: seen.event,
        "digest": lambda seen: digest(seen.body),
    }
    if kind not in ("json", "claim"):
        return readers[kind]
    tokens = pointer(key)
    if kind == "claim":
        return lambda seen: at(seen.claims, tokens)
    if len(tokens) == 1 and (member := tokens[0]).isidentifier():

        def read(seen: Seen) -> Any:
            return seen.json.get(member) if type(seen.json) is dict else None

        return _first_member(member, read) if only else read
    return lambda seen: _at(seen.json, tokens)


def _named_headers(headers: dict[str, str], needed: Sequence[str]) -> str:
    """Return the headers that the first of `needed` names: ``a:1;b:2``; these are among them.

    If it did not name itself, nothing would say which are signed.
    """
    names = headers.get(needed[0], "").split(",")
    if not set(needed) <= set(names):
        raise Unverified(f"The header {needed[0]} has to name {', '.join(needed)}.")
    pairs = [f"{name}:{headers[name]}" for name in sorted(names) if name in headers]
    return ";".join(pairs)


def _target(request: Request) -> str:
    query = request.query_string
    return f"{request.path}?{query}" if query else request.path


def _first_member(key: str, otherwise: Reader) -> Reader:
    """Return a reader of a member that need not parse a body that begins with it, or lacks it."""
    begins = re.compile(rb'\{\s*"%b"\s*:\s*"([ !#-\[\]-~]{1,200})"' % key.encode()).match
    quoted = b'"%b"' % key.encode()

    def read(seen: Seen) -> Any:
        # Of members with one name the last counts.
        if (there := begins(seen.body)) and seen.body.find(quoted, there.end()) < 0:
            return there[1].decode()
        return otherwise(seen) if quoted in seen.body else None

    return read


def items(value: Any, tokens: Sequence[str]) -> list[Any]:
    """Return the values at a pointer's tokens with ``*``: of each item one, None: it has none."""
    found = [value]
    for token in tokens:
        if token == "*":
            found = [each for list_ in found if isinstance(list_, list) for each in list_]
        else:
            found = [e.get(token) if type(e) is dict else at(e, [token]) for e in found]
    return found


def _at(value: Any, tokens: Sequence[str]) -> Any:
    """Return the value at a pointer's tokens; with ``*``, the different ones, joined by commas."""
    if "*" not in tokens:
        return at(value, tokens)
    names = dict.fromkeys(map(name, items(value, tokens)))
    return next(iter(names)) if len(names) == 1 else ",".join(filter(None, names))
