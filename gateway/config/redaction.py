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
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, unquote_plus, urlencode

from gateway.answer import Answer
from gateway.celery_message import Message
from gateway.config.pointers import KEY, extractor, pointing
from gateway.delivery import Delivery, Request
from gateway.errors import BadRequest
from gateway.sources.reading import MISSING, at, pointer, put, read_json_value, read_query

HIDDEN = "[redacted]"
#: Characters of a value from which on it is also looked for within texts, and not only as a whole.
_WITHIN = 4
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
        return Redacted(list(self._found(delivery)), delivery.body)

    def _found(self, delivery: Delivery) -> Iterator[tuple[str, Any]]:
        for place, extract in self._extractors:
            # The body is not JSON, so it has nothing at this place; a parameter of another path.
            with suppress(BadRequest, KeyError):
                if (value := extract(delivery)) is not MISSING:
                    yield place, value

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
        return Redacted(found, request.body)


class Redacted:
    """Hides the values that were `found` at their places, wherever they are in what is kept.

    ``places`` are those at which there was a value.
    """

    def __init__(self, found: Sequence[tuple[str, Any]], body: bytes):
        self.places = [place for place, _ in found]
        self._body, self._hidden_body = body, any(place == "body" for place in self.places)
        self._tokens = [pointer(p.removeprefix("json:")) for p in self.places if p[:5] == "json:"]
        values = [value for _, value in found if not isinstance(value, bytes)]
        self._whole = [value for value in values if isinstance(value, dict | list)]
        self._texts = {text for text in _leaves(values) if text}
        forms = {form for text in self._texts for form in _forms(text)}
        #: A value may contain another one: the longest comes first.
        self._forms = sorted(forms, key=len, reverse=True)
        within = [re.escape(form) for form in self._forms if len(form) >= _WITHIN]
        self._within = re.compile("|".join(within), re.IGNORECASE) if within else None

    def text(self, text: str) -> str:
        """Return `text` without the values."""
        if text in self._texts:
            return HIDDEN
        return self._within.sub(HIDDEN, text) if self._within else text

    def path(self, text: str) -> str:
        """Return the path of a URL without the values, in whatever way those are encoded."""
        parts = [unquote(part) for part in text.split("/")]
        hidden = [self.text(part) for part in parts]
        return text if hidden == parts else "/".join(hidden)

    def query(self, text: str) -> str:
        """Return a query string without the values, in whatever way those are encoded."""
        pairs = parse_qsl(text, keep_blank_values=True)
        hidden = [(self.text(name), self.text(value)) for name, value in pairs]
        whole = unquote_plus(text)
        return text if hidden == pairs and self.text(whole) == whole else urlencode(hidden)

    def message(self, message: Message) -> Message:
        """Return `message` as it is kept."""
        args, kwargs, *rest = json.loads(message.body)
        call = [self._value(args), self._value(kwargs), *rest]
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

    def request(self, request: Request) -> Request:
        """Return a copy of `request` as it is kept."""
        kept = copy(request)
        kept.path, kept.query_string = self.path(request.path), self.query(request.query_string)
        kept.headers = {name: self.text(value) for name, value in request.headers.items()}
        kept.remote = self.text(request.remote)
        kept.body = self._redacted_body().encode() if self._body else b""
        return kept

    def is_in(self, given: Answer) -> bool:
        """Tell whether an answer has one of the values."""
        text = given.body.decode(errors="replace") + json.dumps(given.headers)
        return any(form in text for form in self._forms)

    def _redacted_body(self) -> str:
        if self._hidden_body:
            return HIDDEN
        try:
            document = read_json_value(self._body)
        except BadRequest:
            try:
                return self.text(self._body.decode())
            except UnicodeDecodeError:  # in its bytes no text can be looked for
                return HIDDEN
        for tokens in self._tokens:
            if at(document, tokens, MISSING) is not MISSING:
                document = put(document, tokens, HIDDEN)
        return json.dumps(self._value(document))

    def _value(self, value: Any) -> Any:
        """Return a JSON value without the values; a text that is the body is redacted as JSON."""
        if value in self._whole:
            return HIDDEN
        if isinstance(value, dict):
            if value.keys() == {"__type__", "__value__"}:  # a body that is not UTF-8
                return HIDDEN
            return {self.text(name): self._value(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if isinstance(value, str):
            is_body = value and value.encode(errors="surrogatepass") == self._body
            return self._redacted_body() if is_body else self.text(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return HIDDEN if number and str(value) in self._texts else value


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts and the numbers in a JSON value, all as texts."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _forms(text: str) -> set[str]:
    """Return how a value may be written in a text: as it is, in JSON, and in a URL."""
    safe = text.encode(errors="replace").decode()
    escaped = (json.dumps(text, ensure_ascii=each)[1:-1] for each in (True, False))
    return {text, *escaped, quote(safe), quote(safe, safe=""), quote_plus(safe)}
