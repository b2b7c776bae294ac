"""Redact values of a delivery in what the gateway keeps of it: journal, answers, logs, traces.

The values are those at the pointers of a route's `redact`. The message and the task's result have
them; everything that is kept has `HIDDEN` in their place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, unquote_plus, urlencode

from gateway.answer import Answer
from gateway.celery_message import Message
from gateway.config.pointers import KEY, extractor, pointing
from gateway.delivery import Delivery, Request
from gateway.errors import BadRequest
from gateway.nesting import unescaped, walk
from gateway.sources.reading import MISSING, at, pointer, put, read_json_value, read_query

HIDDEN = "[redacted]"
#: Characters of a value from which on it is also looked for within texts, and not only as a whole.
_WITHIN = 4
#: Values that are looked for, characters of them, and how much there is to do, about in bytes that
#: are compared. Where there is more, everything is hidden: looking for the values would hold up
#: other requests.
_MOST, _LONG, _WORK = 100, 64 * 1024, 30_000_000
#: Bytes of a text that take as long as to begin with it, to look at a JSON value, and to compare
#: one with an object or list that is looked for.
_PER_TEXT, _PER_VALUE, _PER_COMPARED = 50, 200, 50
#: Places of a text at which values are hidden; with more, all of it is.
_FINDS = 1_000
#: What is in the place of a value's first character, and of its others, once it was found.
_FIRST, _OTHERS = "\udffe", "\udfff"
_found = re.compile(f"{_FIRST}{_OTHERS}*").finditer
#: Fields of the header `delivery` that no sender has chosen.
_OURS = frozenset(("id", "source", "route", "received_at", "traceparent", "store"))

Place = Annotated[
    str,
    pointing(
        rf"{KEY}|query:[^\r\n]+|param:[a-z_][a-z0-9_]*|body|remote",
        "is written as json:/pointer, header:NAME, query:NAME, param:name, body or remote",
    ),
]


class Redaction:
    """Finds the values at some pointers, the `places`."""

    def __init__(self, places: Iterable[str]):
        self.places = sorted(set(places))
        self._extractors = [(place, extractor(place)) for place in self.places]
        self._of_body = any(place == "body" or place.startswith("json:") for place in self.places)

    def of(self, delivery: Delivery) -> Redacted:
        """Return what hides the values of `delivery`."""
        query = delivery.query if _is_query(delivery) else None
        return Redacted(list(self._found(delivery)), delivery.body, query=query)

    def _found(self, delivery: Delivery) -> Iterator[tuple[str, Any]]:
        for place, extract in self._extractors:
            with suppress(KeyError):  # a parameter of another path
                try:
                    value = extract(delivery)
                except BadRequest:
                    # A body that is no strict JSON may have the value all the same, as one with NaN
                    # has for a task in Python: it is hidden as a whole.
                    value = delivery.body or MISSING
                if value is not MISSING:
                    yield place, value
            kind, _, name = place.partition(":")
            if kind == "query":  # it may be there again, and the first are no parameters
                for its, text in parse_qsl(delivery.query_string, keep_blank_values=True):
                    if its == name and text != value:
                        yield place, text

    def of_request(self, request: Request, params: dict[str, str]) -> Redacted:
        """Return what hides the values of a request that may be anybody's.

        Its JSON is not parsed, so if the place of a value is in the body, all of that is hidden.
        """
        try:
            query = read_query(request.query_string)
        except BadRequest:
            query = {}
        outside = Delivery(
            "", "", params, query, request.query_string, request.headers, b"", request.remote, 0.0
        )
        found = [("body", request.body)] if self._of_body else []
        found += (each for each in self._found(outside) if each[0] != "body")
        return Redacted(found, request.body, False, query if _is_query(request) else None)


class Redacted:
    """Hides the values that were `found` at their places, wherever they are in what is kept.

    ``places`` are those at which there was a value. The body's JSON is read only if it `parses`.
    `query` has the parameters of a GET, whose body is its query string.
    """

    def __init__(
        self,
        found: Sequence[tuple[str, Any]],
        body: bytes,
        parses: bool = True,
        query: dict[str, str] | None = None,
    ):
        self._parses, self._is_query = parses, query is not None
        self.places = list(dict.fromkeys(place for place, _ in found))
        self._body = body
        self._hidden_body = any(isinstance(value, bytes) for _, value in found)
        self._tokens = [pointer(p.removeprefix("json:")) for p in self.places if p[:5] == "json:"]
        values = [value for _, value in found if not isinstance(value, bytes)]
        if self._hidden_body and query:
            values.append(query)
        walked = list(islice(walk(values), _MOST + 1))
        leaves = [each for each in walked if not isinstance(each, dict | list)]
        self._constants = {each for each in leaves if each is None or isinstance(each, bool)}
        self._texts = {str(each) for each in leaves if type(each) in (str, int, float)} - {""}
        self._whole = [value for value in values if isinstance(value, dict | list)]
        signs = sum(map(body.count, (b'"', b"%", b"\\")))
        work = (len(body) + _PER_TEXT * signs) * len(self._texts)
        compared = _PER_COMPARED * len(walked) if self._whole else 0
        work += sum(map(body.count, (b",", b"[", b"{"))) * (_PER_VALUE + compared)
        long = sum(map(len, self._texts)) > _LONG
        #: Whether everything is hidden.
        self._all = len(walked) > _MOST or long or work > _WORK
        if self._all:  # what was parsed may be many times as large as the body
            self._texts, self._whole = set(), []

    @cached_property
    def _forms(self) -> list[str]:
        """How the values may be written, in lower case, those first that may contain others."""
        forms = {_lower(form) for text in self._texts for form in _forms(text)}
        return sorted(forms, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Return `text` without the values."""
        if text and (self._all or text in self._texts):
            return HIDDEN
        left = self._without_forms(text)
        plain = unescaped(left)  # JSON and URLs may escape any character
        plain = unquote_plus(plain) if "%" in plain else plain
        if plain != left and (plain in self._texts or self._without_forms(plain) != plain):
            return HIDDEN
        return left

    def _without_forms(self, text: str) -> str:
        lower = _lower(text)
        for form in self._forms:
            if len(form) >= _WITHIN:
                lower = lower.replace(form, _FIRST + _OTHERS * (len(form) - 1))
        if _FIRST not in lower:
            return text
        if lower.count(_FIRST) > _FINDS:
            return HIDDEN
        at, left = 0, []
        for found in _found(lower):
            left.append(text[at : found.start()])
            at = found.end()
        return HIDDEN.join([*left, text[at:]])

    def without_body(self) -> Redacted:
        """Return what knows the same values, for those that outlive the request by hours."""
        left = copy(self)
        left._body, left._whole = b"", []
        return left

    def path(self, text: str) -> str:
        """Return the path of a URL without the values, in whatever way those are encoded."""
        parts = [unquote(part) for part in text.split("/")]
        hidden = [self.text(part) for part in parts]
        return text if hidden == parts else "/".join(hidden)

    def query(self, text: str) -> str:
        """Return a query string without the values, in whatever way those are encoded."""
        if text and self._hidden_body and self._is_query:
            return quote(HIDDEN)
        pairs = parse_qsl(text, keep_blank_values=True)
        hidden = [(self.text(name), self.text(value)) for name, value in pairs]
        whole = unquote_plus(text)
        return text if hidden == pairs and self.text(whole) == whole else urlencode(hidden)

    def message(self, message: Message) -> Message:
        """Return `message` as it is kept."""
        call: list[Any] = [[HIDDEN], {}, {}]
        if not self._all:
            args, kwargs, *rest = json.loads(message.body)
            call = [self._value(args, True), self._value(kwargs, True), *rest]
        delivery = {k: v if k in _OURS else self._value(v) for k, v in message.delivery.items()}
        delivery["query_string"] = self.query(message.delivery["query_string"])
        extra = message.extra and {
            name: text if name == "traceparent" else self.text(text)
            for name, text in message.extra.items()
        }
        return replace(
            message,
            queue=self.text(message.queue),
            body=json.dumps(call).encode(),
            delivery=delivery,
            extra=extra,
            redacted=self.places,
        )

    def request(self, request: Request, whole: bool = False) -> Request:
        """Return a copy of `request` as it is kept; only the `whole` one has its body."""
        kept = copy(request)
        kept.path, kept.query_string = self.path(request.path), self.query(request.query_string)
        kept.headers = {name: self.text(value) for name, value in request.headers.items()}
        kept.remote = self.text(request.remote)
        kept.body = self._redacted_body().encode() if self._body and whole else b""
        return kept

    def is_in(self, answer: Answer) -> bool:
        """Tell whether an answer has one of the values, or any part of a body that is hidden."""
        text = answer.body.decode(errors="replace") + json.dumps(answer.headers)
        texts = {_lower(each) for each in (text, unescaped(text), unquote_plus(text))}
        some = any(form in each for form in self._forms for each in texts)
        return some or self._all or self._hidden_body

    def _redacted_body(self) -> str:
        if self._hidden_body or self._all:
            return HIDDEN
        try:
            text = self._body.decode()
        except UnicodeDecodeError:  # in its bytes no text can be looked for
            return HIDDEN
        if self._is_query:
            return self.query(text)
        try:
            document = read_json_value(self._body) if self._parses else MISSING
        except BadRequest:
            document = MISSING
        if document is MISSING:
            return self.text(text)
        for tokens in self._tokens:
            if at(document, tokens, MISSING) is not MISSING:
                document = put(document, tokens, HIDDEN)
        return json.dumps(self._value(document))

    def _value(self, value: Any, constants: bool = False) -> Any:
        """Return a JSON value without the values; a text that is the body is redacted as JSON.

        With `constants` each true, false and null is hidden that is one of the values: in an
        argument nothing says which one it was.
        """
        if value in self._whole:
            return HIDDEN
        if value is None or isinstance(value, bool):
            return HIDDEN if constants and value in self._constants else value
        if isinstance(value, dict):
            if value.keys() == {"__type__", "__value__"}:  # a body that is not UTF-8
                return HIDDEN
            found = ((self.text(name), each) for name, each in value.items())
            return {name: self._value(each, constants) for name, each in found}
        if isinstance(value, list):
            return [self._value(each, constants) for each in value]
        if isinstance(value, str):
            is_body = value and value.encode(errors="surrogatepass") == self._body
            return self._redacted_body() if is_body else self.text(value)
        return HIDDEN if self._all or str(value) in self._texts else value


def _is_query(sent: Request | Delivery) -> bool:
    return bool(sent.body) and sent.body == sent.query_string.encode(errors="replace")


def _lower(text: str) -> str:
    """Return a text in lower case; each of its characters stays one."""
    return text.replace("İ", "I").lower().replace("ς", "σ")


def _forms(text: str) -> set[str]:
    """Return how a value may be written in a text: as it is, in JSON, and in a URL."""
    safe = text.encode(errors="replace").decode()
    escaped = [json.dumps(text, ensure_ascii=each)[1:-1] for each in (True, False)]
    escaped += [each.replace("/", "\\/") for each in escaped]
    return {text, *escaped, quote(safe), quote(safe, safe=""), quote_plus(safe)}
