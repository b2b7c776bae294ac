"""Pointers, the one language in which a route names values of a delivery.

json:/a/b     a value in the body's JSON (RFC 6901); json: is the whole
header:NAME   a header; query:NAME  a query parameter; param:NAME  a parameter in the path
body, event, remote, delivery, source
              the body, the event's name, the sender's address, the delivery's id, the source
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any

from pydantic import AfterValidator

from gateway.delivery import Delivery
from gateway.errors import BadRequest
from gateway.similar import similar
from gateway.sources.reading import MISSING, at, pointer, read_json_value

#: The most characters of a key, and the most bytes of a name: AMQP's short strings have no more.
MAX_LENGTH, MAX_NAME = 1_024, 255

#: The places of a key that identifies a delivery, or orders deliveries.
KEY = r"(header:[!#$%&'*+\-.^_`|~0-9A-Za-z]+|json:(/[^\r\n]*)?)"
_POINTER = rf"{KEY}|query:[^\r\n]+|param:[a-z_][a-z0-9_]*|body|event|remote|delivery|source"
_is_pointer = re.compile(_POINTER).fullmatch
_SENTENCE = (
    "is written as json:/pointer, header:NAME, query:NAME, param:name, body, event, remote, "
    "delivery or source"
)
#: A pointer's form, as sentences name it; it begins with the kind of the pointer.
_forms = re.compile(
    r"(?:json:/|header:|query:|param:)\w+|body|event|remote|delivery|source"
).findall


def pointing(pattern: str, sentence: str) -> AfterValidator:
    """Make a validator for pointers that match `pattern` as a whole; `sentence` is its error.

    The error also has the most similar form among those in `sentence`. It does not repeat the text,
    because that may come from a variable or a file.
    """
    matches = re.compile(pattern).fullmatch

    def check(text: str) -> str:
        if not matches(text):
            raise ValueError(sentence + _nearest(text, sentence))
        return text

    return AfterValidator(check)


def _nearest(text: str, sentence: str) -> str:
    """Return a hint: the form in `sentence` whose kind is most similar to that of `text`."""
    forms = {form.partition(":")[0]: form for form in _forms(sentence)}
    kind = re.split("[^a-z]", text.lower(), maxsplit=1)[0]
    near = similar(kind, forms)
    return f"; did you mean {forms[near]}?" if near else ""


Pointer = Annotated[str, pointing(_POINTER, _SENTENCE)]
#: The most publishers whose queues are remembered, and the most patterns.
_PUBLISHERS, _GLOBS = 4_096, 512
#: Finds a pointer in braces within a text.
braces = re.compile(r"\{([^{}]*)\}")

#: Returns the value that a delivery has at a pointer, or `MISSING`.
Extractor = Callable[[Delivery], Any]


def extractor(place: str) -> Extractor:
    """Return the function that extracts the value at `place`.

    The function raises `BadRequest` where it needs the body's JSON, and there is none.
    """
    kind, _, name = place.partition(":")
    if kind == "json":
        tokens = pointer(name)
        return lambda delivery: at(_document(delivery), tokens, MISSING)
    if kind == "header":
        lower = name.lower()
        return lambda delivery: delivery.headers.get(lower, MISSING)
    if kind == "query":
        return lambda delivery: delivery.query.get(name, MISSING)
    if kind == "param":
        return lambda delivery: delivery.params[name]
    return _WHOLE[kind]


_WHOLE: dict[str, Extractor] = {
    "body": lambda delivery: delivery.body,
    "event": lambda delivery: delivery.event,
    "remote": lambda delivery: delivery.remote,
    "delivery": lambda delivery: delivery.id,
    "source": lambda delivery: delivery.source,
}


def _document(delivery: Delivery) -> Any:
    """Return the body's JSON, which is read once. Raises `BadRequest` where it is not JSON."""
    document = delivery.document
    if document is None:
        try:
            document = (read_json_value(delivery.body),)
        except BadRequest as exc:
            document = str(exc)
        delivery.document = document
    if isinstance(document, str):
        raise BadRequest(document)
    return document[0]


def finder(place: str) -> Callable[[Delivery], str]:
    """Return the function that extracts the text or number at `place` as a key.

    The function raises `BadRequest` where the delivery has no such value, or it is too long.
    """
    extract = extractor(place)

    def found(delivery: Delivery) -> str:
        text = _text(extract(delivery))
        if not text or len(text) > MAX_LENGTH:
            raise BadRequest(f"{place} has to be a value of 1 to {MAX_LENGTH} characters.")
        return text

    return found


def _text(value: Any) -> str:
    # Only texts and numbers can be a key; `true` or a list cannot.
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def number(place: str, most: int) -> Callable[[Delivery], int]:
    """Return the function that extracts the whole number from 0 to `most` at `place`.

    A text of digits is a number, too. The function raises `BadRequest` for anything else.
    """
    extract = extractor(place)

    def found(delivery: Delivery) -> int:
        value = extract(delivery)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
            value = int(value)
        if type(value) is not int or not 0 <= value <= most:
            raise BadRequest(f"{place} has to be a whole number from 0 to {most}.")
        return value

    return found


def chooser(place: str, queues: Sequence[str]) -> Callable[[Delivery], str]:
    """Return a function that chooses one of `queues` by the value at `place`.

    It uses rendezvous hashing: if a queue is added or removed, only that queue's keys move.
    """
    find = finder(place)
    salts = {queue: blake2b(queue.encode()).digest() for queue in queues}

    def chosen(delivery: Delivery) -> str:
        key = find(delivery).encode(errors="surrogatepass")
        return max(queues, key=lambda queue: blake2b(key, key=salts[queue]).digest())

    return chosen


def pair_chooser(place: str, queues: Sequence[str]) -> Callable[[Delivery], tuple[str, str]]:
    """Return the function that assigns to the publisher of a delivery two different `queues`.

    The value at `place` names the publisher. All deliveries without such a value have one publisher
    together: how fairly a delivery is treated is no reason to refuse it. The assignment depends on
    the value and on the names of the queues only, so it is the same in every process, and always.
    """
    extract, many = extractor(place), len(queues)
    salt = blake2b("\n".join(queues).encode()).digest()

    @lru_cache(_PUBLISHERS)
    def assigned(publisher: str) -> tuple[str, str]:
        digest = blake2b(publisher.encode(errors="replace"), key=salt, digest_size=16).digest()
        first = int.from_bytes(digest[:8]) % many
        other = int.from_bytes(digest[8:]) % (many - 1)
        return queues[first], queues[other + (other >= first)]

    def chosen(delivery: Delivery) -> tuple[str, str]:
        try:
            publisher = _text(extract(delivery))
        except BadRequest:  # the body is not JSON
            publisher = ""
        return assigned(publisher[:MAX_LENGTH])

    return chosen


def check_name(text: str) -> str:
    """Return `text`, or raise ValueError where it is too long for a name in AMQP."""
    if len(text.encode()) > MAX_NAME:
        raise ValueError(f"has over {MAX_NAME} bytes, which AMQP does not allow")
    return text


def check_template(text: str) -> str:
    """Return `text`, or raise ValueError where something in braces is no pointer."""
    for place in pointers_in(text):
        if not _is_pointer(place):
            raise ValueError(f"{{{place}}} {_SENTENCE}{_nearest(place, _SENTENCE)}")
    return text


def pointers_in(text: str) -> list[str]:
    """Return the pointers in braces in `text`, as `{event}` in `orders.{event}`."""
    return braces.findall(text)


def filler(text: str) -> Callable[[Delivery], str]:
    """Return the function that replaces each pointer in braces by its value.

    The function raises `BadRequest` where a value is missing, or the name would be too long.
    """
    places = pointers_in(text)
    if not places:
        return lambda _delivery: text
    finders = {place: finder(place) for place in places}

    def filled(delivery: Delivery) -> str:
        name = braces.sub(lambda found: finders[found[1]](delivery), text)
        if not name.isprintable() or len(name.encode()) > MAX_NAME:
            raise BadRequest(
                f"{' and '.join(places)} have to make a printable name of at most {MAX_NAME} bytes."
            )
        return name

    return filled


@lru_cache(_GLOBS)
def glob(pattern: str) -> Callable[[str], bool]:
    """Return the function that tells whether a text fits `pattern`, whose `*` stand for any texts.

    Each part between two stars is looked for once, where it comes first. A regular expression would
    try all combinations of places: a thousand characters that somebody has chosen for a pattern of
    four stars would take half an hour.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return lambda text: text == pattern
    *parts, last = parts

    def fits(text: str) -> bool:
        place, end = len(first), len(text) - len(last)
        if place > end or not (text.startswith(first) and text.endswith(last)):
            return False
        for part in parts:
            found = text.find(part, place, end)
            if found < 0:
                return False
            place = found + len(part)
        return True

    return fits


def overlap(pattern: str, other: str) -> bool:
    """Tell whether there is a text that fits both patterns, as those of `glob`."""
    if "*" not in pattern:
        return glob(other)(pattern)
    if "*" not in other:
        return glob(pattern)(other)
    # Between its ends, such a text may have what is between those of both, one after the other.
    (first, *_, last), (begin, *_, end) = pattern.split("*"), other.split("*")
    begins = first.startswith(begin) or begin.startswith(first)
    return begins and (last.endswith(end) or end.endswith(last))


def matcher(conditions: Mapping[str, Sequence[str | int | bool]]) -> Callable[[Delivery], bool]:
    """Return the function that tells whether each pointer's value is one of those given.

    A `*` in a text stands for any characters. What is missing, has over `MAX_LENGTH` characters, or
    would be in a body that is not JSON, matches nothing. The body is read only where all else
    matches.
    """
    checks = [
        (extractor(place), [_test(each) for each in conditions[place]])
        for place in sorted(conditions, key=lambda place: place.startswith("json:"))
    ]

    def matches(delivery: Delivery) -> bool:
        try:
            values = ((extract(delivery), tests) for extract, tests in checks)
            return all(any(test(value) for test in tests) for value, tests in values)
        except BadRequest:
            return False

    return matches


def _test(wanted: str | int | bool) -> Callable[[Any], bool]:
    """Return the function that tells whether a value is `wanted`."""
    if isinstance(wanted, bool):
        return lambda value: value is wanted
    fits = glob(str(wanted))

    def test(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, str | int):
            return False
        text = str(value)
        return len(text) <= MAX_LENGTH and fits(text)

    return test
