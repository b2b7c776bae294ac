"""Where a task's result goes that comes after the answer: what a route's `late` says.

A text in braces stands for a value: a pointer into the delivery (also ``form:NAME``, and
``xml:NAME`` for WeChat's messages), several of them with `` or `` between them, of which the first
that is there counts, or one of `OURS`. A text that is nothing else keeps the value's type.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from hashlib import blake2b
from importlib.resources import files
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config import pointers
from gateway.delivery import Delivery, Request
from gateway.errors import BadRequest
from gateway.model import Model
from gateway.nesting import walk
from gateway.similar import meant
from gateway.sources import places
from gateway.sources.wechat_message import Message

#: What is filled in when a late answer is sent: the answer, the source's `app_id` and
#: `app_secret`, and a token, which is fetched or the block's own.
OURS = ("answer", "token", "app_id", "app_secret")

#: Characters of a value; a longer one counts as missing.
MAX_VALUE = 4_096

_OR = " or "
_host = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?").fullmatch
_header = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch


def _inside(template: Any) -> Iterator[str]:
    """Yield what is in braces in the texts of a template."""
    texts = (each for each in walk(template) if isinstance(each, str))
    return (inner for text in texts for inner in pointers.pointers_in(text))


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of `template` with `values` by what is in the braces.

    The member ``*`` of an object stands for all members of its value, if that is an object. Raises
    KeyError where a value is missing.
    """
    if isinstance(template, dict):
        made: dict[str, Any] = {}
        for key, each in template.items():
            value = fill(each, values)
            made |= value if key == "*" and isinstance(value, dict) else {key: value}
        return made
    if isinstance(template, list):
        return [fill(each, values) for each in template]
    if not isinstance(template, str):
        return template
    whole = pointers.braces.fullmatch(template)
    return values[whole[1]] if whole else pointers.braces.sub(lambda m: str(values[m[1]]), template)


def fill_url(template: str, values: Mapping[str, Any]) -> str:
    """Return a URL; a value that is only a part of it is escaped. Raises as `fill` does."""
    if pointers.braces.fullmatch(template):
        return str(fill(template, values))
    return pointers.braces.sub(lambda m: quote(str(values[m[1]]), "", errors="replace"), template)


class Fetch(Model):
    """The request for a token, which is at the pointers `token` and `life` (seconds) of its answer.

    A GET has no body.
    """

    method: Literal["GET", "POST"] = "POST"
    url: str
    body: dict[str, str] = {}
    token: str
    life: str


#: The keys on which it depends what is sent, and where to.
_SENT = {"url", "method", "headers", "body", "text", "unwrap", "silent", "fetch"}


class Late(Model):
    """How a late answer is sent; times are in seconds.

    ``like`` names a sender whose keys count where the block has none. ``body`` is the template of
    the request's body, ``text`` what a text that the task returns becomes before. ``unwrap`` points
    to the message in an object that is made for an answer in time, and ``silent`` are answers after
    which nothing is sent. ``hosts`` are those that may be connected to: by https, and at public
    addresses, unless they are not the sender's. ``window`` is how long that takes late answers;
    ``until`` has the end of that in milliseconds since the epoch. ``replaces``: the same
    request may be sent twice, as it replaces what the first one has done. ``code`` points to the
    code in the sender's answer, where anything but 0 is an error; those in ``again`` are for a
    moment, those in ``stale`` mean that the token is not valid any more. ``wait`` points to the
    seconds after which to try again.
    """

    like: str = ""
    sources: list[str] = []
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    url: str
    headers: dict[str, str] = {}
    body: Any = "{answer}"
    text: Any = "{answer}"
    unwrap: str = ""
    silent: list[str] = []
    hosts: Annotated[list[str], Field(min_length=1)]
    window: float = Field(86_400, gt=0, le=30 * 86_400)
    until: str = ""
    tries: int = Field(5, ge=1, le=20)
    replaces: bool = False
    code: str = ""
    again: list[int] = []
    stale: list[int] = []
    wait: str = ""
    token: SecretStr | None = Field(None, min_length=1)
    fetch: Fetch | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_sender(cls, value: Any) -> Any:
        """Take over the keys of the sender that is named."""
        block = {"like": value} if isinstance(value, str) else value
        like = block.get("like", "") if isinstance(block, dict) else None
        if not isinstance(like, str):
            return block
        if like and like not in senders():
            raise ValueError(f"there is no such sender; {meant(like, senders())}")
        own = {**senders().get(like, {}), **block}
        if block.get("token"):  # it is used in place of a fetched one
            own.pop("fetch", None)
            headers = own.get("headers", {})
            if "{token}" not in f"{own.get('url')} {headers}" and isinstance(headers, dict):
                own["headers"] = {"Authorization": "Bearer {token}", **headers}
        return own

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, hosts: list[str]) -> list[str]:
        for host in hosts:
            if not _host(host):
                raise ValueError("a host is written as api.example.com or api.example.com:8443")
        return hosts

    @model_validator(mode="after")
    def _templates(self) -> Late:
        for name, value in self._all_templates():
            for inner in _inside(value):
                _check(name, inner)
        for name in self.headers:
            if not _header(name):
                raise ValueError("headers: a name has letters, digits and hyphens")
        if "{answer" in self.url or "{answer" in str(self.headers):
            raise ValueError("url, headers: the answer goes into the body")
        fixed = urlsplit(pointers.braces.sub("x", self.url)).netloc
        if not self.url.startswith("{") and fixed not in self.hosts:
            raise ValueError(f"url: its host is none of `hosts`: {', '.join(self.hosts)}")
        if self.fetch is None and "token" in self.needs and self.token is None:
            raise ValueError("token: is needed, as a text has {token}")
        return self

    def _all_templates(self) -> Iterator[tuple[str, Any]]:
        yield from (("url", self.url), ("headers", self.headers), ("body", self.body))
        yield from (("text", self.text), ("until", self.until))
        if self.fetch is not None:
            yield from (("fetch", self.fetch.url), ("fetch", self.fetch.body))

    @cached_property
    def _inner(self) -> set[str]:
        """What is in braces in any text."""
        return {inner for _, value in self._all_templates() for inner in _inside(value)}

    @property
    def places(self) -> set[str]:
        """The pointers to the values of a delivery that are used."""
        return {place for inner in self._inner - {*OURS} for place in inner.split(_OR)}

    @property
    def own_hosts(self) -> set[str]:
        """Those hosts that are not the sender's: they may be private, and without TLS."""
        return {*self.hosts} - {*senders().get(self.like, {}).get("hosts", ())}

    @property
    def needs(self) -> set[str]:
        """Those of `OURS` that are used."""
        return self._inner & {*OURS}

    @cached_property
    def key(self) -> str:
        """A text that differs where what is sent differs; secrets do not count."""
        sent = self.model_dump_json(include=_SENT, exclude_defaults=True)
        return blake2b(sent.encode(), digest_size=8).hexdigest()

    @cached_property
    def _values(self) -> dict[str, list[Callable[[Delivery], Any]]]:
        return {
            each: [_reader(place) for place in each.split(_OR)] for each in self._inner - {*OURS}
        }

    def values(self, delivery: Delivery) -> dict[str, Any]:
        """Return the delivery's values by what is in the braces, those that it has."""
        found: dict[str, Any] = {}
        for inner, readers in self._values.items():
            for read in readers:
                try:
                    value = read(delivery)
                except (BadRequest, ValueError):  # it is no JSON, no XML, or no number
                    continue
                if isinstance(value, (str, int)) and 0 < len(str(value)) <= MAX_VALUE:
                    found[inner] = value
                    break
        return found


@cache
def senders() -> dict[str, dict[str, Any]]:
    """Return the blocks of the senders that take late answers."""
    text = (files("gateway.config") / "late.toml").read_text("utf-8")
    return {name: {**block, "like": name} for name, block in tomllib.loads(text).items()}


def _check(setting: str, inner: str) -> None:
    for place in inner.split(_OR):
        kind = place.partition(":")[0]
        try:
            if kind == "form":
                places.Place(place)
            elif place not in OURS and kind != "xml":
                pointers.check_template(f"{{{place}}}")
        except ValueError as exc:
            raise ValueError(f"{setting}: {exc}") from exc


def _reader(place: str) -> Callable[[Delivery], Any]:
    kind, _, name = place.partition(":")
    if kind == "form":
        read = places.reader(places.Place(place))
        return lambda delivery: read(places.Seen(_request(delivery.body)))
    if kind == "xml":
        field, _, form = name.lower().partition("|")

        def read_field(delivery: Delivery) -> Any:
            text = Message.read(delivery.body).get(field)
            return int(text) if text and form == "int" else text

        return read_field
    return pointers.extractor(place)


def _request(body: bytes) -> Request:
    return Request("POST", "", "", {}, body, "", 0.0, 0.0)
